"""The last inputs of a causal convolution before every border of two blocks."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor


def gather_tails(x: Tensor, tail: Tensor, block_size: int) -> Tensor:
    """The ``W - 1`` inputs before every border ``(B, n + 1, W - 1, D)``.

    Args:
        x: Inputs of n blocks ``(B, L, D)``.
        tail: Inputs before them ``(B, W - 1, D)``.
        block_size: Tokens of a block.
    """
    count, width = x.shape[1] // block_size + 1, tail.shape[1]
    tails = x.new_empty(len(x), count, width, x.shape[2])
    for column, early, before, within in _columns(count, width, block_size):
        tails[:, :early, column] = tail[:, before][:, :early]
        tails[:, early:, column] = x[:, within]
    return tails


def spread_tails(d_tails: Tensor, block_size: int, dx: Tensor, d_tail: Tensor) -> None:
    """Add the gradients of what ``gather_tails`` gave to those of what it was given."""
    count, width = d_tails.shape[1:3]
    for column, early, before, within in _columns(count, width, block_size):
        d_tail[:, before][:, :early] += d_tails[:, :early, column]
        dx[:, within] += d_tails[:, early:, column]


def _columns(count: int, width: int, size: int) -> Iterator[tuple[int, int, slice, slice]]:
    """For each of a tail's inputs: at how many borders it lies before x, and where, here or there.

    Input c of the tail before border s lies at position ``s size + c - width``.
    """
    for column in range(width):
        early = min(count, -(-(width - column) // size))
        first = early * size + column - width
        before, within = (
            slice(column, width, size),
            slice(first, first + (count - early) * size, size),
        )
        yield column, early, before, within
