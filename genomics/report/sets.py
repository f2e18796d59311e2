"""The sets of sequences that a report compares, all with the number and lengths of the samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from genomics.baselines import MarkovModel
from genomics.data import WindowDataset
from genomics.finetune import SHARED_BASES
from genomics.io import Genome, read_templates
from genomics.sequence import MASK_ID, dinucleotide_shuffle, encode, join, shares_word
from seqdiff.data import SequenceDataModule, SequenceDataset

MIN_LENGTH = 20  # bases of the k-mers that are looked up in the training sequence
MIN_SAMPLES = 10  # two for each fold of the discriminator
_BLOCK_ROWS = 4096
_COUNT_BASES = 1 << 22  # bases counted at a time; the few k-mers across a cut are left out
# Bases of windows that are compared with the training sequence, at a time and in total.
_PIECE_BASES, _TRIED_BASES = 1 << 22, 1 << 25

Rows = list[UInt8[np.ndarray, " _"]]


@dataclass(frozen=True, eq=False)
class Sets:
    """Sets of sequences of the same number and lengths.

    Attributes:
        real: Windows of the reference; every other set is compared with them.
        others: Sets by name: samples, other real windows, their dinucleotide shuffles, and draws
            from a Markov chain fitted to the training sequence.
        training: The training sequence, with N between its parts.
        training_lengths: Bases of each training row.
        held_out: Whether the model was trained on none of the real windows.
        origin: Origin of the real windows, in words.
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
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not valid, or has too few sequences or one that is too short.
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
            "draw more, and move this file if it is in the way"
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
    """Cut real windows and create the sets to compare.

    Args:
        samples: Generated sequences.
        reference: Real sequence.
        data: Training data of the model.
        order: Order of the Markov chain.
        seed: Random seed.
        source: Name of the reference in error messages.

    Raises:
        ValueError: If the reference is too short for two sets of windows.
    """
    generator = np.random.default_rng(seed)
    lengths = [len(row) for row in samples]
    trained = data.dataset("train")
    training = join(list(_stretches(trained)))
    real = cut_windows(reference, lengths, trained, training, generator, str(source))
    pieces = (training[None, a : a + _COUNT_BASES] for a in range(0, len(training), _COUNT_BASES))
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
    """Yield the training sequence, with every base of overlapping windows once."""
    if isinstance(trained, WindowDataset):
        for start, end in _spans(trained, trained.genome):
            yield trained.genome.ids[start:end]
        return
    for first in range(0, len(trained), _BLOCK_ROWS):
        numbers = np.arange(first, min(first + _BLOCK_ROWS, len(trained)))
        yield from trained.rows(numbers)[0].astype(np.uint8)


def _row_lengths(trained: SequenceDataset) -> Int64[np.ndarray, " rows"]:
    if isinstance(trained, WindowDataset):
        windows = trained.windows
        return windows.end - windows.start
    return np.full(len(trained), trained.rows(np.arange(1))[0].shape[1])


def _spans(trained: WindowDataset, genome: Genome) -> Iterator[tuple[int, int]]:
    """Yield start and end of the merged training windows in the array of a genome."""
    regions = trained.regions()
    offsets = genome.offsets[regions.chrom]
    starts, ends = (offsets + regions.start).tolist(), (offsets + regions.end).tolist()
    yield from zip(starts, ends, strict=True)


@dataclass(frozen=True, eq=False)
class RealWindows:
    """Two disjoint sets of windows of a reference.

    Attributes:
        first: One window of each length.
        second: Other windows of the same lengths.
        held_out: Whether the model was trained on none of them.
        origin: How this was checked, in words.
    """

    first: Rows
    second: Rows
    held_out: bool
    origin: str


