"""The training data loader, compared with a loader that reads one sequence at a time.

Both sides return the same finished batches of int64 tokens and loss mask in the same order, with
the same windows reverse-complemented. The other side works as training code usually does. It
fetches the string of a window with pyfaidx, complements and encodes it base by base, and stacks the
windows. Its windows and strands are chosen before the timing starts. Run ``python -m
benchmarks.loader``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pyfaidx
import torch
from torch import Tensor

from benchmarks.common import (
    Ratio,
    Side,
    begin,
    interleave,
    make_parser,
    positive,
    print_table,
    require_same,
    write_json,
)
from genomics.data import FastaDataModule
from genomics.io import write_fasta
from genomics.sequence import decode
from seqdiff.rng import AUGMENT_STREAM, CounterNoise
from seqdiff.types import Batch

TARGET = 20e6
IDS = {"A": 0, "C": 1, "G": 2, "T": 3}
COMPLEMENT = {"A": "T", "C": "G", "G": "C", "T": "A"}
CHECKED, OUR_BATCHES = 3, 20


def synthetic_fasta(path: Path, bases: int) -> None:
    """Write a uniformly random genome of ten records."""
    ids = np.random.default_rng(0).integers(0, 4, (10, bases // 10), dtype=np.uint8)
    write_fasta(path, [f"chr{i + 1}" for i in range(10)], [decode(row) for row in ids])


@dataclass(frozen=True)
class Request:
    """One example that the plain loader has to read."""

    record: str
    start: int
    end: int
    flipped: bool


def requests(data: FastaDataModule, count: int) -> list[Request]:
    """Return the first examples of the training stream, computed without the stream."""
    dataset = data.dataset("train")
    windows, names = dataset.windows, dataset.genome.names
    epochs = range(-(-count // len(dataset)))
    order = [np.random.default_rng((data.seed, e)).permutation(len(dataset)) for e in epochs]
    coins = CounterNoise(data.seed).uniform(torch.arange(count), 1, stream=AUGMENT_STREAM)[:, 0]
    return [
        Request(names[windows.chrom[i]], int(windows.start[i]), int(windows.end[i]), coin < 0.5)
        for i, coin in zip(np.concatenate(order)[:count], coins.tolist(), strict=True)
    ]


def plain_row(fasta: pyfaidx.Fasta, asked: Request, length: int) -> Tensor:
    """Read, orient and encode one window base by base."""
    letters = str(fasta[asked.record][asked.start : asked.end]).upper()
    letters += "N" * (length - len(letters))
    if asked.flipped:
        letters = "".join(COMPLEMENT.get(letter, "N") for letter in reversed(letters))
    return torch.tensor([IDS.get(letter, len(IDS)) for letter in letters])


def plain_batches(
    fasta: pyfaidx.Fasta, asked: list[Request], batch_size: int, length: int
) -> Iterator[dict[str, Tensor]]:
    """Yield batches, starting again when all have been read."""
    while True:
        for first in range(0, len(asked), batch_size):
            rows = [plain_row(fasta, r, length) for r in asked[first : first + batch_size]]
            tokens = torch.stack(rows)
            yield {"tokens": tokens, "loss_mask": tokens != len(IDS)}


def as_numbers(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a batch as tensors for ``require_same``."""
    return {name: tensor.double() for name, tensor in batch.items()}


def our_batches(data: FastaDataModule) -> Iterator[Batch]:
    """Yield the batches of a training run."""
    return iter(data.training_loader())


def compare(fasta: Path, length: int, batch_size: int, pairs: int) -> Ratio:
    """Return the seconds per batch of both sides, after comparing a few batches."""
    data = FastaDataModule(fasta, length, batch_size=batch_size)
    asked = requests(data, batch_size * max(CHECKED, pairs + 1))
    with pyfaidx.Fasta(str(fasta), as_raw=True) as opened:
        ours, theirs = our_batches(data), plain_batches(opened, asked, batch_size, length)
        for _ in range(CHECKED):
            batch = next(ours)
            seen = as_numbers({"tokens": batch.tokens, "loss_mask": batch.loss_mask})
            require_same(f"batch {batch_size}", seen, as_numbers(next(theirs)), tolerance=0)
        sides = [
            Side("ours", lambda: next(ours), calls=OUR_BATCHES),
            Side("plain", lambda: next(theirs)),
        ]
        seconds = interleave(sides, pairs)
    return Ratio(seconds["ours"], seconds["plain"])


def main(arguments: list[str] | None = None) -> None:
    """Print one line per batch size and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("--fasta", type=Path, help="read this file instead of a synthetic one")
    parser.add_argument("--length", type=positive, default=1024, help="bases of a window")
    parser.add_argument(
        "--bases", type=positive, default=50_000_000, help="size of the synthetic genome"
    )
    parser.add_argument("--batch", type=positive, nargs="+", default=[8, 32, 128, 512])
    options = parser.parse_args(arguments)
    described = begin()
    print(f"one process, windows of {options.length} bases, target {TARGET / 1e6:.0f} M bases/s")
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, SEQDIFF_CACHE=folder):
        fasta = Path(folder) / "genome.fa"
        if options.fasta is None:
            synthetic_fasta(fasta, options.bases)
        else:  # linked, because pyfaidx writes its index beside the file
            fasta = Path(folder) / options.fasta.name
            fasta.symlink_to(options.fasta.resolve())
        ratios = {b: compare(fasta, options.length, b, options.pairs) for b in options.batch}
    rows, results = [], []
    for batch, ratio in ratios.items():
        ours, theirs = (batch * options.length / s for s in (ratio.seconds, ratio.their_seconds))
        rate = (f"{ours / 1e6:.1f}", f"{theirs / 1e6:.3f}", f"{ours / TARGET:.1f}x")
        rows.append((str(batch), *rate, str(ratio)))
        results.append({"batch": batch, "bases_per_second": ours, **ratio.record()})
    header = ("batch", "ours M bases/s", "plain M bases/s", "of target", "ratio (over pairs)")
    print_table(header, rows)
    settings = {
        "fasta": "synthetic" if options.fasta is None else options.fasta.name,
        "length": options.length,
        "pairs": options.pairs,
    }
    write_json(options.json, "loader", described, settings, results)


if __name__ == "__main__":
    main()
