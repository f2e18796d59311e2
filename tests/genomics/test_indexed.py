import gzip
import os

import pytest
from Bio import bgzf

from genomics.io.bed import read_bed
from genomics.io.genome import load_genome
from genomics.io.indexed import IndexedFasta
from genomics.sequence.alphabet import AMBIGUOUS, encode, reverse_complement
from genomics.sequence.intervals import Interval
from tests.genomics.conftest import random_dna

TEXT = b">a\nACGTN\nacgt\n>b\nTTR\n"


@pytest.mark.parametrize("kind", ["plain", "bgzip"])
def test_intervals_are_half_open_and_the_folder_stays_clean(tmp_path, cache, kind):
    path = tmp_path / "data" / ("x.fa" if kind == "plain" else "x.fa.gz")
    path.parent.mkdir()
    with path.open("wb") if kind == "plain" else bgzf.open(path, "wb") as stream:
        stream.write(TEXT)
    path.parent.chmod(0o555)
    fasta = IndexedFasta(path)
    assert fasta.lengths == {"a": 9, "b": 3}
    assert fasta.fetch(Interval("a", 3, 7)) == "TNac"
    assert fasta.fetch(Interval("b", 0, 3)) == "TTR"
    path.parent.chmod(0o755)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert {p.suffix for p in cache.iterdir()} == (
        {".fai"} if kind == "plain" else {".fai", ".gzi"}
    )
    assert IndexedFasta(path).fetch(Interval("a", 8, 9)) == "t"


def test_the_rows_of_a_bed_file_are_read_on_their_strand(fasta, tmp_path):
    """By hand: a is ACGTNacgt, b is TTR; R, a purine, pairs with Y."""
    bed = tmp_path / "x.bed"
    bed.write_text("a\t0\t6\tx\t0\t+\na\t0\t6\tx\t0\t-\nb\t0\t3\tx\t0\t-\nb\t1\t3\tx\t0\t.\n")
    opened = IndexedFasta(fasta(TEXT.decode()))
    rows = read_bed(bed, opened.lengths)
    assert [opened.fetch(row) for row in rows] == ["ACGTNa", "tNACGT", "YAA", "TR"]


def test_the_minus_strand_is_the_reverse_complement_of_every_letter(fasta):
    letters = "ACGT" + AMBIGUOUS + AMBIGUOUS.lower() + "acgt"
    opened = IndexedFasta(fasta(f">a\n{letters}\n"))
    minus = opened.fetch(Interval("a", 0, len(letters), strand="-"))
    assert (encode(minus) == reverse_complement(encode(letters))).all()
    again = IndexedFasta(fasta(f">a\n{minus}\n"))
    assert again.fetch(Interval("a", 0, len(letters), strand="-")) == letters


def test_bad_intervals(fasta):
    opened = IndexedFasta(fasta(TEXT.decode()))
    with pytest.raises(ValueError, match=r"no record 'c'; choose one of a, b"):
        opened.fetch(Interval("c", 0, 1))
    for start, end in ((5, 10), (9, 10)):
        with pytest.raises(ValueError, match=r"must lie inside a \(0\.\.9\), got"):
            opened.fetch(Interval("a", start, end))


@pytest.mark.parametrize("strand", ["+", "-"])
def test_a_letter_that_is_not_dna_is_named(fasta, strand):
    opened = IndexedFasta(fasta(">a\nACGTUACGT\n"))
    with pytest.raises(ValueError, match=r"record 'a': 'U' at offset 4 \(0-based"):
        opened.fetch(Interval("a", 2, 6, strand=strand))


def test_plain_gzip_names_the_command(tmp_path):
    path = tmp_path / "x.fa.gz"
    path.write_bytes(gzip.compress(TEXT))
    with pytest.raises(
        ValueError, match=r"plain gzip cannot be indexed; run: gunzip -c .* \| bgzip >"
    ):
        IndexedFasta(path)


def test_a_misleading_name(tmp_path):
    path = tmp_path / "x.fa"
    with bgzf.open(path, "wb") as stream:
        stream.write(TEXT)
    with pytest.raises(ValueError, match=r"must end in \.gz or \.bgz exactly when .*; rename it"):
        IndexedFasta(path)


@pytest.mark.parametrize(
    "text", [">a\nACGT\nA\nACGT\n", ">a\nAC\n>a\nGT\n", "", "hello\nworld\n", ">\nACGT\n"]
)
def test_files_that_cannot_be_indexed(fasta, cache, text):
    with pytest.raises(
        ValueError, match=r"cannot be indexed \(.+\); it must be FASTA with .* fetch it again if"
    ):
        IndexedFasta(fasta(text))
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("kept", [18, 100, 400, "block"])
def test_a_truncated_bgzip_file_is_refused_as_training_refuses_it(tmp_path, kept):
    path = tmp_path / "x.fa.gz"
    with bgzf.open(path, "wb") as stream:
        stream.write(b">a\n" + b"ACGT" * 50_000)
    data = path.read_bytes()
    path.write_bytes(data[:-28] if kept == "block" else data[:kept])
    for opened in (IndexedFasta, load_genome):
        with pytest.raises(
            ValueError, match=r"x\.fa\.gz: the bgzip file is truncated, .*; fetch it again"
        ):
            opened(path)


@pytest.mark.parametrize("place", [16, 40, 200])
def test_a_damaged_bgzip_file_is_one_line(tmp_path, cache, place):
    path = tmp_path / "x.fa.gz"
    with bgzf.open(path, "wb") as stream:
        stream.write(b">a\n" + random_dna(150_000).encode())
    data = bytearray(path.read_bytes())
    data[place] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.fa\.gz: cannot be indexed \(.+\); it must be FASTA"):
        IndexedFasta(path)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize(("text", "line"), [(">a\n>b\nAC\n", 1), (">a\nAC\n>b\n", 3)])
def test_a_record_without_bases_is_refused_as_training_refuses_it(fasta, text, line):
    path = fasta(text)
    for opened in (IndexedFasta, load_genome):
        with pytest.raises(ValueError, match=rf":{line}: record '[ab]' has no bases; remove"):
            opened(path)


def test_a_file_that_was_changed_in_place_is_indexed_again(fasta):
    """Path, size and inode are the same; only the time differs."""
    path = fasta(">a\nACGT\n>b\nTT\n")
    os.utime(path, ns=(1, 1))
    assert IndexedFasta(path).lengths == {"a": 4, "b": 2}
    with path.open("r+b") as stream:
        stream.write(b">a\nAC\n>b\nTTGT\n")
    os.utime(path, ns=(2, 2))
    changed = IndexedFasta(path)
    assert changed.lengths == {"a": 2, "b": 4}
    assert changed.fetch(Interval("b", 0, 4)) == "TTGT"


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        IndexedFasta(tmp_path / "x.fa")


def test_real_bgzip_agrees_with_the_cache(real_data):
    path = real_data / "hg38" / "chr2_1-2333275.fa.gz"
    letters = IndexedFasta(path).fetch(Interval("chr2", 1_000_003, 1_200_000))
    assert (encode(letters) == load_genome(path).record("chr2")[1_000_003:1_200_000]).all()
