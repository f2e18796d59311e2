"""How much the CPU scan keeps and where its kernels put gradients, before rows are summed."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .cpu_scan_blocks import CHUNK, TILES, blocks_per_group
from .cpu_simd import LANES


def count_groups(B: Tensor, C: Tensor) -> int:
    """Groups of channels that share one B and one C."""
    return max(m.shape[1] if m.ndim == 4 else 1 for m in (B, C))


def saved_shape(u: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[int, int, int, int]:
    """What the forward keeps: the states at chunk starts, block by block."""
    groups = count_groups(B, C)
    rows = groups * blocks_per_group(u.shape[1], groups)
    return u.shape[0], -(-u.shape[2] // CHUNK), rows, TILES * A.shape[1] * LANES


class GradientRoom(NamedTuple):
    """Where a kernel puts gradients, see `seqdiff.ops.cpu_scan_buffers.Gradients`."""

    inputs: list[Tensor]
    maps: list[Tensor]
    fixed: list[Tensor]
    sums: list[Tensor]


def gradient_room(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor) -> GradientRoom:
    """Room for all gradients but the gate's."""
    batch, channels, length = u.shape
    groups, states = count_groups(B, C), A.shape[1]
    blocks = blocks_per_group(channels, groups)
    by_place = (batch, groups, blocks, states, length)
    by_row = (batch, channels, states)
    return GradientRoom(
        [torch.empty_like(t) for t in (u, delta)],
        [u.new_empty(by_place if m.ndim == 4 else (0,) * 5) for m in (B, C)],
        [u.new_empty(by_row if m.ndim == 2 else (0,) * 3) for m in (B, C)],
        [u.new_empty(batch, channels, width) for width in (states, 1, 1, states)],
    )


def add_up(B: Tensor, C: Tensor, room: GradientRoom) -> list[Tensor]:
    """The gradients of u, delta, A, B, C, D, the bias and the initial state, rows summed."""
    dB, dC = (
        v.sum(2) if m.ndim == 4 else f.sum(0)
        for m, v, f in zip((B, C), room.maps, room.fixed, strict=True)
    )
    dA, dD, d_bias, d_initial = room.sums
    return [*room.inputs, dA.sum(0), dB, dC, dD.sum((0, 2)), d_bias.sum((0, 2)), d_initial]
