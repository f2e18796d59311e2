"""The sets of sequences that a report compares: as many and as long as the samples, each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Bool, UInt8

from seqdiff.data.datamodule import SequenceDataModule
from seqdiff.data.dataset import SequenceDataset

from ..alphabet import MASK_ID, encode
from ..cache import Genome
from ..dataset import WindowDataset
from ..fasta import read_templates
from ..intervals import merge
from ..kmers import join
from ..markov import MarkovModel
from ..shuffle import dinucleotide_shuffle

MIN_LENGTH = 20  # the words whose containment is measured
MIN_SAMPLES = 10  # two of each fold of the discriminator
_BLOCK_ROWS = 4096
_PIECE = 1 << 22  # bases whose words are counted at a time; the few across a cut are left out

Rows = list[UInt8[np.ndarray, " _"]]


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of sequences of the same number and lengths.

    Attributes:
        real: Windows of the reference, against which every other set is measured.
        others: Sets by name: what is generated, real windows again (disjoint from the first), their
            dinucleotide shuffles, and draws from a Markov chain fitted to the training sequence.
        training: The training sequence, N between its stretches.
        held_out: Whether no real window is part of it.
    """

    real: Rows
    others: dict[str, Rows]
    training: UInt8[np.ndarray, " N"] = field(repr=False)
    held_out: bool


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

    If the reference is the genome that the model was trained on, windows are cut where it was not,
    as long as there is room; otherwise anywhere.

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
    free = reference.ids != MASK_ID
    unseen = free & ~_trained_on(reference, trained)
    found = _windows(reference, unseen, lengths, generator)
    held_out = found is not None
    if found is None:
        found = _windows(reference, free, lengths, generator)
    if found is None:
        raise ValueError(
            f"{source}: a reference must have room for twice {len(lengths):,} windows of "
            f"{max(lengths):,} bases without N, got {int(free.sum()):,} known bases in records of "
            f"up to {int(reference.lengths.max()):,}; give a longer reference, or fewer or "
            "shorter samples"
        )
    real, again = found
    training = join(list(_stretches(trained)))
    pieces = (training[None, a : a + _PIECE] for a in range(0, len(training), _PIECE))
    chain = MarkovModel.fit(pieces, order, both_strands=True)
    longest = chain.sample(len(lengths), max(lengths), generator)
    others = {
        "samples": samples,
        "real vs real": again,
        "dinucleotide shuffle": [dinucleotide_shuffle(row[None], generator)[0] for row in again],
        f"Markov order {order}": [row[:n] for row, n in zip(longest, lengths, strict=True)],
    }
    return Sets(real, others, training, held_out)


def _trained_on(reference: Genome, trained: SequenceDataset) -> Bool[np.ndarray, " N"]:
    """Say which bases of the reference training windows hold, if they are cut from it."""
    seen = np.zeros(len(reference.ids), dtype=bool)
    if isinstance(trained, WindowDataset) and trained.genome.digest == reference.digest:
        regions = merge(trained.windows)
        starts = reference.offsets[regions.chrom] + regions.start
        for start, size in zip(starts, regions.end - regions.start, strict=True):
            seen[start : start + size] = True
    return seen


def _windows(
    reference: Genome, usable: np.ndarray, lengths: Sequence[int], generator: np.random.Generator
) -> tuple[Rows, Rows] | None:
    """Cut two windows of each length that share no base with any other, if there is room."""
    most = max(lengths)
    cuts = np.zeros(len(usable) + 1, dtype=bool)
    cuts[reference.offsets] = True
    # Stretches of usable bases within a record, and slots for windows within these.
    edge = np.diff(np.concatenate([[False], usable, [False]]).astype(np.int8)) != 0
    bounds = np.flatnonzero(edge | (cuts & np.concatenate([usable, [False]])))
    places = []
    for start, end in pairwise(bounds.tolist()):
        if usable[start] and end - start >= most:
            first = start + generator.integers((end - start) % most + 1)
            places.append(np.arange(first, end - most + 1, most))
    slots = np.concatenate([np.zeros(0, dtype=np.int64), *places])
    if len(slots) < 2 * len(lengths):
        return None
    chosen = generator.permutation(slots)[: 2 * len(lengths)].reshape(2, -1)
    real, again = (
        [reference.ids[a : a + n].copy() for a, n in zip(half, lengths, strict=True)]
        for half in chosen
    )
    return real, again


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
