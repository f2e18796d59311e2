import gzip

import pytest
from Bio import bgzf

from genomics.alphabet import encode
from genomics.cache import load_genome
from genomics.indexed import IndexedFasta

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
    assert fasta.fetch("a", 3, 7) == "TNac"
    assert fasta.fetch("b", 0, 3) == "TTR"
    path.parent.chmod(0o755)
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    assert {p.suffix for p in cache.iterdir()} == (
        {".fai"} if kind == "plain" else {".fai", ".gzi"}
    )
    assert IndexedFasta(path).fetch("a", 8, 9) == "t"


def test_bad_intervals(fasta):
    opened = IndexedFasta(fasta(TEXT.decode()))
    with pytest.raises(ValueError, match=r"no record 'c'; choose one of a, b"):
        opened.fetch("c", 0, 1)
    for start, end in ((-1, 2), (2, 2), (3, 2), (5, 10)):
        with pytest.raises(ValueError, match=r"must lie inside a \(0\.\.9\), got"):
            opened.fetch("a", start, end)


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


@pytest.mark.parametrize("text", [">a\nACGT\nA\nACGT\n", ">a\nAC\n>a\nGT\n"])
def test_files_that_cannot_be_indexed(fasta, cache, text):
    with pytest.raises(ValueError, match=r"cannot be indexed \(.+\); rewrite it with equal"):
        IndexedFasta(fasta(text))


def test_missing(tmp_path):
    with pytest.raises(FileNotFoundError, match="no such file"):
        IndexedFasta(tmp_path / "x.fa")


def test_real_bgzip_agrees_with_the_cache(real_data):
    path = real_data / "hg38" / "chr2_1-2333275.fa.gz"
    letters = IndexedFasta(path).fetch("chr2", 1_000_003, 1_200_000)
    assert (encode(letters) == load_genome(path).record("chr2")[1_000_003:1_200_000]).all()
