"""Numba kernel of the selective scan, forward, and what its backward shares with it.

Channels are the vector lanes, so nothing is transposed when they are adjacent in memory and the
output's sum over the state needs no shuffle. A task is one batch row and up to `TILES` vectors of
channels; it walks the sequence in chunks of `CHUNK` positions that stay in the first-level cache.
Only the state at the start of each chunk is kept for the backward. Reading from right to left is
a view with negative strides. Each task writes sums of its own, so the order of threads is never
seen.
"""

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from .cpu_math import exp2
from .cpu_simd import LANES, add, fma, full_like, load, mul, store
from .cpu_tasks import next_task
from .cpu_tiles import (
    buffer,
    expect_tile,
    read_matrix,
    read_tile,
    sigmoid,
    softplus,
    write_matrix,
    write_tile,
)
from .cpu_wide import WIDE, fma_each, load_like, load_wide, repeat, splat_each

CHUNK = 64
TILES = 4
LOG2E = math.log2(math.e)


class Scan(NamedTuple):
    """One scan's inputs. What is absent has size 0.

    ``u``, ``delta``, ``z`` (Bt, D, L); ``A`` (D, N); ``B``, ``C`` (Bt, G, N, L) or, where
    constant, (1, D, N, 1); ``D``, ``bias`` (D, 1).
    """

    u: np.ndarray
    delta: np.ndarray
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    z: np.ndarray
    bias: np.ndarray
    softplus: bool
    constant_B: bool
    constant_C: bool


class Block(NamedTuple):
    """The part of a scan that one task works on."""

    batch: int
    group: int
    place: int
    begin: int
    end: int
    tiles: int


class Maps(NamedTuple):
    """A block's parameters as vectors, and B and C over the present chunk."""

    rates: np.ndarray
    B_lanes: np.ndarray
    C_lanes: np.ndarray
    skip: np.ndarray
    bias: np.ndarray
    B: np.ndarray
    C: np.ndarray


