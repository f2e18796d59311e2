"""Numba kernel of the selective scan, forward, and what its backward shares with it.

Channels are the vector lanes, so nothing is transposed when they are adjacent in memory and the
output's sum over the state needs no shuffle. A task is one batch row and up to `TILES` vectors of
channels; it walks the sequence in chunks of `CHUNK` positions that stay in the nearest caches.
Only the state at the start of each chunk is kept for the backward. Reading from right to left is
a view with negative strides. Each task writes sums of its own, so the order of threads is never
seen.
"""

from __future__ import annotations

from numba import njit

from seqdiff.ops.cpu_simd.math import exp2
from seqdiff.ops.cpu_simd.tasks import next_task
from seqdiff.ops.cpu_simd.tiles import (
    buffer,
    expect_tile,
    put_tile,
    read_matrix,
    read_tile,
    sigmoid,
    softplus,
    write_matrix,
)
from seqdiff.ops.cpu_simd.vectors import LANES, add, fma, load, mul, store
from seqdiff.ops.cpu_simd.wide import WIDE, fma_each, load_like, load_wide, repeat, splat_each
from seqdiff.ops.selective_scan.cpu_blocks import (
    CHUNK,
    TILES,
    Scan,
    count_groups,
    count_together,
    expect_inputs,
    make_maps,
    place,
    read_chunk,
    read_maps,
)

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


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
def advance(maps, n, at, h, constant_B, constant_C, steps, driven, begin, end, y):
    """Move states n, n + 1, ... (as many as h holds) over positions; add what they emit to y."""
    rate = load_like(maps.rates, at, h)
    fixed_B, fixed_C = load_like(maps.B_lanes, at, h), load_like(maps.C_lanes, at, h)
    for i in range(begin, end):
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
        store(state, at, advance(maps, n, at, h, False, False, steps, driven, 0, count, y))
    for n in range(together, states):
        at = (tile * states + n) * LANES
        h = load(state, at)
        fixed = (constant_B, constant_C)
        store(state, at, advance(maps, n, at, h, *fixed, steps, driven, 0, count, y))


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
def make_room(u):
    """Steps, inputs and outputs of one tile over one chunk."""
    return buffer(CHUNK, u), buffer(CHUNK, u), buffer(CHUNK, u)


@njit(forceinline=True)
def open_tile(scan, block, tile, first, count, ahead, maps, room):
    """Fill in a tile's steps, driven inputs and skipped outputs; expect the next chunk's."""
    steps, inputs, y = room
    channel = block.begin + tile * LANES
    width = min(LANES, block.end - channel)
    expect_inputs(scan, block.batch, channel, first + count, ahead)
    read_tile(scan.delta, block.batch, channel, width, first, count, inputs)
    make_steps(inputs, maps.bias, tile * LANES, count, scan.softplus, steps)
    read_tile(scan.u, block.batch, channel, width, first, count, inputs)
    enter(inputs, steps, maps.skip, tile * LANES, count, inputs, y)


@njit(forceinline=True)
def close_tile(scan, block, tile, first, count, ahead, out, accumulate, room):
    """Gate a tile's outputs and write them, or add them."""
    _, inputs, y = room
    channel = block.begin + tile * LANES
    width = min(LANES, block.end - channel)
    expect_tile(out, block.batch, channel, first + count, ahead)
    if scan.z.size:
        read_tile(scan.z, block.batch, channel, width, first, count, inputs)
        _gate(inputs, count, y)
    put_tile(out, block.batch, channel, width, first, count, y, accumulate, inputs)


@njit
def _forward_block(scan, block, row, maps, state, out, accumulate, last, saved):
    """Walk one block along the sequence. ``row`` is its place in ``saved``."""
    length, states, room = scan.u.shape[2], scan.A.shape[1], make_room(scan.u)
    for first in range(0, length, CHUNK):
        count, ahead = min(CHUNK, length - first), min(CHUNK, length - first - CHUNK)
        if saved.size:
            copy_vectors(state, block.tiles * states, saved[block.batch, first // CHUNK, row])
        read_chunk(scan, block, first, count, maps)
        for tile in range(block.tiles):
            open_tile(scan, block, tile, first, count, ahead, maps, room)
            _advance_all(scan, maps, tile, room[0], room[1], count, state, room[2])
            close_tile(scan, block, tile, first, count, ahead, out, accumulate, room)
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
    initial, out, accumulate, last, saved,
):  # fmt: skip
    """Take tasks from the counter until none is left, and fill out, last and saved.

    ``counter`` is one int64 that all threads share, 0 at the start. The inputs up to
    ``constant_C`` are those of `Scan`; ``initial`` and ``last`` are (Bt, D, N); ``out`` (Bt, D, L)
    has any strides, and is added to if ``accumulate``. ``saved`` takes the states at chunk starts,
    (Bt, chunks, blocks, TILES * N * LANES), or has size 0 when no backward follows.
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
        _forward_block(scan, block, task % rows, maps, state, out, accumulate, last, saved)
