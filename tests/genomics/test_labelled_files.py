"""Tables and folders of labelled sequences, from hand-written files."""

import csv
import gzip
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from genomics.finetune.labelled_files import read_class_folder, read_table
from genomics.sequence.alphabet import decode
from tests.genomics.labelled_data import letters, write


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "sequence,label\nacgN,x\nTT,y\n"),
        ("a.csv.gz", "label,seq\nx,acgN\ny,TT\n"),
        ("a.tsv", "id\tDNA\tclass\n1\tacgN\tx\n\n2\tTT\ty\n"),
        ("a.tsv.gz", "\ufeffseq\tlabel\r\nacgN\tx\r\nTT\ty\r\n"),
    ],
)
def test_a_table_is_read(name: str, text: str, tmp_path: Path) -> None:
    assert letters(read_table(write(tmp_path / name, text))) == [("ACGN", "x"), ("TT", "y")]


def test_measured_values_are_no_classes(tmp_path: Path) -> None:
    """Mostly different numbers with fractions; few of them, or integers, may be classes."""
    values = write(tmp_path / "a.csv", "sequence,label\nA,.25\nC,1\nG,-2.5\n")
    with pytest.raises(
        ValueError, match=r"'label' must hold classes, got 3 different numbers in 3 "
    ):
        read_table(values)
    for labels in (".5 .5 1.5 1.5", "1 2 3 4", "nan x y z"):
        rows = "".join(f"A,{label}\n" for label in labels.split())
        assert len(read_table(write(tmp_path / "b.csv", "sequence,label\n" + rows))) == 4


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sequence,label,promoter,active\nAA,u,CC,1\n")
    rows = read_table(path, sequence_column="promoter", label_column="active")
    assert letters(rows) == [("CC", "1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.csv:1: a table must begin with a header"),
        ("sequence,label\n", r"a\.csv:2: a table must hold rows"),
        ("sequence,score\nAC,1\n", r"a\.csv:1: header must name a label column.*--label_column"),
        ("name,label\nAC,1\n", r"a\.csv:1: header must name a sequence column"),
        ("sequence,label\nAC,1\nAXC,0\n", r"a\.csv:3: 'X' at offset 1.*not DNA"),
        ("sequence,label\nAC,1\n,0\n", r"a\.csv:3: sequence must not be empty"),
        ("sequence,label\nAC,1\nAC,\n", r"a\.csv:3: label must not be empty"),
        ("sequence,label\nAC,1,2\n", r"a\.csv:2: a line must have 2 columns.*got 3"),
    ],
)
def test_an_unsound_table_names_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_table(write(tmp_path / "a.csv", text))
    assert "\n" not in str(caught.value)


def test_a_line_is_counted_where_it_begins(tmp_path: Path) -> None:
    """After blank lines and a cell of three lines."""
    text = 'sequence,label,note\n\nAC,x,"a\nb\nc"\n\nAG,y,\n'
    path = write(tmp_path / "a.csv", text)
    assert [row.line for row in read_table(path)] == [3, 7]
    path.write_text(text + 'AX,y,"d\ne"\n')
    with pytest.raises(ValueError, match=r"a\.csv:8: 'X' at offset 1"):
        read_table(path)


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
@pytest.mark.parametrize("line", [1, 2, 3, 1782, 2000])
def test_a_byte_that_is_no_utf8_has_its_line(line: int, name: str, tmp_path: Path) -> None:
    lines = [b"sequence,label", *[b"ACGT,x"] * 2998]
    lines[line - 1] = b"ACGT,\xff"
    content = b"\n".join(lines)
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(ValueError, match=rf"{name}:{line}: must be UTF-8"):
        read_table(path)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_letters_beyond_ascii_and_line_ends(end: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(end.join(["sequence,label", "AC,Drosophilä", "GG,y", ""]).encode())
    assert letters(read_table(path)) == [("AC", "Drosophilä"), ("GG", "y")]


def test_a_sequence_may_have_any_length(tmp_path: Path) -> None:
    long = decode(np.random.default_rng(0).integers(0, 4, 140_000, dtype=np.uint8))
    limit = csv.field_size_limit()
    path = write(tmp_path / "a.csv", f"sequence,label\n{long},x\nAC,y\n")
    assert letters(read_table(path)) == [(long, "x"), ("AC", "y")]
    assert csv.field_size_limit() == limit < len(long), "the limit of others has changed"


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_cut_archive_is_refused_at_its_first_line_that_is_not_there(
    kept: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.csv.gz"
    packer = zlib.compressobj(wbits=31)
    lines = [b"sequence,label\n", b"AC,x\n", b"AG,y\n"]
    packed = packer.compress(b"".join(lines[:kept])) + packer.flush(zlib.Z_SYNC_FLUSH)
    path.write_bytes(packed)
    with pytest.raises(ValueError, match=rf"a\.csv\.gz:{kept + 1}: must be complete"):
        read_table(path)


def test_a_quote_that_is_not_closed_is_refused_where_it_is_opened(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'sequence,label\nAC,x\n"AC,y\nAC,x\nAC,y\n')
    with pytest.raises(ValueError, match=r"a\.csv:3: must be complete"):
        read_table(path)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"sequence,label\n" + os.urandom(64).hex().encode())[:-12])
    with pytest.raises(ValueError, match=r"a\.csv\.gz:2: must be complete"):
        read_table(path)
    path.write_bytes(b"sequence,label\nAC,x\n")
    with pytest.raises(ValueError, match=r"a\.csv\.gz:1: must be complete"):
        read_table(path)


def test_an_unsound_class_folder(tmp_path: Path) -> None:
    write(tmp_path / "c/1.txt", "AC")
    write(tmp_path / "c/2.txt", "A-C")
    with pytest.raises(ValueError, match=r"2\.txt:1: '-' at offset 1.*not DNA"):
        read_class_folder(tmp_path / "c", "c")
    write(tmp_path / "c/2.txt", "\n")
    with pytest.raises(ValueError, match=r"2\.txt:1: sequence must not be empty"):
        read_class_folder(tmp_path / "c", "c")
    (tmp_path / "d").mkdir()
    with pytest.raises(ValueError, match=r"d: a class must hold \.txt files"):
        read_class_folder(tmp_path / "d", "d")
    (tmp_path / "d/1.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"1\.txt: is a link to .*nowhere, which does not exist"
    ):
        read_class_folder(tmp_path / "d", "d")
