"""Rotary positions: queries and keys are turned by their place."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

BASE = 1e4

Rotary = tuple[Tensor, Tensor]


def rotary_frequencies(head_dim: int, like: Tensor | None = None) -> Float[Tensor, " half"]:
    """Radians that each pair of channels turns by from one position to the next.

    Args:
        head_dim: Channels of a head.
        like: Gives the device and, if it is wider than float32, the dtype.
    """
    wide = torch.float32 if like is None else torch.promote_types(like.dtype, torch.float32)
    device = None if like is None else like.device
    return BASE ** -(torch.arange(0, head_dim, 2, dtype=wide, device=device) / head_dim)


def rotary_table(positions: Int[Tensor, " L"], head_dim: int, like: Tensor) -> Rotary:
    """Cosines and sines of every position's turns, ``[L, head_dim / 2]`` each.

    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.

    Args:
        positions: Of the tokens.
        head_dim: Channels of a head.
        like: See ``rotary_frequencies``.
    """
    angles = positions[:, None] * rotary_frequencies(head_dim, like)
    return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "B H L C"], table: Rotary) -> Float[Tensor, "B H L C"]:
    """Turn channel i of the first half together with channel i of the second half.

    Args:
        x: Queries or keys.
        table: From ``rotary_table``.
    """
    cos, sin = table
    first, second = x.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return turned.to(x.dtype)
