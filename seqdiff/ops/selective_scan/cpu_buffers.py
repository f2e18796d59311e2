"""Buffers of the CPU scan: what its forward pass keeps and where its kernels put gradients."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numba import njit
from torch import Tensor

from seqdiff.ops.cpu_simd.tiles import buffer, copy_rows, write_matrix
from seqdiff.ops.cpu_simd.vectors import LANES
from seqdiff.ops.cpu_simd.wide import WIDE
from seqdiff.ops.selective_scan.cpu_blocks import CHUNK, TILES, blocks_per_group, map_place


def count_groups(B: Tensor, C: Tensor) -> int:
    """Groups of channels that share one B and one C."""
    return max(m.shape[1] if m.ndim == 4 else 1 for m in (B, C))


def saved_shape(u: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[int, int, int, int]:
    """What the forward keeps: the states at chunk starts, block by block."""
    groups = count_groups(B, C)
    rows = groups * blocks_per_group(u.shape[1], groups)
    return u.shape[0], -(-u.shape[2] // CHUNK), rows, TILES * A.shape[1] * LANES


class GradientRoom(NamedTuple):
    """Where a kernel puts gradients, see `seqdiff.ops.selective_scan.Gradients`."""

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


class Gradients(NamedTuple):
    """Where gradients go.

    Those of constant B and C, of A and of the initial state are ``(Bt, D, N)``, of D and the bias
    ``(Bt, D, 1)``, of varying B and C ``(Bt, G, blocks, N, L)``; the caller sums over rows and
    blocks.
    """

    u: np.ndarray
    delta: np.ndarray
    z: np.ndarray
    B: np.ndarray
    C: np.ndarray
    fixed_B: np.ndarray
    fixed_C: np.ndarray
    A: np.ndarray
    D: np.ndarray
    bias: np.ndarray
    initial: np.ndarray


class Sums(NamedTuple):
    """A block's running gradients: vectors, and those of B and C over the present chunk."""

    carry: np.ndarray
    A: np.ndarray
    fixed_B: np.ndarray
    fixed_C: np.ndarray
    D: np.ndarray
    bias: np.ndarray
    B: np.ndarray
    C: np.ndarray


class Tile(NamedTuple):
    """One tile's positions of the present chunk: inputs, then what the backward works out."""

    delta: np.ndarray
    u: np.ndarray
    steps: np.ndarray
    driven: np.ndarray
    gate: np.ndarray
    dy: np.ndarray
    y: np.ndarray
    d_driven: np.ndarray
    d_steps: np.ndarray
    decays: np.ndarray
    states: np.ndarray


@njit
def make_sums(u, states):
    """Room for the sums of any block."""
    return Sums(
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES, u),
        buffer(TILES, u),
        np.empty(states * CHUNK, u.dtype),
        np.empty(states * CHUNK, u.dtype),
    )


@njit
def make_tile(u):
    """Room for any tile."""
    return Tile(
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK, u),
        buffer(CHUNK * WIDE, u),
        buffer((CHUNK + 1) * WIDE, u),
    )


@njit
def write_maps(scan, block, first, count, sums, grads):
    """Write the present chunk's gradients of B and C."""
    index, place = (block.batch, block.group, block.place), (0, CHUNK, 1)
    states = scan.A.shape[1]
    if not scan.constant_B:
        copy_rows(sums.B, place, grads.B, map_place(grads.B, index, first), states, count)
    if not scan.constant_C:
        copy_rows(sums.C, place, grads.C, map_place(grads.C, index, first), states, count)


@njit
def write_sums(scan, block, sums, grads):
    """Write a block's gradients that are sums over the sequence."""
    states, b = scan.A.shape[1], block.batch
    for number in range(block.tiles):
        channel = block.begin + number * LANES
        width = min(LANES, block.end - channel)
        at = number * states * LANES
        write_matrix(grads.A[b], channel, width, sums.A, at)
        write_matrix(grads.initial[b], channel, width, sums.carry, at)
        if scan.constant_B:
            write_matrix(grads.fixed_B[b], channel, width, sums.fixed_B, at)
        if scan.constant_C:
            write_matrix(grads.fixed_C[b], channel, width, sums.fixed_C, at)
        write_matrix(grads.D[b], channel, width, sums.D, number * LANES)
        write_matrix(grads.bias[b], channel, width, sums.bias, number * LANES)
