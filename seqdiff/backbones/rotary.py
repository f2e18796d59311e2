"""Rotary positions: queries and keys are turned by their place."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

BASE = 1e4

Rotary = tuple[Tensor, Tensor]


def rotary_frequencies(
    head_dim: int, dtype: torch.dtype = torch.float32, device: torch.device | None = None
) -> Float[Tensor, " half"]:
    """Radians that each pair of channels turns by from one position to the next.

    Args:
        head_dim: Channels of a head.
        dtype: Of the result.
        device: Of the result.
    """
    return BASE ** -(torch.arange(0, head_dim, 2, dtype=dtype, device=device) / head_dim)


def rotary_table(positions: Int[Tensor, " L"], head_dim: int, like: Tensor) -> Rotary:
    """Cosines and sines of every position's turns, ``[L, head_dim / 2]`` each.

    The turns themselves are in float64: in float32 those of position 10^6 are off by 0.03 radians.
    Source: Su et al. 2021, arXiv:2104.09864, section 3.2.2.

    Args:
        positions: Of the tokens.
        head_dim: Channels of a head.
        like: Gives the dtype if it is wider than float32.
    """
    wide = torch.promote_types(like.dtype, torch.float32)
    angles = positions[:, None] * rotary_frequencies(head_dim, torch.float64, positions.device)
    return angles.cos().to(wide), angles.sin().to(wide)


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
