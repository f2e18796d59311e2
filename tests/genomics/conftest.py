"""A separate cache for every test, and short ways to write and read sequence files."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from genomics.sequence.alphabet import decode
from genomics.sequence.intervals import overlaps
from seqdiff.data.dataset import SPLITS

BASES = np.array(list("ACGT"))


def random_dna(size: int, seed: int = 0) -> str:
    return "".join(BASES[np.random.default_rng(seed).integers(0, 4, size)])


def rows(data, split):
    dataset = data.dataset(split)
    return [decode(row) for row in dataset.rows(np.arange(len(dataset)))[0]]


def bed(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.bed"
    path.write_text(text)
    return path


def meets(data, split="train"):
    """Which windows of a split share a base with valid or test windows."""
    windows = {name: data.dataset(name).windows for name in SPLITS}
    others = [windows[name] for name in SPLITS if name != split]
    return overlaps(windows[split], others[0]) | overlaps(windows[split], others[1])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep encoded genomes out of the user's cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDIFF_CACHE", str(folder))
    return folder


@pytest.fixture
def fasta(tmp_path: Path) -> Callable[[str], Path]:
    """Write text to a new .fa file."""
    count = 0

    def write(text: str) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"genome{count}.fa"
        path.write_bytes(text.encode())
        return path

    return write


@pytest.fixture
def genome(fasta) -> Path:
    return fasta(f">a\n{random_dna(6000)}\n>b\n{random_dna(4000, 1)}\n>c\n{random_dna(90, 2)}\n")
