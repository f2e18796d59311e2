"""A separate cache for every test, sequence files, and a run that designs from a table."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from genomics.sequence.alphabet import decode
from genomics.sequence.intervals import overlaps
from seqdiff.cli.app import main
from seqdiff.data.dataset import SPLITS

BASES = np.array(list("ACGT"))
DESIGN = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "design.yaml"
SMALL = [
    "--data.batch_size=32",
    "--backbone.d_model=16",
    "--backbone.n_layer=1",
    "--optim.lr=2e-2",
    "--optim.warmup_steps=5",
    "--ema_decay=0.9",
    "--trainer.max_steps=60",
    "--trainer.enable_progress_bar=false",
    "--trainer.val_check_interval=null",
    "--trainer.accelerator=cpu",
]


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


@pytest.fixture(scope="session")
def gc_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 sequences of 24 bases; their fraction of G and C is a logistic function of ``gc``.

    Its values lie between -3 and 3. The second value, ``noise``, says nothing and is often missing.
    """
    path = tmp_path_factory.mktemp("table") / "t.tsv"
    rng, lines = np.random.default_rng(0), ["name\tsequence\tgc\tnoise"]
    for row in range(600):
        value = rng.uniform(-3, 3)
        rich = 1 / (1 + np.exp(-value))
        chances = [(1 - rich) / 2, rich / 2, rich / 2, (1 - rich) / 2]
        text = "".join(rng.choice(BASES, size=24, p=chances))
        lines.append(f"r{row}\t{text}\t{value:.4f}\t{'' if row % 3 else rng.normal():.4}")
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def gc_run(gc_table: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run of the shipped configuration on that table; tests only read it."""
    run = tmp_path_factory.mktemp("design") / "run"
    data = [f"--data.table={gc_table}", "--data.signals=[gc, noise]"]
    assert main(["train", str(DESIGN), f"--output={run}", *SMALL, *data]) == 0
    return run
