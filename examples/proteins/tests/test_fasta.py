"""FASTA files of proteins."""

import gzip
from pathlib import Path

import pytest
from seqdiff_proteins import ProteinTokenizer
from seqdiff_proteins.fasta import ProteinReader, read_fasta, write_samples


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path, long = tmp_path / "a.fasta", "ACDEFGHIKLMN" * 11
    write_samples(path, iter([long, "MK-W"]), iter(["one", "two"]))
    lines = path.read_text().splitlines()
    assert lines[0] == ">one" and [len(line) for line in lines[1:4]] == [60, 60, 12]
    assert read_fasta(path) == [("one", long), ("two", "MK-W")]
    with pytest.raises(ValueError, match="got '1' at position 2"):
        write_samples(path, ["A1"], ["bad"])


def test_names_stops_and_gzip(tmp_path: Path) -> None:
    path = tmp_path / "a.faa.gz"
    path.write_bytes(gzip.compress(b"\n>one two three\nmkw\nAC*\n>four\nX\n"))
    assert read_fasta(path) == [("one", "mkwAC"), ("four", "X")]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "got an empty file"),
        (b"MKW\n", "must begin with a > and a name, got 'MKW'"),
        (b">\nMKW\n", "record 1 must have a name of its own, got none"),
        (b">a\nM\n>a x\nK\n", "record 2 must have a name of its own, got 'a' twice"),
        (b">a\nM\n>b\n*\n", "record 'b' must have residues"),
        (gzip.compress(b">a\nMKW\n")[:-9], "must be plain or gzip text"),
        (b"\xff\xfe", "must be plain or gzip text"),
    ],
)
def test_broken_files_are_explained(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.fa"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_fasta(path)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


def test_records_to_score(tmp_path: Path) -> None:
    one, two = tmp_path / "1.fa", tmp_path / "2.fa"
    one.write_text(">a\nAXC\n")
    two.write_text(">b\nA-C\n")
    (record,) = ProteinReader().read([one], ProteinTokenizer())
    assert record.name == "a" and record.readings[0].tolist() == [0, 22, 1]
    with pytest.raises(ValueError, match=f"{two}: record 'b': a protein must hold"):
        ProteinReader().read([two], ProteinTokenizer())
    two.write_text(one.read_text())
    with pytest.raises(ValueError, match=f"{two}: record 'a' is in another file too"):
        ProteinReader().read([one, two], ProteinTokenizer())
    with pytest.raises(FileNotFoundError, match="existing FASTA file"):
        read_fasta(tmp_path / "none.fa")
