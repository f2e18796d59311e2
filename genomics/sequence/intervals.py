"""Intervals, and vectorised interval algebra and windows.

Coordinates are 0-based half-open. Arrays name a chromosome by its index in the genome's names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Int64

OffEnd = Literal["shift", "drop", "pad"]

# Distance of chromosomes on a common line, so that one sort and one search cover all of them.
_SPACING = 1 << 40
_PART_WINDOWS = 1 << 18
_STRANDS = ("+", "-", ".")


@dataclass(frozen=True)
class Interval:
    """An interval of a chromosome, 0-based half-open.

    Attributes:
        chrom: Chromosome name.
        start: First base.
        end: One past the last base.
        name: Label of the row, for instance its split, or empty.
        strand: '+', '-', or '.' for none. ``IndexedFasta.fetch`` uses it; data modules ignore it.
    """

    chrom: str
    start: int
    end: int
    name: str = ""
    strand: str = "."

    def __post_init__(self) -> None:
        """Check the interval."""
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
        if self.strand not in _STRANDS:
            raise ValueError(
                f"Interval.strand must be one of {', '.join(_STRANDS)}, got {self.strand!r}; "
                "check the column order"
            )


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
        """Number of intervals."""
        return len(self.chrom)

    def select(self, chosen: Bool[np.ndarray, " n"] | Int64[np.ndarray, " m"]) -> Regions:
        """Select intervals by mask or index."""
        return Regions(self.chrom[chosen], self.start[chosen], self.end[chosen])

    @classmethod
    def from_intervals(cls, intervals: Sequence[Interval], names: Sequence[str]) -> Regions:
        """Convert intervals whose chromosomes are all among ``names``."""
        index = {name: i for i, name in enumerate(names)}
        rows = [(index[i.chrom], i.start, i.end) for i in intervals]
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
        length: Tokens of a row. Shorter windows are padded with the mask.
    """

    length: int

    def select(self, chosen: Bool[np.ndarray, " n"] | Int64[np.ndarray, " m"]) -> Windows:
        """Select windows by mask or index."""
        return Windows(self.chrom[chosen], self.start[chosen], self.end[chosen], self.length)


def merge(regions: Regions) -> Regions:
    """Join intervals that overlap or touch and sort them."""
    starts, ends = _on_a_line(regions)
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.ones(len(starts), dtype=bool)
    first[1:] = starts[1:] > ends[:-1]
    last = np.append(first[1:], True)[: len(first)]
    chrom, start = np.divmod(starts[first], _SPACING)
    return Regions(chrom, start, ends[last] - chrom * _SPACING)


def merge_parts(parts: Iterable[Regions]) -> Regions:
    """Join all intervals of many parts as ``merge`` does, with one part in memory at a time."""
    nothing = np.zeros(0, dtype=np.int64)
    merged = Regions(nothing, nothing, nothing)
    for part in parts:
        more = merge(part)
        merged = merge(
            Regions(
                np.concatenate([merged.chrom, more.chrom]),
                np.concatenate([merged.start, more.start]),
                np.concatenate([merged.end, more.end]),
            )
        )
    return merged


def overlaps(regions: Regions, others: Regions) -> Bool[np.ndarray, " n"]:
    """Return which intervals share at least one base with any of the others."""
    if len(others) == 0:
        return np.zeros(len(regions), dtype=bool)
    starts, ends = _on_a_line(regions)
    other_starts, other_ends = _on_a_line(merge(others))
    index = np.searchsorted(other_ends, starts, side="right")
    found = index < len(other_ends)
    return found & (other_starts[np.where(found, index, 0)] < ends)


def tile(regions: Regions, length: int, stride: int, off_end: OffEnd) -> Windows:
    """Cut each interval into windows that lie inside it.

    Args:
        regions: The intervals.
        length: Tokens of a window.
        stride: Distance between the starts of windows.
        off_end: Policy for the first window that passes an interval's end: ``shift`` moves it
            inside (an interval shorter than a window has none), ``drop`` leaves it out, ``pad``
            truncates it and pads the row with the mask.

    Raises:
        ValueError: If length or stride is below 1, or the policy is unknown.
    """
    count = count_windows(regions, length, stride, off_end)
    return _tile(regions, count, np.arange(count.sum()), length, stride, off_end)


def tile_in_parts(regions: Regions, length: int, stride: int, off_end: OffEnd) -> Iterator[Windows]:
    """Yield the windows of ``tile`` in parts of at most 2^18, at least one part.

    Raises:
        ValueError: If length or stride is below 1, or the policy is unknown.
    """
    count = count_windows(regions, length, stride, off_end)
    total = int(count.sum())
    for first in range(0, max(1, total), _PART_WINDOWS):
        numbers = np.arange(first, min(first + _PART_WINDOWS, total))
        yield _tile(regions, count, numbers, length, stride, off_end)


def count_windows(
    regions: Regions, length: int, stride: int, off_end: OffEnd
) -> Int64[np.ndarray, " n"]:
    """Return the number of windows that ``tile`` cuts from each interval.

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
    return inside + one_more


def _tile(
    regions: Regions,
    count: np.ndarray,
    numbers: np.ndarray,
    length: int,
    stride: int,
    off_end: OffEnd,
) -> Windows:
    """Cut the windows with some numbers, counted from the first interval on."""
    ends = np.cumsum(count)
    row = np.searchsorted(ends, numbers, side="right")
    start = regions.start[row] + (numbers - (ends - count)[row]) * stride
    limit = regions.end[row]
    if off_end == "shift":
        start = np.minimum(start, limit - length)
    return Windows(regions.chrom[row], start, np.minimum(start + length, limit), length)


def check_tiling(owner: str, length: int, stride: int, off_end: OffEnd) -> None:
    """Check the arguments of ``tile`` before slow work; ``owner`` names the caller in errors."""
    for name, size in (("length", length), ("stride", stride)):
        if size < 1:
            raise ValueError(f"{owner}.{name} must be at least 1, got {size}; give it in bases")
    if off_end not in ("shift", "drop", "pad"):
        raise ValueError(f"{owner}.off_end must be shift, drop or pad, got {off_end!r}; choose one")


def extended_windows(
    regions: Regions, chrom_lengths: Int64[np.ndarray, " R"], length: int, extent: int
) -> Windows:
    """Cut ``extent`` bases from each start into windows, regardless of the interval's end.

    Windows past the end of a chromosome are shifted inside and may coincide there. This is the
    windowing of the published HG38 data set (Schiff et al. 2024, arXiv:2403.03234; Nguyen et al.
    2023, arXiv:2306.15794).

    Args:
        regions: Intervals, of which chromosome and start are used.
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
