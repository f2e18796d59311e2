"""Real windows to compare with: not of what the model was trained on, as far as there is other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from genomics.data import WindowDataset
from genomics.finetune import SHARED_BASES
from genomics.io import Genome
from genomics.sequence import MASK_ID, merge, shares_word
from seqdiff.data import SequenceDataset

MIN_LENGTH = 20  # the words whose containment is measured
# Bases of windows that are looked up in the training sequence: at a time, and altogether.
_PIECE_BASES, _TRIED_BASES = 1 << 22, 1 << 25

Rows = list[UInt8[np.ndarray, " _"]]


@dataclass(frozen=True, eq=False)
class RealWindows:
    """Two sets of windows of a reference that share no base with one another.

    Attributes:
        first: One of each length.
        second: The same, elsewhere.
        held_out: Whether the model was trained on none of them.
        origin: How that is known, in words.
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
    """Cut windows where the model was not trained, as long as there is room; otherwise anywhere.

    In the very file that the model was trained on, these are the windows without a base of a
    training window. Of any other file they are those that share no 50 bases in a row with the
    training sequence on either strand (of windows under 100 bases: half a window, at least 20),
    whatever names the records have.

    Args:
        reference: Real sequence.
        lengths: Of the windows; each is cut twice.
        trained: What the model was trained on.
        training: Its sequence, N between its stretches.
        generator: Of the draws.
        source: Names the reference in messages.

    Raises:
        ValueError: If the reference has no room for so many windows.
    """
    most, wanted = max(lengths), 2 * len(lengths)
    word = max(MIN_LENGTH, min(SHARED_BASES, most // 2))
    shared = f"{word} bases in a row with the training sequence, on either strand"
    free = reference.ids != MASK_ID
    everywhere = _slots(reference, free, most, generator)
    if len(everywhere) < wanted:
        raise ValueError(
            f"{source}: a reference must have room for twice {len(lengths):,} windows of "
            f"{most:,} bases without N, got {int(free.sum()):,} known bases in records of up to "
            f"{int(reference.lengths.max()):,}; give a longer reference, or fewer or shorter "
            "samples"
        )
    if _is_same_file(reference, trained):
        slots = _slots(reference, free & ~_covered(reference, trained), most, generator)
        origin = "of the file that the run was trained on, where no training window lies"
    else:
        slots, seen = _unseen(reference, everywhere, most, training, word, wanted)
        origin = f"none shares {shared}; {seen:,} that did were left out"
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


def _is_same_file(reference: Genome, trained: SequenceDataset) -> bool:
    """Whether training windows have their coordinates in the reference."""
    if not isinstance(trained, WindowDataset):
        return False
    return trained.genome.digest != "" and trained.genome.digest == reference.digest


def _covered(reference: Genome, trained: SequenceDataset) -> Bool[np.ndarray, " N"]:
    """Say which bases training windows hold."""
    assert isinstance(trained, WindowDataset)
    seen = np.zeros(len(reference.ids), dtype=bool)
    regions = merge(trained.windows)
    starts = reference.offsets[regions.chrom] + regions.start
    for start, size in zip(starts, regions.end - regions.start, strict=True):
        seen[start : start + size] = True
    return seen


def _slots(
    reference: Genome, usable: Bool[np.ndarray, " N"], length: int, generator: np.random.Generator
) -> Int64[np.ndarray, " n"]:
    """Lay places of one length side by side on usable bases, in random order."""
    cuts = np.zeros(len(usable) + 1, dtype=bool)
    cuts[reference.offsets] = True
    # Stretches of usable bases within a record, and places within these.
    edge = np.diff(np.concatenate([[False], usable, [False]]).astype(np.int8)) != 0
    bounds = np.flatnonzero(edge | (cuts & np.concatenate([usable, [False]])))
    places = [np.zeros(0, dtype=np.int64)]
    for start, end in pairwise(bounds.tolist()):
        if usable[start] and end - start >= length:
            first = start + generator.integers((end - start) % length + 1)
            places.append(np.arange(first, end - length + 1, length))
    return generator.permutation(np.concatenate(places))


def _unseen(
    reference: Genome,
    slots: Int64[np.ndarray, " n"],
    length: int,
    training: UInt8[np.ndarray, " N"],
    word: int,
    wanted: int,
) -> tuple[Int64[np.ndarray, " _"], int]:
    """Take places in turn until enough share no word with the training sequence.

    Returns:
        Those, as far as there are, and how many were passed over.
    """
    kept, seen, first = np.zeros(0, dtype=np.int64), 0, 0
    most = min(len(slots), max(wanted, _TRIED_BASES // length))
    while len(kept) < wanted and first < most:
        size = max(wanted, min(first, _PIECE_BASES // length))  # as many again as so far
        tried = slots[first : min(first + size, most)]
        found = shares_word([reference.ids[a : a + length] for a in tried], training, word)
        kept, seen, first = np.append(kept, tried[~found]), seen + int(found.sum()), first + size
    return kept, seen
