"""Data structures of the scan's kernels, and how inputs are read and gradients are written.

The docstring of `seqdiff.ops.cpu_simd` explains lanes, tiles, chunks, tasks, token blocks (cuts)
and borders. The scan's kernels also use these words:

* A *channel block* (`Block`) is up to `TILES` tiles of channels of one group: what a task works on.
* A *group* is the channels that share one B and one C.
* The *maps* are B, from inputs to states, and C, from states to outputs. A map varies over
  positions or is *constant* (*fixed* in some names), and then every channel has its own.
* The *driven* input is ``delta * u``, and a *rate* is an entry of A times log2(e).
* A *group of cuts* is one token block, or the short ones that share a chunk.
* A *span* (`Span`) is one tile in one chunk.
* A *piece* is the part of a token block that lies in a chunk.
* A *carry* is the gradient of the states that passes from each position to the one before it.

Buffers of states hold one vector for each tile and state, states innermost: state n of tile k is at
element ``(k * N + n) * LANES``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from seqdiff.ops.cpu_simd.cuts import count_cuts, find_cut
from seqdiff.ops.cpu_simd.jit import inlined, inner
from seqdiff.ops.cpu_simd.tiles import (
    LOG2E,
    buffer,
    copy_rows,
    expect_tile,
    read_matrix,
    write_matrix,
)
from seqdiff.ops.cpu_simd.vectors import LANES, full_like, load, mul, store
from seqdiff.ops.cpu_simd.wide import WIDE

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


CHUNK = 128
"""Number of positions of a chunk; a multiple of `LANES`."""

TILES = 4
"""Largest number of tiles of a channel block."""


class Scan(NamedTuple):
    """The inputs of a scan, as in `selective_scan`. Optional inputs that are absent have size 0.

    Attributes:
        u: ``(Bt, D, L)``.
        delta: Step sizes before bias and softplus ``(Bt, D, L)``.
        A: ``(D, N)``.
        B: ``(Bt, G, N, L)``, or ``(1, D, N, 1)`` if constant.
        C: ``(Bt, G, N, L)``, or ``(1, D, N, 1)`` if constant.
        D: Skip weight ``(D, 1)``; optional.
        z: Gate ``(Bt, D, L)``; optional.
        bias: Added to delta ``(D, 1)``; optional.
        softplus: Whether delta passes through softplus.
        constant_B: Whether B is constant over positions.
        constant_C: Whether C is constant over positions.
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
    """The row and the channels that one task works on.

    Attributes:
        batch: Index of the row.
        group: Index of the group of channels.
        place: Index of the channel block in its group.
        begin: First channel.
        end: The channel after the last.
        tiles: Number of tiles.
    """

    batch: int
    group: int
    place: int
    begin: int
    end: int
    tiles: int


class Maps(NamedTuple):
    """The parameters of a channel block as vectors, and B and C over the current chunk.

    Attributes:
        rates: A times log2(e), so that a decay is ``exp2(step * rate)``.
        B_lanes: B if it is constant.
        C_lanes: C if it is constant.
        skip: D.
        bias: Added to delta.
        B: B over the chunk if it varies ``(N, CHUNK)``, flattened.
        C: C over the chunk if it varies ``(N, CHUNK)``, flattened.
    """

    rates: np.ndarray
    B_lanes: np.ndarray
    C_lanes: np.ndarray
    skip: np.ndarray
    bias: np.ndarray
    B: np.ndarray
    C: np.ndarray


@inner
def count_groups(scan):
    """Count the groups of channels."""
    by_B = 1 if scan.constant_B else scan.B.shape[1]
    by_C = 1 if scan.constant_C else scan.C.shape[1]
    return max(by_B, by_C)


