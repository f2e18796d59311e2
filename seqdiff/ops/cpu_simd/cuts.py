"""Rows divided into token blocks, which the code calls cuts (see the package's docstring).

A row that is not divided is a single token block.
"""

from __future__ import annotations

from typing import NamedTuple

from seqdiff.blocks import num_blocks
from seqdiff.ops.cpu_simd.jit import inlined, inner


class Cut(NamedTuple):
    """How rows are divided into token blocks and read.

    Attributes:
        size: Length of a token block; the last one of a row may be shorter.
        reverse: Whether rows are read from right to left.
        through: Whether the scan carries its state from each token block to the next.
    """

    size: int
    reverse: bool = False
    through: bool = False

    def arguments(self, length: int) -> tuple[int, int]:
        """Return ``period`` and ``lead`` of `Cuts` for a row of some length.

        Read from right to left, the shorter block comes first.
        """
        short = length - (num_blocks(length, self.size) - 1) * self.size
        return self.size, short if self.reverse else self.size


class Cuts(NamedTuple):
    """The token blocks of a row, as kernels receive them.

    Attributes:
        period: Length of every block but the first one read; the last one read may be shorter.
        lead: Length of the first block read.
        through: Whether the scan carries its state from each block to the next.
    """

    period: int
    lead: int
    through: bool


@inner
def count_cuts(cuts, length):
    """Count the token blocks of a row."""
    return 1 + -(-max(0, length - cuts.lead) // cuts.period)


@inlined
def find_cut(cuts, length, number):
    """Return the first position of a token block and the position after its last."""
    first = 0 if number == 0 else cuts.lead + (number - 1) * cuts.period
    return first, min(length, cuts.lead + number * cuts.period)
