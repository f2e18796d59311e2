"""Labelled sequences: one record type for all formats, and test rows seen in training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from genomics.sequence import Interval, Regions, join, overlaps, reverse_complement, shares_word


class Row(NamedTuple):
    """A sequence and its class, as read from a file.

    Attributes:
        ids: Bases; unknown ones are the mask.
        label: Name of the class.
        interval: Its coordinates, whose ``chrom`` names genome and record; ``None`` if unknown.
        line: Line of the file, 1-based.
    """

    ids: UInt8[np.ndarray, " L"]
    label: str
    interval: Interval | None = None
    line: int = 1


Labels = Int64[np.ndarray, " n"] | Float64[np.ndarray, "n S"]


@dataclass(frozen=True)
class Labelled:
    """Sequences of any lengths, and their classes or measured values.

    Attributes:
        ids: Bases of each sequence.
        labels: Class number of each sequence; or its values, NaN where one is missing.
        intervals: Coordinates of each sequence, see ``Row``; ``None`` if unknown.
    """

    ids: tuple[UInt8[np.ndarray, " _"], ...]
    labels: Labels
    intervals: tuple[Interval, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """Number of bases of each sequence."""
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    def select(self, rows: Bool[np.ndarray, " n"] | Int64[np.ndarray, " m"]) -> Labelled:
        """Select rows.

        Args:
            rows: Indices, or a mask.
        """
        numbers = np.flatnonzero(rows) if rows.dtype == bool else rows
        intervals = self.intervals
        return Labelled(
            tuple(self.ids[i] for i in numbers),
            self.labels[numbers],
            None if intervals is None else tuple(intervals[i] for i in numbers),
        )


@dataclass(frozen=True)
class LabelledTask:
    """A task: classification, or regression if it has columns.

    Attributes:
        name: Name in tables.
        classes: Names of the classes, sorted; their order gives the class numbers. Empty for
            regression.
        train: Training set.
        valid: Validation set; ``None`` if it is split off ``train``.
        test: Test set.
        note: Remark on the splits for readers of the results; may be empty.
        columns: Names of the measured values of a regression; empty for classification.
    """

    name: str
    classes: tuple[str, ...]
    train: Labelled
    valid: Labelled | None
    test: Labelled
    note: str = ""
    columns: tuple[str, ...] = ()

    @property
    def fingerprint(self) -> str:
        """A digest of sequences, labels and coordinates, in their order.

        Coordinates are included because they determine which test rows occur in training.
        """
        digest = hashlib.sha256("\n".join(self.classes or self.columns).encode())
        for part in (self.train, self.valid, self.test):
            if part is None:
                continue
            digest.update(part.labels.tobytes() + part.lengths.tobytes())
            for ids in part.ids:
                digest.update(ids.tobytes())
            for place in part.intervals or ():
                digest.update(f"{place.chrom}\t{place.start}\t{place.end}\n".encode())
        return digest.hexdigest()[:16]


def number_classes(parts: Sequence[Sequence[Row]]) -> tuple[str, ...]:
    """Sort the names of the classes of all splits."""
    return tuple(sorted({row.label for part in parts for row in part}))


def gather(rows: Sequence[Row], classes: Sequence[str]) -> Labelled:
    """Convert rows to arrays."""
    number = {name: place for place, name in enumerate(classes)}
    labels = np.array([number[row.label] for row in rows], dtype=np.int64)
    intervals = tuple(row.interval for row in rows if row.interval is not None)
    return Labelled(
        tuple(row.ids for row in rows), labels, intervals if len(intervals) == len(rows) else None
    )


# Without coordinates, two sequences that share as many consecutive bases count as overlapping.
SHARED_BASES = 50


def either_strand(ids: UInt8[np.ndarray, " L"]) -> bytes:
    """Return the same key for a sequence and its reverse complement."""
    return min(ids.tobytes(), reverse_complement(ids).tobytes())


def seen_in_task(task: LabelledTask) -> Bool[np.ndarray, " n"]:
    """Mark the test rows of a task that occur in its training or validation set."""
    found = seen(task.train, task.test)
    return found if task.valid is None else found | seen(task.valid, task.test)


def seen(train: Labelled, test: Labelled) -> Bool[np.ndarray, " n"]:
    """Mark the rows of a test set that occur in another set.

    A row occurs there if the row or its reverse complement equals a sequence of the other set. If
    both sets have coordinates, a row also occurs there if it overlaps an interval of the other set.
    Otherwise it also occurs there if ``SHARED_BASES`` consecutive bases of it are in a sequence of
    the other set on either strand, which is typical of adjacent windows and of long repeats.
    """
    known = {either_strand(ids) for ids in train.ids}
    found = np.array([either_strand(ids) in known for ids in test.ids], dtype=bool)
    if train.intervals is not None and test.intervals is not None:
        return found | _overlapping(train.intervals, test.intervals)
    return found | shares_word(test.ids, join(train.ids), SHARED_BASES)


def _overlapping(train: Sequence[Interval], test: Sequence[Interval]) -> Bool[np.ndarray, " n"]:
    """Mark the test intervals that overlap a training interval on either strand."""
    names = sorted({interval.chrom for interval in (*train, *test)})
    return overlaps(Regions.from_intervals(test, names), Regions.from_intervals(train, names))
