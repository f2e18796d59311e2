"""Labelled sequences: one record type for all formats, and test rows seen in training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, UInt8

from genomics.sequence import Interval, Regions, join, overlaps, reverse_complement, shares_word


class Row(NamedTuple):
    """A sequence and its class, as a reader finds them.

    Attributes:
        ids: Bases; unknown ones are the mask.
        label: Name of the class.
        interval: Where it was cut from, its ``chrom`` naming genome and record; ``None`` if the
            file does not say.
        line: Of the file, 1-based.
    """

    ids: UInt8[np.ndarray, " L"]
    label: str
    interval: Interval | None = None
    line: int = 1


@dataclass(frozen=True)
class Labelled:
    """Sequences of any lengths, and their classes.

    Attributes:
        ids: Bases of each.
        labels: Number of each one's class.
        intervals: Where they were cut from, see ``Row``; ``None`` if the form does not say.
    """

    ids: tuple[UInt8[np.ndarray, " _"], ...]
    labels: Int64[np.ndarray, " n"]
    intervals: tuple[Interval, ...] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Int64[np.ndarray, " n"]:
        """Bases of each."""
        return np.array([len(ids) for ids in self.ids], dtype=np.int64)

    def select(self, rows: Bool[np.ndarray, " n"] | Int64[np.ndarray, " m"]) -> Labelled:
        """Take some rows.

        Args:
            rows: Their numbers, or True for each that is taken.
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
    """A classification task.

    Attributes:
        name: As in tables.
        classes: Their names, sorted: the same numbers in every split and on every machine.
        train: What is learned from.
        valid: What the best epoch is chosen by; ``None`` if it is to be split off ``train``.
        test: What is measured on.
        note: What a reader of the numbers must know about the splits; may be empty.
    """

    name: str
    classes: tuple[str, ...]
    train: Labelled
    valid: Labelled | None
    test: Labelled
    note: str = ""

    @property
    def fingerprint(self) -> str:
        """A digest of all that results follow from: sequences, labels and places, in their order.

        The places count because the rows that training has seen are known by them.
        """
        digest = hashlib.sha256("\n".join(self.classes).encode())
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
    """Put rows into a record."""
    number = {name: place for place, name in enumerate(classes)}
    labels = np.array([number[row.label] for row in rows], dtype=np.int64)
    intervals = tuple(row.interval for row in rows if row.interval is not None)
    return Labelled(
        tuple(row.ids for row in rows), labels, intervals if len(intervals) == len(rows) else None
    )


# Without coordinates, as many bases in a row are taken for the same place of a genome.
SHARED_BASES = 50


def either_strand(ids: UInt8[np.ndarray, " L"]) -> bytes:
    """Give one key to a sequence and its reverse complement."""
    return min(ids.tobytes(), reverse_complement(ids).tobytes())


def seen_in_task(task: LabelledTask) -> Bool[np.ndarray, " n"]:
    """Find the rows of a task's test set that are seen in train or in its own validation set."""
    found = seen(task.train, task.test)
    return found if task.valid is None else found | seen(task.valid, task.test)


def seen(train: Labelled, test: Labelled) -> Bool[np.ndarray, " n"]:
    """Find the rows of a test set that are seen in another set.

    A row is seen if it, or its reverse complement, is a sequence of the other set base for
    base. Where both say where they were cut from, a row is also seen if it shares a base with an
    interval of the other; elsewhere, if ``SHARED_BASES`` in a row of it stand in a sequence of the
    other, on either strand, as those of neighbouring windows and of long repeats do.
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