@inner
def count_blocks(channels, groups):
    """Count the channel blocks of one group."""
    return -(-(channels // groups) // (LANES * TILES))


@inner
def place(task, channels, groups):
    """Return the channel block of a task."""
    per_group = channels // groups
    blocks = count_blocks(channels, groups)
    group, index = task // blocks % groups, task % blocks
    begin = group * per_group + index * TILES * LANES
    end = min(begin + TILES * LANES, (group + 1) * per_group)
    tiles = -(-(end - begin) // LANES)
    return Block(task // (groups * blocks), group, index, begin, end, tiles)


@inner
def count_together(scan):
    """Count the states that are processed `WIDE` at a time.

    The others are processed one by one: the remainder, or all of them if B or C is constant.
    """
    states = scan.A.shape[1]
    return 0 if scan.constant_B or scan.constant_C else states - states % WIDE


@inner
def make_maps(u, states):
    """Allocate the maps of any channel block."""
    return Maps(
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES, u),
        buffer(TILES, u),
        np.empty(states * CHUNK, u.dtype),
        np.empty(states * CHUNK, u.dtype),
    )


@inner
def read_maps(scan, block, maps):
    """Load the parameters of a channel block, which do not change along the sequence."""
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


@inlined
def map_place(array, index, first):
    """Locate the matrix ``array[index]``, (N, L), from position ``first`` on, for `copy_rows`."""
    size, axes = array.itemsize, len(index)
    start = first * array.strides[axes + 1]
    for axis in range(axes):
        start += index[axis] * array.strides[axis]
    return start // size, array.strides[axes] // size, array.strides[axes + 1] // size


@inlined
def read_chunk(scan, block, first, count, maps):
    """Load B and C of one chunk, if they vary."""
    index, place, states = (block.batch, block.group), (0, CHUNK, 1), scan.A.shape[1]
    if not scan.constant_B:
        copy_rows(scan.B, map_place(scan.B, index, first), maps.B, place, states, count)
    if not scan.constant_C:
        copy_rows(scan.C, map_place(scan.C, index, first), maps.C, place, states, count)


@inlined
def expect_inputs(scan, batch, channel, first, count):
    """Prefetch a tile of each input for a later chunk."""
    expect_tile(scan.delta, batch, channel, first, count)
    expect_tile(scan.u, batch, channel, first, count)
    if scan.z.size:
        expect_tile(scan.z, batch, channel, first, count)


class Span(NamedTuple):
    """One tile in one chunk.

    Attributes:
        batch: Index of the row.
        channel: First channel of the tile.
        width: Number of channels of the tile.
        first: First position of the chunk.
        size: Number of positions of the chunk.
        length: Number of positions of the row.
        number: First token block of the chunk.
        last: Last token block of the chunk.
    """

    batch: int
    channel: int
    width: int
    first: int
    size: int
    length: int
    number: int
    last: int


@inner
def count_groups_of_cuts(cuts, length):
    """Count the groups of cuts: one token block each, or the short ones that share a chunk."""
    return -(-count_cuts(cuts, length) // max(1, CHUNK // cuts.period))


@inner
def find_group_of_cuts(cuts, length, group):
    """Return the first and the last token block of a group, its first position and its end."""
    together = max(1, CHUNK // cuts.period)
    number = group * together
    last = min(count_cuts(cuts, length), number + together) - 1
    return number, last, find_cut(cuts, length, number)[0], find_cut(cuts, length, last)[1]


@inner
def saved_place(cuts, group, chunk):
    """Return the index in ``saved`` of the state before a chunk that starts inside a token block.

    ``chunk``, at least 1, is the number of the chunk in its token block.
    """
    return group * ((cuts.period - 1) // CHUNK) + chunk - 1


@inlined
def find_piece(cuts, span, number):
    """Find the piece of a token block that lies in a chunk.

    Returns its first position and the position after its last, both counted from the start of the
    chunk, and whether the token block begins and whether it ends in the chunk.
    """
    begin, end = find_cut(cuts, span.length, number)
    beyond = span.first + span.size
    return (
        max(begin, span.first) - span.first,
        min(end, beyond) - span.first,
        begin >= span.first,
        end <= beyond,
    )


@inlined
def border_at(borders, span, number, n):
    """Return the offset of a tile's state n at a border, and the stride to state n + 1."""
    size = borders.itemsize
    start = span.batch * borders.strides[0] + number * borders.strides[1]
    stride = borders.strides[3] // size
    return start // size + span.channel + n * stride, stride


class Gradients(NamedTuple):
    """The arrays that receive the gradients. Tasks write their parts, which the caller sums.

    Attributes:
        u: ``(Bt, D, L)``.
        delta: ``(Bt, D, L)``.
        z: ``(Bt, D, L)``.
        B: If B varies, ``(Bt, G, channel blocks, N, L)``.
        C: If C varies, ``(Bt, G, channel blocks, N, L)``.
        fixed_B: If B is constant, ``(Bt, D, N)``.
        fixed_C: If C is constant, ``(Bt, D, N)``.
        A: ``(Bt, D, N)``.
        D: ``(Bt, D, 1)``.
        bias: ``(Bt, D, 1)``.
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


class Sums(NamedTuple):
    """The running gradients of a channel block.

    ``B`` and ``C`` belong to the current chunk and are laid out as in `Maps`. The others are
    vectors: ``carry`` holds the gradients of the states, and the rest are sums over the positions
    so far.
    """

    carry: np.ndarray
    A: np.ndarray
    fixed_B: np.ndarray
    fixed_C: np.ndarray
    D: np.ndarray
    bias: np.ndarray
    B: np.ndarray
    C: np.ndarray


class Tile(NamedTuple):
    """Buffers of the backward pass for one tile in one chunk.

    Attributes:
        delta: Raw delta with its bias; its gradient at the end.
        u: Inputs.
        steps: Step sizes.
        driven: Driven inputs; the gradient of u at the end.
        gate: Gate z; its gradient at the end.
        dy: Gradient of the output before the gate.
        y: Output before the gate.
        d_driven: Gradient of the driven inputs.
        d_steps: Gradient of the step sizes through the decays, but for a factor of log(2).
        decays: Decays of up to `WIDE` states.
        states: Up to `WIDE` states, those after position i at index i + 1.
    """

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


@inner
def make_sums(u, states):
    """Allocate the sums of any channel block."""
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


@inner
def make_tile(u):
    """Allocate the buffers of any tile."""
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


@inner
def write_maps(scan, block, first, count, sums, grads):
    """Write the gradients of B and C for the current chunk, if they vary."""
    index, place = (block.batch, block.group, block.place), (0, CHUNK, 1)
    states = scan.A.shape[1]
    if not scan.constant_B:
        copy_rows(sums.B, place, grads.B, map_place(grads.B, index, first), states, count)
    if not scan.constant_C:
        copy_rows(sums.C, place, grads.C, map_place(grads.C, index, first), states, count)


@inner
def write_sums(scan, block, sums, grads):
    """Write the gradients of a channel block that are sums over the sequence."""
    states, b = scan.A.shape[1], block.batch
    for number in range(block.tiles):
        channel = block.begin + number * LANES
        width = min(LANES, block.end - channel)
        at = number * states * LANES
        write_matrix(grads.A[b], channel, width, sums.A, at)
        if scan.constant_B:
            write_matrix(grads.fixed_B[b], channel, width, sums.fixed_B, at)
        if scan.constant_C:
            write_matrix(grads.fixed_C[b], channel, width, sums.fixed_C, at)
        write_matrix(grads.D[b], channel, width, sums.D, number * LANES)
        write_matrix(grads.bias[b], channel, width, sums.bias, number * LANES)
