import gzip
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from Bio import SeqIO, bgzf

from genomics.io.fasta import read_encoded, read_templates, write_fasta, write_samples
from genomics.sequence.alphabet import decode


def records(path: Path) -> dict[str, str]:
    result: dict[str, str] = {}
    for name, ids in read_encoded(path):
        result[name] = result.get(name, "") + decode(list(ids))
    return result


def test_wrapped_lower_case_described_and_windows_lines(fasta):
    path = fasta(">chr1 first one\nACgt\nNNR\n\n>chr2\tx\r\nTT\r\nA\r\n")
    assert records(path) == {"chr1": "ACGTNNN", "chr2": "TTA"}


def test_no_final_newline_and_leading_blank_lines(fasta):
    assert records(fasta("\n\n>a\nAC\n>b\nG")) == {"a": "AC", "b": "G"}


@pytest.mark.parametrize("size", range(1, 12))
def test_chunks_may_end_anywhere(fasta, monkeypatch, size):
    monkeypatch.setattr("genomics.io.fasta._CHUNK", size)
    assert records(fasta(">a b\nACG\nTT\n>cc\r\nG\r\n\n>d\nNA")) == {
        "a": "ACGTT",
        "cc": "G",
        "d": "NA",
    }


@pytest.mark.parametrize("opened", [gzip.open, bgzf.open])
def test_gzip_and_bgzip_read_alike(tmp_path, opened):
    path = tmp_path / "x.fa.gz"
    with opened(path, "wb") as stream:
        stream.write(b">a\n" + b"ACGT" * 50_000 + b"\n>b\nTT\n")
    assert records(path) == {"a": "ACGT" * 50_000, "b": "TT"}


@pytest.mark.parametrize("opened", [gzip.open, bgzf.open])
@pytest.mark.parametrize("kept", [0.3, 0.9, "block"])
def test_truncated_compressed_files(tmp_path, opened, kept):
    path = tmp_path / "x.fa.gz"
    with opened(path, "wb") as stream:
        stream.write(b">a\n" + b"ACGT" * 50_000)
    data = path.read_bytes()
    # Without its last, empty block a bgzip file is still valid gzip.
    path.write_bytes(data[:-28] if kept == "block" else data[: int(len(data) * kept)])
    with pytest.raises(
        ValueError, match=r"x\.fa\.gz: the b?gzip file is truncated.*fetch it again"
    ):
        records(path)


def test_damaged_gzip(tmp_path):
    path = tmp_path / "x.fa.gz"
    data = bytearray(gzip.compress(b">a\n" + b"ACGTTGCA" * 5000))
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.fa\.gz: the gzip file is damaged \(.*fetch it again"):
        records(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the FASTA file is empty; it needs at least one record"),
        ("\n\n", "the FASTA file is empty"),
        ("ACGT\n", "not a FASTA file, its first line does not start with '>'"),
        (">a\nA\n>b\nC\n>a x\nG\n", "two records are named 'a', the first on line 1; give each"),
        (">\nACGT\n", "record 1 has no name; write it right after '>'"),
        (">a\nA\n> b\nACGT\n", "record 2 has no name"),
        (">a\n>b\nA\n", "record 'a' has no bases; remove its header"),
        (">a\nA\n>b", "record 'b' has no bases"),
        (">a\nAC\nGX\n", r"record 'a': 'X' at offset 3 \(0-based, in bases of the record\)"),
        (">a\nAC>b\nGT\n", "record 'a': '>' at offset 2 "),
        (">a\nAC\n>b\nAA CC\n", "record 'b': ' ' at offset 2 "),
        (">a\nMKVLE\n", "record 'a': 'L' at offset 3 "),
    ],
)
def test_bad_files_are_named_in_one_line(fasta, text, message):
    path = fasta(text)
    with pytest.raises(ValueError, match=message) as caught:
        records(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [*range(1, 12), 1 << 22])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n>a\nA\n\nC\n>b\nC\n>a x\nG\n", ":8: two records are named 'a', the first on line 2;"),
        (">x\nA\nC\n>\nACGT\n", ":4: record 2 has no name"),
        (">x\nA\r\n\r\n>a\r\n\r\n>b\nA\n", ":4: record 'a' has no bases"),
        (">x\nA\nA\n>a", ":4: record 'a' has no bases"),
        (">x\nA\n>y\nA\nGX\n", ":5: record 'y': 'X' at offset 2 "),
    ],
)
def test_the_line_is_named_wherever_chunks_end(fasta, monkeypatch, text, message, size):
    monkeypatch.setattr("genomics.io.fasta._CHUNK", size)
    path = fasta(text)
    with pytest.raises(ValueError, match=message) as caught:
        records(path)
    assert str(caught.value).startswith(f"{path}{message[:2]}")


