"""The sets of sequences that a report compares: as many and as long as the samples, each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from genomics.baselines import MarkovModel
from genomics.data import WindowDataset
from genomics.io import Genome, read_templates
from genomics.report.windows import MIN_LENGTH, Rows, cut_windows
from genomics.sequence import dinucleotide_shuffle, encode, join, merge
from seqdiff.data import SequenceDataModule, SequenceDataset

MIN_SAMPLES = 10  # two of each fold of the discriminator
_BLOCK_ROWS = 4096
_PIECE = 1 << 22  # bases whose words are counted at a time; the few across a cut are left out


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of sequences of the same number and lengths.

    Attributes:
        real: Windows of the reference, against which every other set is measured.
        others: Sets by name: what is generated, real windows again (disjoint from the first), their
            dinucleotide shuffles, and draws from a Markov chain fitted to the training sequence.
        training: The training sequence, N between its stretches.
        training_lengths: Bases of each training row.
        held_out: Whether the model was trained on no real window.
        origin: Where the real windows come from, in words.
    """

    real: Rows
    others: dict[str, Rows]
    training: UInt8[np.ndarray, " N"] = field(repr=False)
    training_lengths: Int64[np.ndarray, " rows"]
    held_out: bool
    origin: str


def read_samples(path: Path) -> Rows:
    """Read generated sequences.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not sound FASTA of DNA, or has too few sequences or a short one.
    """
    records = read_templates(path)
    short = next((name for name, text in records if len(text) < MIN_LENGTH), None)
    if short is not None:
        raise ValueError(
            f"{path}: record {short!r} must have at least {MIN_LENGTH} bases, got "
            f"{len(dict(records)[short])}; draw longer sequences"
        )
    if len(records) < MIN_SAMPLES:
        raise ValueError(
            f"{path}: a report needs at least {MIN_SAMPLES} sequences, got {len(records)}; "
            "draw more"
        )
    return [encode(text) for _, text in records]


def build_sets(
    samples: Rows,
    reference: Genome,
    data: SequenceDataModule,
    order: int,
    seed: int,
    source: str | Path = "report.reference",
) -> Sets:
    """Cut real windows and make what they are compared with.

    Args:
        samples: What was generated.
        reference: Real sequence.
        data: What the model was trained on.
        order: Of the Markov chain.
        seed: Of all draws.
        source: Names the reference in messages.

    Raises:
        ValueError: If the reference has no room for two sets of windows.
    """
    generator = np.random.default_rng(seed)
    lengths = [len(row) for row in samples]
    trained = data.dataset("train")
    training = join(list(_stretches(trained)))
    real = cut_windows(reference, lengths, trained, training, generator, str(source))
    pieces = (training[None, a : a + _PIECE] for a in range(0, len(training), _PIECE))
    chain = MarkovModel.fit(pieces, order, both_strands=True)
    longest = chain.sample(len(lengths), max(lengths), generator)
    others = {
        "samples": samples,
        "real vs real": real.second,
        "dinucleotide shuffle": [
            dinucleotide_shuffle(row[None], generator)[0] for row in real.second
        ],
        f"Markov order {order}": [row[:n] for row, n in zip(longest, lengths, strict=True)],
    }
    return Sets(real.first, others, training, _row_lengths(trained), real.held_out, real.origin)


def _stretches(trained: SequenceDataset) -> Iterator[UInt8[np.ndarray, " _"]]:
    """Give the training sequence: of overlapping windows every base once."""
    if isinstance(trained, WindowDataset):
        genome, regions = trained.genome, merge(trained.windows)
        starts = genome.offsets[regions.chrom] + regions.start
        for start, size in zip(starts, regions.end - regions.start, strict=True):
            yield genome.ids[start : start + size]
        return
    for first in range(0, len(trained), _BLOCK_ROWS):
        numbers = np.arange(first, min(first + _BLOCK_ROWS, len(trained)))
        yield from trained.rows(numbers)[0].astype(np.uint8)


def _row_lengths(trained: SequenceDataset) -> Int64[np.ndarray, " rows"]:
    """Give the bases of each training row."""
    if isinstance(trained, WindowDataset):
        windows = trained.windows
        return windows.end - windows.start
    return np.full(len(trained), trained.rows(np.arange(1))[0].shape[1])