def cut_windows(
    reference: Genome,
    lengths: Sequence[int],
    trained: SequenceDataset,
    training: UInt8[np.ndarray, " N"],
    generator: np.random.Generator,
    source: str,
) -> RealWindows:
    """Cut windows that the model was not trained on if there are enough, otherwise any windows.

    If the reference is the training file, these are windows that overlap no training window.
    Otherwise they are windows that share no 50 consecutive bases with the training sequence on
    either strand (for windows below 100 bases: half a window, at least 20).

    Args:
        reference: Real sequence.
        lengths: Lengths of the windows; each is cut twice.
        trained: Training data set of the model.
        training: Its sequence, with N between its parts.
        generator: Random generator.
        source: Name of the reference in error messages.

    Raises:
        ValueError: If the reference is too short.
    """
    most, wanted = max(lengths), 2 * len(lengths)
    word = max(MIN_LENGTH, min(SHARED_BASES, most // 2))
    shared = f"{word} consecutive bases with the training sequence, on either strand"
    free = reference.ids != MASK_ID
    everywhere = _slots(reference, free, most, generator)
    if len(everywhere) < wanted:
        raise ValueError(
            f"{source}: a reference must have room for twice {len(lengths):,} windows of "
            f"{most:,} bases without N, got {int(free.sum()):,} known bases in records of at most "
            f"{int(reference.lengths.max()):,}; give a longer reference, or fewer or shorter "
            "samples"
        )
    if (
        isinstance(trained, WindowDataset)
        and reference.digest  # empty for genomes made in memory
        and trained.genome.digest == reference.digest
    ):
        for start, end in _spans(trained, reference):
            free[start:end] = False
        slots = _slots(reference, free, most, generator)
        origin = "from the file that the run was trained on, outside all training windows"
    else:
        slots, seen = _unseen(reference, everywhere, most, training, word, wanted)
        origin = f"none shares {shared}; {seen:,} windows that did were left out"
    held_out = len(slots) >= wanted
    chosen = (slots if held_out else everywhere)[:wanted].reshape(2, -1)
    first, second = (
        [reference.ids[a : a + n].copy() for a, n in zip(half, lengths, strict=True)]
        for half in chosen
    )
    if not held_out:
        count = int(shares_word([*first, *second], training, word).sum())
        origin = f"{count:,} of {wanted:,} share {shared}"
    return RealWindows(first, second, held_out, origin)


def _slots(
    reference: Genome, usable: Bool[np.ndarray, " N"], length: int, generator: np.random.Generator
) -> Int64[np.ndarray, " n"]:
    """Place adjacent windows of one length on usable bases; return their starts in random order."""
    cuts = np.zeros(len(usable) + 1, dtype=bool)
    cuts[reference.offsets] = True
    # Runs of usable bases within a record, and windows within these.
    edge = np.diff(np.concatenate([[False], usable, [False]]).astype(np.int8)) != 0
    bounds = np.flatnonzero(edge | (cuts & np.concatenate([usable, [False]])))
    starts = [np.zeros(0, dtype=np.int64)]
    for start, end in pairwise(bounds.tolist()):
        if usable[start] and end - start >= length:
            first = start + generator.integers((end - start) % length + 1)
            starts.append(np.arange(first, end - length + 1, length))
    return generator.permutation(np.concatenate(starts))


def _unseen(
    reference: Genome,
    slots: Int64[np.ndarray, " n"],
    length: int,
    training: UInt8[np.ndarray, " N"],
    word: int,
    wanted: int,
) -> tuple[Int64[np.ndarray, " _"], int]:
    """Select windows in order until enough of them share no k-mer with the training sequence.

    Returns:
        Starts of these windows, and the number of windows left out.
    """
    kept, seen, first = np.zeros(0, dtype=np.int64), 0, 0
    most = min(len(slots), max(wanted, _TRIED_BASES // length))
    while len(kept) < wanted and first < most:
        size = max(wanted, min(first, _PIECE_BASES // length))  # doubles the number tried
        tried = slots[first : min(first + size, most)]
        found = shares_word([reference.ids[a : a + length] for a in tried], training, word)
        kept, seen, first = np.append(kept, tried[~found]), seen + int(found.sum()), first + size
    return kept, seen