def blocks_per_group(channels: int, groups: int) -> int:
    """How many tasks share one row's group of channels."""
    return -(-(channels // groups) // (LANES * TILES))


@njit
def count_groups(scan):
    """Groups of channels that share B and C."""
    by_B = 1 if scan.constant_B else scan.B.shape[1]
    by_C = 1 if scan.constant_C else scan.C.shape[1]
    return max(by_B, by_C)


@njit
def place(task, channels, groups):
    """The block of a task's number."""
    per_group = channels // groups
    blocks = -(-per_group // (LANES * TILES))
    group, index = task // blocks % groups, task % blocks
    begin = group * per_group + index * TILES * LANES
    end = min(begin + TILES * LANES, (group + 1) * per_group)
    tiles = -(-(end - begin) // LANES)
    return Block(task // (groups * blocks), group, index, begin, end, tiles)


@njit
def count_together(scan):
    """How many states go `WIDE` at a time; the rest, all where B or C is constant, one by one."""
    states = scan.A.shape[1]
    return 0 if scan.constant_B or scan.constant_C else states - states % WIDE


@njit
def make_maps(u, states):
    """Room for the maps of any block."""
    return Maps(
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES, u),
        buffer(TILES, u),
        np.empty(states * CHUNK, u.dtype),
        np.empty(states * CHUNK, u.dtype),
    )


@njit
def read_maps(scan, block, maps):
    """Load what does not change along the sequence."""
    states = scan.A.shape[1]
    for tile in range(block.tiles):
        channel = block.begin + tile * LANES
        width = min(LANES, block.end - channel)
        at = tile * states * LANES
        read_matrix(scan.A, channel, width, maps.rates, at)
        if scan.constant_B:
            read_matrix(scan.B[0, :, :, 0], channel, width, maps.B_lanes, at)
        if scan.constant_C:
            read_matrix(scan.C[0, :, :, 0], channel, width, maps.C_lanes, at)
        if scan.D.size:
            read_matrix(scan.D, channel, width, maps.skip, tile * LANES)
        if scan.bias.size:
            read_matrix(scan.bias, channel, width, maps.bias, tile * LANES)
    for k in range(block.tiles * states):
        rate = load(maps.rates, k * LANES)
        store(maps.rates, k * LANES, mul(rate, full_like(rate, LOG2E)))


@njit(forceinline=True)
def read_chunk(scan, block, first, count, maps):
    """Load the B and C of one chunk, states outermost."""
    for n in range(scan.A.shape[1]):
        for i in range(count):
            if not scan.constant_B:
                maps.B[n * CHUNK + i] = scan.B[block.batch, block.group, n, first + i]
            if not scan.constant_C:
                maps.C[n * CHUNK + i] = scan.C[block.batch, block.group, n, first + i]


@njit(forceinline=True)
def expect_inputs(scan, batch, channel, first, count):
    """Start to fetch a tile of each input that another chunk will read."""
    expect_tile(scan.delta, batch, channel, first, count)
    expect_tile(scan.u, batch, channel, first, count)
    if scan.z.size:
        expect_tile(scan.z, batch, channel, first, count)


@njit(forceinline=True)
def make_steps(delta, bias, start, count, use_softplus, steps):
    """Add the bias to raw deltas in place, and fill in the step sizes."""
    offset = load(bias, start)
    for i in range(count):
        x = add(load(delta, i * LANES), offset)
        store(delta, i * LANES, x)
        store(steps, i * LANES, softplus(x) if use_softplus else x)


@njit(forceinline=True)
def enter(u, steps, skip, start, count, driven, y):
    """Fill in ``step * u`` and the skip's share of the output."""
    weight = load(skip, start)
    for i in range(count):
        value = load(u, i * LANES)
        store(driven, i * LANES, mul(load(steps, i * LANES), value))
        store(y, i * LANES, mul(weight, value))


@njit(forceinline=True)
def _advance(maps, n, at, h, constant_B, constant_C, steps, driven, count, y):
    """Move states n, n + 1, ... (as many as h holds) over a chunk, and add what they emit to y."""
    rate = load_like(maps.rates, at, h)
    fixed_B, fixed_C = load_like(maps.B_lanes, at, h), load_like(maps.C_lanes, at, h)
    for i in range(count):
        k, here = i * LANES, n * CHUNK + i
        decay = exp2(mul(repeat(load(steps, k), h), rate))
        inflow = fixed_B if constant_B else splat_each(maps.B, here, CHUNK, h)
        outflow = fixed_C if constant_C else splat_each(maps.C, here, CHUNK, h)
        h = fma(decay, h, mul(repeat(load(driven, k), h), inflow))
        store(y, k, fma_each(outflow, h, load(y, k)))
    return h


@njit(forceinline=True)
def _advance_all(scan, maps, tile, steps, driven, count, state, y):
    """Move one tile's states over a chunk."""
    states, constant_B, constant_C = scan.A.shape[1], scan.constant_B, scan.constant_C
    together = count_together(scan)
    for n in range(0, together, WIDE):
        at = (tile * states + n) * LANES
        h = load_wide(state, at)
        store(state, at, _advance(maps, n, at, h, False, False, steps, driven, count, y))
    for n in range(together, states):
        at = (tile * states + n) * LANES
        h = load(state, at)
        store(state, at, _advance(maps, n, at, h, constant_B, constant_C, steps, driven, count, y))


@njit(forceinline=True)
def _gate(z, count, y):
    """Multiply y by silu(z)."""
    for i in range(count):
        x = load(z, i * LANES)
        store(y, i * LANES, mul(load(y, i * LANES), mul(x, sigmoid(x))))


@njit
def copy_vectors(source, vectors, target):
    """Copy between contiguous buffers."""
    for k in range(0, vectors * LANES, LANES):
        store(target, k, load(source, k))


@njit
def _forward_block(scan, block, row, maps, state, out, last, saved):
    """Walk one block along the sequence. ``row`` is its place in ``saved``."""
    length, states = scan.u.shape[2], scan.A.shape[1]
    steps, inputs, y = buffer(CHUNK, scan.u), buffer(CHUNK, scan.u), buffer(CHUNK, scan.u)
    for first in range(0, length, CHUNK):
        count, ahead = min(CHUNK, length - first), min(CHUNK, length - first - CHUNK)
        read_chunk(scan, block, first, count, maps)
        if saved.size:
            copy_vectors(state, block.tiles * states, saved[block.batch, first // CHUNK, row])
        for tile in range(block.tiles):
            channel = block.begin + tile * LANES
            width = min(LANES, block.end - channel)
            expect_inputs(scan, block.batch, channel, first + CHUNK, ahead)
            expect_tile(out, block.batch, channel, first + CHUNK, ahead)
            read_tile(scan.delta, block.batch, channel, width, first, count, inputs)
            make_steps(inputs, maps.bias, tile * LANES, count, scan.softplus, steps)
            read_tile(scan.u, block.batch, channel, width, first, count, inputs)
            enter(inputs, steps, maps.skip, tile * LANES, count, inputs, y)
            _advance_all(scan, maps, tile, steps, inputs, count, state, y)
            if scan.z.size:
                read_tile(scan.z, block.batch, channel, width, first, count, inputs)
                _gate(inputs, count, y)
            write_tile(out, block.batch, channel, width, first, count, y)
    for tile in range(block.tiles):
        channel = block.begin + tile * LANES
        width = min(LANES, block.end - channel)
        write_matrix(last[block.batch], channel, width, state, tile * states * LANES)


@njit
def read_states(source, block, states, state):
    """Fill a block's states from ``(Bt, D, N)``, or with zeros when that is absent."""
    state[:] = 0.0
    if source.size:
        for tile in range(block.tiles):
            channel = block.begin + tile * LANES
            width = min(LANES, block.end - channel)
            read_matrix(source[block.batch], channel, width, state, tile * states * LANES)


def scan_forward(
    counter, u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C,
    initial, out, last, saved,
):  # fmt: skip
    """Take tasks from the counter until none is left, and fill out, last and saved.

    ``counter`` is one int64 that all threads share, 0 at the start. The inputs up to
    ``constant_C`` are those of `Scan`; ``initial`` and ``last`` are (Bt, D, N); ``out`` (Bt, D, L)
    has any strides. ``saved`` takes the states at chunk starts, (Bt, chunks, blocks,
    TILES * N * LANES), or has size 0 when no backward follows.
    """
    scan = Scan(u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C)
    maps, state = make_maps(u, A.shape[1]), buffer(TILES * A.shape[1], u)
    groups = count_groups(scan)
    rows = groups * -(-(u.shape[1] // groups) // (LANES * TILES))
    while True:
        task = next_task(counter)
        if task >= u.shape[0] * rows:
            return
        block = place(task, u.shape[1], groups)
        read_maps(scan, block, maps)
        read_states(initial, block, A.shape[1], state)
        _forward_block(scan, block, task % rows, maps, state, out, last, saved)