def test_the_offset_counts_over_chunks(fasta, monkeypatch):
    monkeypatch.setattr("genomics.io.fasta._CHUNK", 4)
    with pytest.raises(ValueError, match="'!' at offset 11 "):
        records(fasta(">a\n" + "ACGT\n" * 2 + "ACG!\n"))


def test_missing_file_and_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.fa: no such file; check the path"):
        records(tmp_path / "nowhere.fa")
    with pytest.raises(ValueError, match="is a directory, not a file"):
        records(tmp_path)


def test_written_lines_are_wrapped(tmp_path):
    path = tmp_path / "out.fa"
    write_fasta(path, ["a first", "b"], ["ACGTACG", "NNT"], width=3)
    assert path.read_text() == ">a first\nACG\nTAC\nG\n>b\nNNT\n"


def test_an_independent_reader_agrees(tmp_path):
    path = tmp_path / "out.fasta"
    sequences = ["ACGT" * 40, "T" * 60, "G" * 61]
    write_samples(path, sequences, ["x", "y", "z"])
    assert [str(r.seq) for r in SeqIO.parse(path, "fasta")] == sequences
    assert max(len(line) for line in path.read_text().splitlines()) == 60


@pytest.mark.parametrize(
    ("names", "sequences", "message"),
    [
        (
            ["a"],
            ["A", "C"],
            r"write_fasta\.names must match sequences .* more sequences than names",
        ),
        ([], [], r"write_fasta\.names must not be empty, got none"),
        (["a", "a b"], ["A", "C"], r"unique, non-empty single lines, got 'a b'; rename it"),
        ([""], ["A"], r"unique, non-empty single lines, got ''"),
        ([" a"], ["A"], r"unique, non-empty single lines, got ' a'"),
        (["a\nb"], ["A"], r"unique, non-empty single lines, got 'a\\nb'"),
        (["a"], [""], r"sequences must not be empty, got '' for 'a'; leave the record out"),
        (["a"], ["AC\nG"], r"sequences\['a'\]: '\\n' at offset 2 "),
    ],
)
def test_bad_records_are_refused_before_writing(tmp_path, names, sequences, message):
    with pytest.raises(ValueError, match=message):
        write_fasta(tmp_path / "out.fa", names, sequences)
    assert list(tmp_path.iterdir()) == []


def test_width_and_compression_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"write_fasta\.width must be at least 1, got 0"):
        write_fasta(tmp_path / "out.fa", ["a"], ["A"], width=0)
    with pytest.raises(ValueError, match=r"must be uncompressed, got .*; write .* and run: bgzip"):
        write_fasta(tmp_path / "out.fa.gz", ["a"], ["A"])


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(OSError, match=r"no/out\.fa must be writable, got: No such file"):
        write_fasta(tmp_path / "no" / "out.fa", ["a"], ["A"])


def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path):
    """A limit on the file size fails a write like a full disk, with another error number."""
    path = tmp_path / "out.fa"
    path.write_text("old")
    code = (
        "import sys; from genomics.io.fasta import write_fasta; "
        "write_fasta(sys.argv[1], ['a'], ['ACGT' * 100_000])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # the limit would truncate it
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    last = done.stderr.strip().splitlines()[-1]
    assert f"OSError: [Errno 27] {path} must be writable, got: File too large" in last
    assert last.endswith("free some space or use another disk")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["out.fa"]


@pytest.mark.parametrize("opened", [open, gzip.open, bgzf.open])
def test_templates_keep_their_codes_in_upper_case(tmp_path, opened, monkeypatch):
    monkeypatch.setattr("genomics.io.fasta._CHUNK", 5)
    path = tmp_path / "t.fa"
    with opened(path, "wb") as stream:
        stream.write(b">a first\nacRy\r\nNbdhvT\n>b\nKMSW\n")
    assert read_templates(path) == [("a", "ACRYNBDHVT"), ("b", "KMSW")]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (">a\nACR\n>b\nAC\nGJ\n", r"record 'b': 'J' at offset 3 \(0-based"),
        (">a\nACU\n", r"record 'a': 'U' at offset 2"),
        ("", r"the FASTA file is empty"),
        (">a\nN\n>a\nN\n", r"two records are named 'a'"),
        (">a\n>b\nN\n", r"record 'a' has no bases"),
        ("ACGT\n", r"not a FASTA file"),
    ],
)
def test_files_that_are_no_templates(fasta, text, said):
    with pytest.raises(ValueError, match=said):
        read_templates(fasta(text))
