"""Where rows are cut into blocks of tokens, and what of that falls into one chunk of a scan."""

from __future__ import annotations

from typing import NamedTuple

from numba import njit

from seqdiff.ops.selective_scan.cpu_blocks import CHUNK


class Cuts(NamedTuple):
    """A row ends a cut after ``lead`` positions, in reading order, and every ``period`` then.

    ``through`` says that the scan does not begin anew there.
    """

    period: int
    lead: int
    through: bool


class Span(NamedTuple):
    """One chunk of one tile: ``size`` positions of the cuts from ``number`` to ``last``."""

    batch: int
    channel: int
    width: int
    first: int
    size: int
    length: int
    number: int
    last: int


@njit
def count_cuts(cuts, length):
    """How many cuts there are."""
    return 1 + -(-max(0, length - cuts.lead) // cuts.period)


@njit(forceinline=True)
def find_cut(cuts, length, number):
    """First position of a cut and the one after its last."""
    first = 0 if number == 0 else cuts.lead + (number - 1) * cuts.period
    return first, min(length, cuts.lead + number * cuts.period)


@njit
def count_groups_of_cuts(cuts, length):
    """How often chunks begin with a cut: of short ones, several share a chunk."""
    return -(-count_cuts(cuts, length) // max(1, CHUNK // cuts.period))


@njit
def find_group_of_cuts(cuts, length, group):
    """First and last cut of a group, and where they begin and end."""
    together = max(1, CHUNK // cuts.period)
    number = group * together
    last = min(count_cuts(cuts, length), number + together) - 1
    return number, last, find_cut(cuts, length, number)[0], find_cut(cuts, length, last)[1]


@njit
def saved_place(cuts, group, chunk):
    """Where the state before a chunk inside a long cut is kept."""
    return group * ((cuts.period - 1) // CHUNK) + chunk - 1


@njit(forceinline=True)
def find_piece(cuts, span, number):
    """A cut's positions in a chunk, from and to, and whether it begins there and ends there."""
    begin, end = find_cut(cuts, span.length, number)
    beyond = span.first + span.size
    return (
        max(begin, span.first) - span.first,
        min(end, beyond) - span.first,
        begin >= span.first,
        end <= beyond,
    )


@njit(forceinline=True)
def border_at(borders, span, number, n):
    """Where a tile's state n before a cut lies, channels being adjacent, and how far n + 1 is."""
    size = borders.itemsize
    start = span.batch * borders.strides[0] + number * borders.strides[1]
    stride = borders.strides[3] // size
    return start // size + span.channel + n * stride, stride
