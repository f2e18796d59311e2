"""The memory that a genome takes does not grow with the genome."""

import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from genomics.data.datamodules import FastaDataModule
from genomics.data.splits import shared_records
from genomics.io.fasta import write_fasta
from genomics.io.genome import load_genome
from genomics.sequence import Regions, decode
from genomics.variants import survey

MAPS = Path("/proc/self/smaps")
BASES, RECORDS = 1 << 24, 4
LITTLE = 3 << 20

pytestmark = pytest.mark.skipif(not MAPS.exists(), reason="only Linux tells what is in memory")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A FASTA file of 2^24 bases, of which the last of four records repeats the first."""
    ids = np.random.default_rng(0).integers(0, 4, (RECORDS, BASES // RECORDS), dtype=np.uint8)
    ids[3] = ids[0]
    path = tmp_path / "genome.fa"
    write_fasta(path, list("abcd"), [decode(row) for row in ids], width=1 << 20)
    return path


@pytest.fixture
def in_memory(cache: Path) -> Callable[[], int]:
    """Return how many bytes of this test's encoded genome are in the memory of this process."""
    entry = re.compile(rf"{re.escape(str(cache))}/\w+\.dna\n(?:\w.*\n)*?Rss: +(\d+) kB")

    def read() -> int:
        found = entry.findall(MAPS.read_text())
        assert found
        return 1024 * sum(map(int, found))

    return read


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give pages back after every read."""
    monkeypatch.setattr("genomics.io.genome._HELD_BYTES", 1)


def test_what_is_measured_grows_without_care(file: Path, in_memory: Callable[[], int]) -> None:
    genome = load_genome(file)
    assert in_memory() < LITTLE
    assert genome.ids[:: 1 << 12].sum() > 0  # reads one base of every page
    assert in_memory() >= BASES
    genome.count_reads(1, 1)
    assert in_memory() >= BASES
    genome.count_reads(64, 1)
    assert in_memory() < LITTLE
    assert genome.ids[-1] == genome.record("a")[-1]


def test_an_index_of_windows_leaves_no_genome_in_memory(
    file: Path, in_memory: Callable[[], int]
) -> None:
    data = FastaDataModule(file, 1024, stride=256, split=(1.0, 0.0, 0.0))
    assert len(data.dataset("train")) > 60_000
    assert in_memory() < LITTLE


@pytest.mark.parametrize("off_end", ["shift", "pad"])
def test_reading_rows_leaves_no_genome_in_memory(
    file: Path, in_memory: Callable[[], int], often: None, off_end: str
) -> None:
    data = FastaDataModule(file, 1000, off_end=off_end, split=(1.0, 0.0, 0.0))
    train, most = data.dataset("train"), 0
    for first in range(0, len(train), 16):
        train.rows(np.arange(first, min(first + 16, len(train))))
        most = max(most, in_memory()) if first % 4096 == 0 else most
    assert max(most, in_memory()) < LITTLE


def test_the_search_for_copies_leaves_no_genome_in_memory(
    file: Path, in_memory: Callable[[], int], often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genomics.data.splits._CHUNK_BASES", 1 << 18)
    genome = load_genome(file)
    regions = Regions.whole(genome.lengths)
    first, rest = regions.select(np.array([0])), regions.select(np.array([1, 2, 3]))
    assert shared_records(genome, first, genome, rest) == [("a", "d")]
    assert in_memory() < LITTLE


def test_checking_variants_leaves_no_genome_in_memory(
    file: Path, in_memory: Callable[[], int], often: None
) -> None:
    genome = load_genome(file)
    lines = ["##fileformat=VCFv4.2", "#CHROM\tPOS\tID\tREF\tALT\tQUAL\tFILTER\tINFO"]
    for position in range(1 << 15, BASES // RECORDS, 1 << 14):
        for name in "abcd":
            ref = decode(genome.record(name)[position : position + 1])
            lines.append(f"{name}\t{position + 1}\t.\t{ref}\t{'A' if ref != 'A' else 'C'}\t.\t.\t.")
    genome.count_reads(BASES, 1)
    vcf = file.with_suffix(".vcf")
    vcf.write_text("\n".join(lines) + "\n")
    assert survey([vcf], genome, 128).alleles == len(lines) - 2
    assert in_memory() < LITTLE


def peak(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_encoding_takes_the_memory_of_a_few_chunks(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genomics.io.fasta._CHUNK", 1 << 16)
    assert peak(lambda: load_genome(file)) < BASES // 4


def test_choosing_windows_takes_the_memory_of_their_index(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Starts and sizes take 12 bytes; one array of coordinates of all windows would take 8 more."""
    monkeypatch.setattr("genomics.sequence.intervals._PART_WINDOWS", 1 << 14)
    load_genome(file)
    data = FastaDataModule(file, 64, stride=16)
    most = peak(lambda: data.dataset("train"))
    train = data.dataset("train")
    assert len(train) > 800_000
    assert most < 18 * len(train)
    monkeypatch.setattr("genomics.data.windows._PART_WINDOWS", 1 << 14)
    assert peak(train.regions) < 4 * len(train)
