"""Data structures of the scan's kernels, and how inputs are read and gradients are written.

The docstring of `seqdiff.ops.cpu_simd` explains lanes, tiles, chunks, tasks, token blocks (cuts)
and borders. The scan's kernels also use these words:

* A *channel block* (`Block`) is up to `TILES` tiles of channels of one group: what a task works on.
* A *group* is the channels that share one B and one C.
* The *maps* are B, from inputs to states, and C, from states to outputs.
* The *driven* input is ``delta * u``, and a *rate* is an entry of A times log2(e).
* A *group of cuts* is one token block, or the short ones that share a chunk.
* A *piece* is the part of a token block that lies in a chunk.
* A *carry* is the gradient of the states that passes from each position to the one before it.

Kernels process `WIDE` states at a time. If `WIDE` does not divide the number of states N, they add
states whose rate, B and C are zero, and P is the number of states with these. Buffers of states
hold one vector for each tile and state, states innermost: state n of tile k is at element
``(k * P + n) * LANES``.
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
from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    add,
    full_like,
    load,
    load_first,
    mul,
    store,
    store_first,
)
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
        delta: Step sizes before bias and softplus ``(Bt, D, L)``; size 0 if ``dt`` is given.
        dt: Low-rank step sizes ``(Bt, 1, R, L)``, from which ``dt_proj`` makes delta; optional.
        dt_proj: ``(D, R)``; optional.
        A: ``(D, N)``.
        B: ``(Bt, G, N, L)``.
        C: ``(Bt, G, N, L)``.
        D: Skip weight ``(D, 1)``; optional.
        z: Gate ``(Bt, D, L)``; optional.
        bias: Added to delta ``(D, 1)``; optional.
        softplus: Whether delta passes through softplus.
    """

    u: np.ndarray
    delta: np.ndarray
    dt: np.ndarray
    dt_proj: np.ndarray
    A: np.ndarray
    B: np.ndarray
    C: np.ndarray
    D: np.ndarray
    z: np.ndarray
    bias: np.ndarray
    softplus: bool


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
        skip: D.
        bias: Added to delta.
        dt_proj: Vectors of a tile's ``dt_proj``, one for each rank.
        dt: Low-rank step sizes over the chunk, flattened like B; the rank is padded likewise.
        B: B over the chunk ``(CHUNK, P)``, flattened.
        C: C over the chunk ``(CHUNK, P)``, flattened.
    """

    rates: np.ndarray
    skip: np.ndarray
    bias: np.ndarray
    dt_proj: np.ndarray
    dt: np.ndarray
    B: np.ndarray
    C: np.ndarray


@inner
def pad_states(states):
    """Return P, the number of states with those that are added."""
    return -(-states // WIDE) * WIDE


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
def make_maps(u, states, rank):
    """Allocate the maps of any channel block, for P states."""
    return Maps(
        buffer(TILES * states, u),
        buffer(TILES, u),
        buffer(TILES, u),
        buffer(TILES * rank, u),
        np.zeros(pad_states(rank) * CHUNK, u.dtype),
        np.zeros(states * CHUNK, u.dtype),
        np.zeros(states * CHUNK, u.dtype),
    )


@inner
def read_maps(scan, block, maps):
    """Load the parameters of a channel block, which do not change along the sequence."""
    states = pad_states(scan.A.shape[1])
    for tile in range(block.tiles):
        channel = block.begin + tile * LANES
        width = min(LANES, block.end - channel)
        read_matrix(scan.A, channel, width, maps.rates, tile * states * LANES)
        if scan.D.size:
            read_matrix(scan.D, channel, width, maps.skip, tile * LANES)
        if scan.bias.size:
            read_matrix(scan.bias, channel, width, maps.bias, tile * LANES)
        rank = scan.dt_proj.shape[1]
        read_matrix(scan.dt_proj, channel, width, maps.dt_proj, tile * rank * LANES)
    for k in range(block.tiles * states):
        rate = load(maps.rates, k * LANES)
        store(maps.rates, k * LANES, mul(rate, full_like(rate, LOG2E)))


@inner
def read_map(source, batch, group, first, count, target):
    """Copy B, C or dt over a chunk to a buffer ``(CHUNK, P)``."""
    size, states = source.itemsize, source.shape[2]
    at = batch * source.strides[0] + group * source.strides[1] + first * source.strides[3]
    begin = (at // size, source.strides[3] // size, source.strides[2] // size)
    copy_rows(source, begin, target, (0, pad_states(states), 1), count, states)


@inner
def write_map(target, block, first, count, sums):
    """Write a channel block's gradient of B, C or dt: ``n * CHUNK + i`` in a buffer."""
    size = target.itemsize
    at = block.batch * target.strides[0] + block.group * target.strides[1]
    at += block.place * target.strides[2] + first * target.strides[4]
    begin = (at // size, target.strides[3] // size, target.strides[4] // size)
    copy_rows(sums, (0, CHUNK, 1), target, begin, target.shape[3], count)


@inlined
def expect_inputs(scan, batch, channel, first, count):
    """Prefetch a tile of each input for a later chunk."""
    if scan.delta.size:
        expect_tile(scan.delta, batch, channel, first, count)
    expect_tile(scan.u, batch, channel, first, count)
    if scan.z.size:
        expect_tile(scan.z, batch, channel, first, count)


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
def find_piece(cuts, length, first, size, number):
    """Find the piece of a token block that lies in the chunk of ``size`` positions from ``first``.

    Returns its first position and the position after its last, both counted from the start of the
    chunk, and whether the token block begins and whether it ends in the chunk.
    """
    begin, end = find_cut(cuts, length, number)
    return (
        max(begin, first) - first,
        min(end, first + size) - first,
        begin >= first,
        end <= first + size,
    )


@inner
def _border_at(borders, batch, number, channel, n):
    """Return the offset of a tile's state n at a border, and the stride to state n + 1."""
    size = borders.itemsize
    start = batch * borders.strides[0] + number * borders.strides[1] + n * borders.strides[3]
    return start // size + channel, borders.strides[3] // size


@inner
def load_border(borders, batch, number, channel, width, n, count, add_to, states, at):
    """Load ``count`` states of a tile, from state n on, at the border before a token block.

    They are put into the buffer ``states`` from offset ``at`` on, or added to what is there if
    ``add_to``. ``borders`` of size 0 stands for zeros. Added states, which follow the last one,
    start from zero.
    """
    if not add_to:
        states[at : at + pad_states(count) * LANES] = 0.0
    if borders.size:
        place, stride = _border_at(borders, batch, number, channel, n)
        for k in range(count):
            value = load_first(borders, place + k * stride, width)
            if add_to:
                value = add(value, load(states, at + k * LANES))
            store(states, at + k * LANES, value)


@inner
def store_border(borders, batch, number, channel, width, n, count, states, at):
    """Store ``count`` states of a tile at the border before a token block; see `load_border`."""
    place, stride = _border_at(borders, batch, number, channel, n)
    for k in range(count):
        store_first(borders, place + k * stride, load(states, at + k * LANES), width)


class Gradients(NamedTuple):
    """The arrays that receive the gradients. Tasks write their parts, which the caller sums.

    Attributes:
        u: ``(Bt, D, L)``.
        delta: ``(Bt, D, L)``.
        z: ``(Bt, D, L)``.
        dt: ``(Bt, 1, channel blocks, R, L)``.
        dt_proj: ``(Bt, D, R)``.
        B: ``(Bt, G, channel blocks, N, L)``.
        C: ``(Bt, G, channel blocks, N, L)``.
        A: ``(Bt, D, N)``.
        D: ``(Bt, D, 1)``.
        bias: ``(Bt, D, 1)``.
    """

    u: np.ndarray
    delta: np.ndarray
    z: np.ndarray
    dt: np.ndarray
    dt_proj: np.ndarray
    B: np.ndarray
    C: np.ndarray
    A: np.ndarray
    D: np.ndarray
    bias: np.ndarray


class Sums(NamedTuple):
    """The running gradients of a channel block.

    ``dt``, ``B`` and ``C`` belong to the current chunk, ``(R, CHUNK)`` and ``(P, CHUNK)``. The
    others are vectors: ``carry`` holds the gradients of the states, and the rest are sums over the
    positions so far.
    """

    carry: np.ndarray
    A: np.ndarray
    D: np.ndarray
    bias: np.ndarray
    dt_proj: np.ndarray
    dt: np.ndarray
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
        decays: Decays of `WIDE` states.
        states: `WIDE` states, those after position i at index i + 1.
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
def make_sums(u, states, rank):
    """Allocate the sums of any channel block, for P states."""
    return Sums(
        buffer(TILES * states, u),
        buffer(TILES * states, u),
        buffer(TILES, u),
        buffer(TILES, u),
        buffer(TILES * rank, u),
        np.empty(rank * CHUNK, u.dtype),
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
def write_sums(scan, block, sums, grads):
    """Write the gradients of a channel block that are sums over the sequence."""
    states, b = pad_states(scan.A.shape[1]), block.batch
    for number in range(block.tiles):
        channel = block.begin + number * LANES
        width = min(LANES, block.end - channel)
        write_matrix(grads.A[b], channel, width, sums.A, number * states * LANES)
        rank = scan.dt_proj.shape[1]
        write_matrix(grads.dt_proj[b], channel, width, sums.dt_proj, number * rank * LANES)
        write_matrix(grads.D[b], channel, width, sums.D, number * LANES)
        write_matrix(grads.bias[b], channel, width, sums.bias, number * LANES)
