"""How many bases a second one process reads through the training stream.

Reads encoded windows, half of them reverse-complemented, as finished batches of int64 tokens, loss
mask and index: exactly what a training step receives. Run ``python -m benchmarks.dna_loader``.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from genomics.alphabet import decode
from genomics.datamodules import FastaDataModule
from genomics.fasta import write_fasta

TARGET = 20e6


def synthetic_fasta(path: Path, bases: int) -> None:
    """Write a uniformly random genome of ten records."""
    ids = np.random.default_rng(0).integers(0, 4, (10, bases // 10), dtype=np.uint8)
    write_fasta(path, [f"chr{i + 1}" for i in range(10)], [decode(row) for row in ids])


def bases_per_second(data: FastaDataModule, seconds: float) -> float:
    """Read batches for a while, after one batch of warming up."""
    loader = iter(data.training_loader())
    next(loader)
    read, start = 0, time.perf_counter()
    for batch in itertools.takewhile(lambda _: time.perf_counter() - start < seconds, loader):
        read += batch.tokens.numel()
    return read / (time.perf_counter() - start)


def main() -> None:
    """Print one line a batch size."""
    parser = argparse.ArgumentParser(description="Loader speed on DNA windows.")
    parser.add_argument("--fasta", type=Path, help="read this file instead of a synthetic one")
    parser.add_argument("--length", type=int, default=1024, help="bases of a window")
    parser.add_argument(
        "--bases", type=int, default=50_000_000, help="size of the synthetic genome"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="time spent on each batch size")
    arguments = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}; one process, "
        f"target {TARGET / 1e6:.0f} M/s"
    )
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SEQDIFF_CACHE"] = folder
        fasta = arguments.fasta or Path(folder) / "synthetic.fa"
        if arguments.fasta is None:
            synthetic_fasta(fasta, arguments.bases)
        for batch_size in (8, 32, 128, 512):
            start = time.perf_counter()
            data = FastaDataModule(fasta, arguments.length, batch_size=batch_size)
            windows = len(data.dataset("train"))
            opened = time.perf_counter() - start
            rate = bases_per_second(data, arguments.seconds)
            print(
                f"batch {batch_size:4d} x {arguments.length}: {rate / 1e6:8.1f} M bases/s "
                f"({rate / TARGET:.1f}x the target); {windows:,} windows opened in {opened:.2f} s"
            )


if __name__ == "__main__":
    main()
