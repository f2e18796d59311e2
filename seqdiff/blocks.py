"""Rows cut into blocks of equal length, the last of which may be shorter."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Shaped
from torch import Tensor


def num_blocks(length: int, block_size: int) -> int:
    """Count the blocks of a row."""
    return -(-length // block_size)


def cut(
    x: Shaped[Tensor, "B L *rest"], block_size: int, fill: int = 0
) -> Shaped[Tensor, "blocks size *rest"]:
    """Make every block a row, beginning with the blocks of the first row in order.

    Args:
        x: Rows.
        block_size: Tokens of a block.
        fill: Value that fills a shorter last block.

    Returns:
        ``[B * num_blocks, block_size, ...]``; a view if no block is shorter.
    """
    missing = -x.shape[1] % block_size
    if missing:
        x = F.pad(x, (*(0, 0) * (x.dim() - 2), 0, missing), value=fill)
    return x.unflatten(1, (-1, block_size)).flatten(0, 1)


def join(blocks: Shaped[Tensor, "blocks size *rest"], length: int) -> Shaped[Tensor, "B L *rest"]:
    """Undo ``cut``.

    Args:
        blocks: From ``cut``.
        length: Length of a row.
    """
    count = num_blocks(length, blocks.shape[1])
    return blocks.unflatten(0, (-1, count)).flatten(1, 2)[:, :length]


def spread(x: Shaped[Tensor, "B n"], block_size: int, length: int) -> Shaped[Tensor, "B {length}"]:
    """Repeat the entry of each block for its tokens.

    Args:
        x: One entry per block.
        block_size: Tokens of a block.
        length: Length of a row.
    """
    return x.repeat_interleave(block_size, dim=1)[:, :length]
