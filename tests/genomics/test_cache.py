import os
import pickle
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from Bio import bgzf

from genomics.io.genome import Genome, load_genome
from genomics.sequence.alphabet import decode, encode
from seqdiff.files import cache_folder, content_digest

TEXT = ">a\nACGTN\nacgt\n>b\nTTR\n"


def test_records_lie_back_to_back(fasta):
    genome = load_genome(fasta(TEXT))
    assert genome.names == ("a", "b")
    assert genome.lengths.tolist() == [9, 3]
    assert genome.offsets.tolist() == [0, 9]
    assert decode(genome.ids) == "ACGTNACGTTTN"
    assert decode(genome.record("b")) == "TTN"
    assert not genome.ids.flags.writeable


def test_an_unknown_record_is_named(fasta):
    genome = load_genome(fasta(TEXT))
    with pytest.raises(ValueError, match=r"must be one of a, b, got 'chrA'; check that both files"):
        genome.record("chrA")


def test_the_second_opening_parses_nothing(fasta, monkeypatch):
    path = fasta(TEXT)
    load_genome(path)
    monkeypatch.setattr("genomics.io.genome.read_encoded", None)
    assert decode(load_genome(path).ids) == "ACGTNACGTTTN"


def test_the_key_is_the_content(fasta, cache):
    first, copy, other = fasta(TEXT), fasta(TEXT), fasta(TEXT + ">c\nA\n")
    digests = {load_genome(path).digest for path in (first, copy)}
    assert len(digests) == 1
    assert len(list(cache.glob("*.dna"))) == 1
    assert load_genome(other).names == ("a", "b", "c")
    assert len(list(cache.glob("*.dna"))) == 2


def test_a_rewritten_file_is_read_anew(fasta):
    path = fasta(TEXT)
    load_genome(path)
    path.write_text(TEXT.replace("TTR", "GGG"))
    assert decode(load_genome(path).record("b")) == "GGG"


def test_the_digest_of_a_settled_file_is_remembered_until_it_is_touched(fasta, cache, monkeypatch):
    path = fasta(TEXT)
    old = time.time() - 100
    os.utime(path, (old, old))
    load_genome(path)
    digest = content_digest(path, cache)
    monkeypatch.setattr("seqdiff.files.hashlib.blake2b", None)
    assert content_digest(path, cache) == digest
    os.utime(path, (old + 1, old + 1))
    with pytest.raises(TypeError):
        content_digest(path, cache)


def test_a_fresh_file_is_not_remembered(fasta, cache):
    load_genome(fasta(TEXT))
    assert list(cache.glob("*.digest")) == []


@pytest.mark.parametrize("keep", [0, 10, 70, -1])
def test_a_cache_cut_short_is_written_anew(fasta, cache, keep):
    path = fasta(TEXT)
    load_genome(path)
    (cached,) = cache.glob("*.dna")
    whole = cached.read_bytes()
    cached.write_bytes(whole[:keep])
    with pytest.raises(ValueError, match="the cache file is damaged or was cut short; delete it"):
        Genome(cached, "")
    assert decode(load_genome(path).ids) == "ACGTNACGTTTN"
    assert cached.read_bytes() == whole


def test_a_damaged_index_is_noticed(fasta, cache):
    load_genome(fasta(TEXT))
    (cached,) = cache.glob("*.dna")
    data = bytearray(cached.read_bytes())
    data[-1] ^= 1
    cached.write_bytes(data)
    with pytest.raises(ValueError, match="damaged"):
        Genome(cached, "")


def test_a_bad_file_leaves_nothing_behind(fasta, cache):
    with pytest.raises(ValueError, match="'!' at offset 2 "):
        load_genome(fasta(">a\nAC!\n"))
    assert [left.suffix for left in cache.iterdir()] == [".lock"]


def test_two_processes_may_encode_the_same_file(fasta, cache):
    path = fasta(">a\n" + "ACGTTGCAAN" * 300_000 + "\n")
    code = (
        "import sys; from genomics.io.genome import load_genome; g = load_genome(sys.argv[1]); "
        "print(g.ids[:20].tolist(), int(g.lengths[0]), int(g.ids.sum()))"
    )
    start = [sys.executable, "-c", code, str(path)]
    both = [subprocess.Popen(start, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [process.communicate(timeout=60)[0] for process in both]
    ids = encode("ACGTTGCAAN" * 2).tolist()
    assert answers == [f"{ids} 3000000 {sum(ids) * 150_000}\n"] * 2
    assert sorted(left.suffix for left in cache.iterdir()) == [".dna", ".lock"]


def test_a_full_disk_leaves_no_half_written_cache(fasta, cache):
    path = fasta(">a\n" + "ACGT" * 500_000 + "\n")
    code = "import sys; from genomics.io.genome import load_genome; load_genome(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},  # the limit would truncate it
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    last = done.stderr.strip().splitlines()[-1]
    assert ".dna must be writable, got: File too large; free some space" in last
    assert [left.suffix for left in cache.iterdir()] == [".lock"]


def test_too_little_space_is_noticed_before_the_work(fasta, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("genomics.io.genome.shutil.disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"needs at least 21 bytes .* has 10; free some space or set"):
        load_genome(fasta(TEXT))


def test_a_cache_folder_that_cannot_be_made(fasta, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(OSError, match=r"cannot create the cache folder .*; set SEQDIFF_CACHE"):
        load_genome(fasta(TEXT))


def test_where_the_cache_is_by_default(monkeypatch):
    monkeypatch.delenv("SEQDIFF_CACHE")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/seqdiff")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "seqdiff"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache_folder() == Path.home() / "Library" / "Caches" / "seqdiff"


def test_a_mapped_genome_travels_as_a_path(fasta):
    genome = load_genome(fasta(">a\n" + "ACGT" * 10_000 + "\n"))
    packed = pickle.dumps(genome)
    assert len(packed) < 1000
    assert np.array_equal(pickle.loads(packed).ids, genome.ids)


def test_a_genome_in_memory_travels_whole():
    genome = Genome.from_records({"x": encode("ACN"), "y": encode("GG")})
    again = pickle.loads(pickle.dumps(genome))
    assert again.names == ("x", "y")
    assert decode(again.record("y")) == "GG"
    assert decode(again.ids) == "ACNGG"


def test_real_chromosome_ends_are_unknown(real_data):
    chr2 = load_genome(real_data / "hg38" / "chr2_1-2333275.fa.gz")
    assert chr2.names == ("chr2",)
    assert chr2.lengths.tolist() == [2_333_275]
    assert (chr2.ids[:10_000] == 4).all()
    assert decode(chr2.ids[9_995:10_020]) == "NNNNNCGTATCCCACACACCACACC"
    # Counted in the file with grep, tr and uniq, upper and lower case together.
    assert np.bincount(chr2.ids).tolist() == [644_113, 525_492, 518_831, 634_839, 10_000]
    chr20 = load_genome(real_data / "hg38" / "hg38_chr20_1-1000000.fa.gz")
    assert chr20.lengths.tolist() == [1_000_000]
    assert np.bincount(chr20.ids).tolist() == [256_114, 219_346, 214_315, 249_500, 60_725]
    assert (chr20.ids[:60_000] == 4).all() and chr20.ids[60_000] != 4


def test_bgzip_and_plain_text_are_one_genome(fasta, tmp_path):
    path = tmp_path / "x.fa.gz"
    with bgzf.open(path, "wb") as stream:
        stream.write(TEXT.encode())
    plain, packed = load_genome(fasta(TEXT)), load_genome(path)
    assert plain.digest != packed.digest
    assert np.array_equal(plain.ids, packed.ids)
