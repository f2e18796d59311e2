"""What the scan's backward keeps at hand and where it puts its results."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from .cpu_scan_blocks import CHUNK, TILES, map_place
from .cpu_simd import LANES
from .cpu_tiles import buffer, copy_rows, write_matrix
from .cpu_wide import WIDE


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
