"""What the scan's kernels work on: inputs, blocks of channels, cuts of rows, chunks and buffers."""

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
TILES = 4


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


@inner
def count_groups(scan):
    """Groups of channels that share B and C."""
    by_B = 1 if scan.constant_B else scan.B.shape[1]
    by_C = 1 if scan.constant_C else scan.C.shape[1]
    return max(by_B, by_C)


@inner
def count_blocks(channels, groups):
    """Count the blocks of channels of one group."""
    return -(-(channels // groups) // (LANES * TILES))


@inner
def place(task, channels, groups):
    """The block of a task's number."""
    per_group = channels // groups
    blocks = count_blocks(channels, groups)
    group, index = task // blocks % groups, task % blocks
    begin = group * per_group + index * TILES * LANES
    end = min(begin + TILES * LANES, (group + 1) * per_group)
    tiles = -(-(end - begin) // LANES)
    return Block(task // (groups * blocks), group, index, begin, end, tiles)


@inner
def count_together(scan):
    """How many states go `WIDE` at a time; the rest, all where B or C is constant, one by one."""
    states = scan.A.shape[1]
    return 0 if scan.constant_B or scan.constant_C else states - states % WIDE


@inner
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


@inner
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


@inlined
def map_place(array, index, first):
    """Where `copy_rows` finds ``array[index]``, (N, L), from a position on."""
    size, axes = array.itemsize, len(index)
    start = first * array.strides[axes + 1]
    for axis in range(axes):
        start += index[axis] * array.strides[axis]
    return start // size, array.strides[axes] // size, array.strides[axes + 1] // size


@inlined
def read_chunk(scan, block, first, count, maps):
    """Load the B and C of one chunk, states outermost."""
    index, place, states = (block.batch, block.group), (0, CHUNK, 1), scan.A.shape[1]
    if not scan.constant_B:
        copy_rows(scan.B, map_place(scan.B, index, first), maps.B, place, states, count)
    if not scan.constant_C:
        copy_rows(scan.C, map_place(scan.C, index, first), maps.C, place, states, count)


@inlined
def expect_inputs(scan, batch, channel, first, count):
    """Start to fetch a tile of each input that another chunk will read."""
    expect_tile(scan.delta, batch, channel, first, count)
    expect_tile(scan.u, batch, channel, first, count)
    if scan.z.size:
        expect_tile(scan.z, batch, channel, first, count)


class Span(NamedTuple):
    """One chunk of one tile: ``size`` positions of the cuts from ``number`` to ``last``."""

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
    """Count the groups of cuts: a group is one long cut, or the short ones that share a chunk."""
    return -(-count_cuts(cuts, length) // max(1, CHUNK // cuts.period))


@inner
def find_group_of_cuts(cuts, length, group):
    """First and last cut of a group, and where they begin and end."""
    together = max(1, CHUNK // cuts.period)
    number = group * together
    last = min(count_cuts(cuts, length), number + together) - 1
    return number, last, find_cut(cuts, length, number)[0], find_cut(cuts, length, last)[1]


@inner
def saved_place(cuts, group, chunk):
    """Where the state before a chunk inside a long cut is kept."""
    return group * ((cuts.period - 1) // CHUNK) + chunk - 1


@inlined
def find_piece(cuts, span, number):
    """A cut's positions in a chunk, from and to, and whether it begins there and ends there."""
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
    """Where a tile's state n before a cut lies, channels being adjacent, and how far n + 1 is."""
    size = borders.itemsize
    start = span.batch * borders.strides[0] + number * borders.strides[1]
    stride = borders.strides[3] // size
    return start // size + span.channel + n * stride, stride


class Gradients(NamedTuple):
    """Where gradients go.

    Those of constant B and C and of A are ``(Bt, D, N)``, of D and the bias
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


@inner
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


@inner
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


@inner
def write_maps(scan, block, first, count, sums, grads):
    """Write the present chunk's gradients of B and C."""
    index, place = (block.batch, block.group, block.place), (0, CHUNK, 1)
    states = scan.A.shape[1]
    if not scan.constant_B:
        copy_rows(sums.B, place, grads.B, map_place(grads.B, index, first), states, count)
    if not scan.constant_C:
        copy_rows(sums.C, place, grads.C, map_place(grads.C, index, first), states, count)


@inner
def write_sums(scan, block, sums, grads):
    """Write a block's gradients that are sums over the sequence."""
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
