"""Which rows of a labelled test set training has seen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, UInt8

from .alphabet import reverse_complement
from .bed import Interval
from .intervals import Regions, overlaps
from .kmers import join
from .labelled import Labelled, LabelledTask
from .matches import shares_word

# Without coordinates, as many bases in a row are taken for the same place of a genome.
SHARED_BASES = 50


def either_strand(ids: UInt8[np.ndarray, " L"]) -> bytes:
    """Give one key to a sequence and its reverse complement.

    Args:
        ids: Letters.
    """
    return min(ids.tobytes(), reverse_complement(ids).tobytes())


def seen_in_task(task: LabelledTask) -> Bool[np.ndarray, " n"]:
    """Find the rows of a task's test set that are seen in train or in its own validation set.

    Args:
        task: The task.
    """
    found = seen(task.train, task.test)
    return found if task.valid is None else found | seen(task.valid, task.test)


def seen(train: Labelled, test: Labelled) -> Bool[np.ndarray, " n"]:
    """Find the rows of a test set that are seen in another set.

    A row is seen if it, or its reverse complement, is a sequence of the other set letter for
    letter. Where both say where they were cut from, a row is also seen if it shares a base with an
    interval of the other; elsewhere, if ``SHARED_BASES`` in a row of it stand in a sequence of the
    other, on either strand, as those of neighbouring windows and of long repeats do.

    Args:
        train: What is learned from, or chosen by.
        test: What is measured on.
    """
    known = {either_strand(ids) for ids in train.ids}
    found = np.array([either_strand(ids) in known for ids in test.ids], dtype=bool)
    if train.intervals is not None and test.intervals is not None:
        return found | _overlapping(train.intervals, test.intervals)
    return found | shares_word(test.ids, join(train.ids), SHARED_BASES)


def _overlapping(train: Sequence[Interval], test: Sequence[Interval]) -> Bool[np.ndarray, " n"]:
    """Say which test intervals share a base with a training interval, on either strand."""
    names = sorted({interval.chrom for interval in (*train, *test)})
    return overlaps(Regions.from_intervals(test, names), Regions.from_intervals(train, names))
