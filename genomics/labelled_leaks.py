"""Which rows of a labelled test set training has seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, UInt8

from .alphabet import reverse_complement
from .bed import Interval
from .kmers import join
from .labelled import Labelled
from .matches import shares_word

# Without coordinates, as many bases in a row are taken for the same place of a genome.
SHARED_BASES = 50


def either_strand(ids: UInt8[np.ndarray, " L"]) -> bytes:
    """Give one key to a sequence and its reverse complement.

    Args:
        ids: Letters.
    """
    return min(ids.tobytes(), reverse_complement(ids).tobytes())


def seen(train: Labelled, test: Labelled) -> Bool[np.ndarray, " n"]:
    """Find the rows of a test set that training has seen.

    A row is seen if it, or its reverse complement, is a training sequence letter for letter. Where
    both say where they were cut from, a row is also seen if it shares a base with a training
    interval; elsewhere, if ``SHARED_BASES`` in a row of it stand in a training sequence, on either
    strand, as those of neighbouring windows and of long repeats do.

    Args:
        train: What is learned from.
        test: What is measured on.
    """
    known = {either_strand(ids) for ids in train.ids}
    found = np.array([either_strand(ids) in known for ids in test.ids], dtype=bool)
    if train.intervals is not None and test.intervals is not None:
        return found | _overlapping(train.intervals, test.intervals)
    return found | shares_word(test.ids, join(train.ids), SHARED_BASES)


def _overlapping(train: Sequence[Interval], test: Sequence[Interval]) -> np.ndarray:
    """Say which test intervals share a base with a training interval, on either strand."""
    found = np.zeros(len(test), dtype=bool)
    for chrom in {interval.chrom for interval in test}:
        here = [i for i in train if i.chrom == chrom]
        asked = np.array([n for n, i in enumerate(test) if i.chrom == chrom])
        starts = np.sort(np.array([i.start for i in here]))
        ends = np.sort(np.array([i.end for i in here]))
        first = np.array([test[n].start for n in asked])
        last = np.array([test[n].end for n in asked])
        # Those that begin before the end, less those that end before the beginning.
        begun = np.searchsorted(starts, last, side="left")
        done = np.searchsorted(ends, first, side="right")
        found[asked] = begun > done
    return found
