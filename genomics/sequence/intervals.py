"""Interval algebra and windows over many intervals at once, as arrays rather than objects.

Coordinates are 0-based half-open; a chromosome is its place in the genome's list of names.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64

OffEnd = Literal["shift", "drop", "pad"]

# Chromosomes laid on one line this far apart, so that one sort and one search serve them all.
_SPACING = 1 << 40


@dataclass(frozen=True, eq=False)
class Regions:
    """Intervals of any length.

    Attributes:
        chrom: Index of the chromosome.
        start: First base.
        end: One past the last base.
    """

    chrom: Int64[np.ndarray, " n"]
    start: Int64[np.ndarray, " n"]
    end: Int64[np.ndarray, " n"]

    def __len__(self) -> int:
        """Count the intervals."""
        return len(self.chrom)

    def select(self, chosen: Bool[np.ndarray, " n"] | Int64[np.ndarray, " m"]) -> Regions:
        """Keep some intervals, by mask or by place."""
        return Regions(self.chrom[chosen], self.start[chosen], self.end[chosen])

    @classmethod
    def from_intervals(cls, intervals: Sequence[Interval], names: Sequence[str]) -> Regions:
        """Convert intervals whose chromosomes are all among ``names``."""
        place = {name: i for i, name in enumerate(names)}
        rows = [(place[i.chrom], i.start, i.end) for i in intervals]
        chrom, start, end = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
        return cls(chrom, start, end)

    @classmethod
    def whole(cls, lengths: Int64[np.ndarray, " R"]) -> Regions:
        """Cover every chromosome from end to end."""
        return cls(np.arange(len(lengths)), np.zeros_like(lengths), lengths.copy())


@dataclass(frozen=True, eq=False)
class Windows(Regions):
    """Intervals that a data set reads as rows of one length.

    Attributes:
        length: Tokens of a row. A window whose end is nearer than that is filled up with the mask.
    """

    length: int

    def select(self, chosen: Bool[np.ndarray, " n"] | Int64[np.ndarray, " m"]) -> Windows:
        """Keep some windows, by mask or by place."""
        return Windows(self.chrom[chosen], self.start[chosen], self.end[chosen], self.length)


def merge(regions: Regions) -> Regions:
    """Join intervals that overlap or touch; the result is sorted and disjoint."""
    starts, ends = _on_a_line(regions)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] > ends[:-1]
    last = np.append(first[1:], True)[: len(first)]
    chrom, start = np.divmod(starts[first], _SPACING)
    return Regions(chrom, start, ends[last] - chrom * _SPACING)


def overlaps(regions: Regions, others: Regions) -> Bool[np.ndarray, " n"]:
    """Tell which intervals share at least one base with any of the others."""
    if len(others) == 0:
        return np.zeros(len(regions), dtype=bool)
    starts, ends = _on_a_line(regions)
    other_starts, other_ends = _on_a_line(merge(others))
    place = np.searchsorted(other_ends, starts, side="right")
    found = place < len(other_ends)
    return found & (other_starts[np.where(found, place, 0)] < ends)


def tile(regions: Regions, length: int, stride: int, off_end: OffEnd) -> Windows:
    """Slide windows over each interval; no window leaves its interval.

    Args:
        regions: Where windows may lie.
        length: Tokens of a window.
        stride: From one window's start to the next.
        off_end: What becomes of the first window that would pass an interval's end: ``shift`` moves
            it back inside (an interval shorter than a window has none), ``drop`` leaves it out,
            ``pad`` keeps its part inside and fills it up with the mask.

    Raises:
        ValueError: If length or stride is below 1, or the policy is unknown.
    """
    check_tiling("tile", length, stride, off_end)
    size = regions.end - regions.start
    inside = np.maximum(0, (size - length) // stride + 1)
    rest = inside * stride < size
    covered = (inside > 0) & ((inside - 1) * stride + length >= size)
    one_more = {
        "drop": np.zeros_like(rest),
        "shift": rest & ~covered & (size >= length),
        "pad": rest & ~covered,
    }[off_end]
    count = inside + one_more
    row = np.repeat(np.arange(len(regions)), count)
    place = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
    start, limit = regions.start[row] + place * stride, regions.end[row]
    if off_end == "shift":
        start = np.minimum(start, limit - length)
    return Windows(regions.chrom[row], start, np.minimum(start + length, limit), length)


def check_tiling(owner: str, length: int, stride: int, off_end: OffEnd) -> None:
    """Check what ``tile`` will be asked, before slow work.

    Args:
        owner: Who was given the arguments, for the message.
        length: Tokens of a window.
        stride: From one window's start to the next.
        off_end: What becomes of a window that would pass an interval's end.

    Raises:
        ValueError: If length or stride is below 1, or the policy is unknown.
    """
    for name, size in (("length", length), ("stride", stride)):
        if size < 1:
            raise ValueError(f"{owner}.{name} must be at least 1, got {size}; give it in bases")
    if off_end not in ("shift", "drop", "pad"):
        raise ValueError(f"{owner}.off_end must be shift, drop or pad, got {off_end!r}; choose one")


def extended_windows(
    regions: Regions, chrom_lengths: Int64[np.ndarray, " R"], length: int, extent: int
) -> Windows:
    """Cut ``extent`` bases from each start into windows, whatever the interval's own end.

    Windows past the end of a chromosome are shifted inside, so several may coincide there. This is
    the windowing of the published HG38 set (Schiff et al. 2024, arXiv:2403.03234; Nguyen et al.
    2023, arXiv:2306.15794).

    Args:
        regions: Only chromosome and start matter.
        chrom_lengths: Bases of each chromosome.
        length: Tokens of a window.
        extent: Bases read from each start, a multiple of ``length``.

    Raises:
        ValueError: If ``length`` does not divide ``extent``, or a chromosome is shorter than it.
    """
    if length < 1 or extent % length:
        raise ValueError(
            f"extended_windows.length must divide {extent}, got {length}; use a power of two"
        )
    shortest = int(chrom_lengths[regions.chrom].min(initial=length))
    if shortest < length:
        raise ValueError(
            f"extended_windows.length must not exceed the shortest chromosome in use ({shortest} "
            f"bases), got {length}; use a shorter length or remove that chromosome"
        )
    steps = np.arange(0, extent, length)
    chrom = np.repeat(regions.chrom, len(steps))
    start = (regions.start[:, None] + steps).ravel()
    start = np.minimum(start, chrom_lengths[chrom] - length)
    return Windows(chrom, start, start + length, length)


def _on_a_line(regions: Regions) -> tuple[np.ndarray, np.ndarray]:
    shift = regions.chrom * _SPACING
    return shift + regions.start, shift + regions.end


@dataclass(frozen=True)
class Interval:
    """A stretch of a chromosome, 0-based half-open.

    Attributes:
        chrom: Chromosome name.
        start: First base.
        end: One past the last base.
        name: The row's label, for instance its split; empty when it has none.
        strand: '+', '-', or '.' when it has none. ``IndexedFasta.fetch`` reads on it; data modules,
            which read the plus strand or either at random, do not look at it.
    """

    chrom: str
    start: int
    end: int
    name: str = ""
    strand: str = "."

    def __post_init__(self) -> None:
        """Check the interval.

        Raises:
            ValueError: If it is empty, reversed or negative, or the strand is not one.
        """
        if self.start < 0:
            raise ValueError(
                f"Interval.start must not be negative, got {self.start}; "
                "BED is 0-based, the first base is 0"
            )
        if self.start >= self.end:
            raise ValueError(
                f"Interval.start must be below end, got [{self.start}, {self.end}); "
                "BED is half-open, one base is [p, p + 1)"
            )
        if self.strand not in STRAND_SYMBOLS:
            raise ValueError(
                f"Interval.strand must be one of {', '.join(STRAND_SYMBOLS)}, got {self.strand!r}; "
                "check the column order"
            )


STRAND_SYMBOLS = ("+", "-", ".")
