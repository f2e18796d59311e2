"""Rows cut into blocks of tokens. An uncut row is a single block.

A block of tokens is called a cut here, since the scan's kernels call their channels a block.
"""

from __future__ import annotations

from typing import NamedTuple

from seqdiff.blocks import num_blocks
from seqdiff.ops.cpu_simd.jit import inlined, inner


class Cut(NamedTuple):
    """How rows are cut and read.

    Attributes:
        size: Tokens of a block.
        reverse: Whether rows are read from right to left.
        through: Whether the scan carries its state from each block to the next.
    """

    size: int
    reverse: bool = False
    through: bool = False

    def arguments(self, length: int) -> tuple[int, int]:
        """Tokens of a block, and of the block that is read first, as the kernels take them."""
        short = length - (num_blocks(length, self.size) - 1) * self.size
        return self.size, short if self.reverse else self.size


class Cuts(NamedTuple):
    """`Cut` inside kernels: the first cut read has ``lead`` positions, the others ``period``."""

    period: int
    lead: int
    through: bool


@inner
def count_cuts(cuts, length):
    """Count the cuts of a row."""
    return 1 + -(-max(0, length - cuts.lead) // cuts.period)


@inlined
def find_cut(cuts, length, number):
    """First position of a cut and the one after its last."""
    first = 0 if number == 0 else cuts.lead + (number - 1) * cuts.period
    return first, min(length, cuts.lead + number * cuts.period)
