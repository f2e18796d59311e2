"""Tiles: `LANES` adjacent channels by some positions, copied between arrays and buffers.

Arrays have any strides. Buffers are contiguous and hold the vector of position i at element
``i * LANES``. If fewer than `LANES` channels are left, the remaining lanes of a tile are zero and
are not written to arrays.
"""

from __future__ import annotations

import math

import numpy as np

from seqdiff.ops.cpu_simd.jit import inlined, inner
from seqdiff.ops.cpu_simd.math import exp2, log1p
from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    add,
    div,
    fma,
    full_like,
    load,
    load_first,
    maximum,
    mul,
    peek,
    poke,
    prefetch,
    store,
    store_first,
    sub,
)

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


LOG2E = math.log2(math.e)


@inner
def buffer(vectors, like):
    """Allocate a number of vectors of zeros.

    The memory is aligned to cache lines, since accesses that straddle two lines are slow.
    """
    raw = np.empty(vectors * LANES + LANES, like.dtype)
    skip = (-raw.ctypes.data % 64) // like.itemsize
    room = raw[skip : skip + vectors * LANES]
    room[:] = 0.0
    return room


@inner
def read_tile(source, batch, channel, width, first, count, tile):
    """Copy ``source[batch, channel : channel + width, first : first + count]`` into a buffer."""
    size = source.itemsize
    rows, columns = source.strides[2] // size, source.strides[1] // size
    base = batch * (source.strides[0] // size) + channel * columns + first * rows
    if width == LANES and columns == 1:
        for i in range(count):
            store(tile, i * LANES, load(source, base + i * rows))
        return
    if columns == 1:
        for i in range(count):
            store(tile, i * LANES, load_first(source, base + i * rows, width))
        return
    for i in range(count):
        for lane in range(width):
            tile[i * LANES + lane] = source[batch, channel + lane, first + i]
        for lane in range(width, LANES):
            tile[i * LANES + lane] = 0.0


@inner
def write_tile(target, batch, channel, width, first, count, tile):
    """Copy a buffer to ``target[batch, channel : channel + width, first : first + count]``."""
    size = target.itemsize
    rows, columns = target.strides[2] // size, target.strides[1] // size
    base = batch * (target.strides[0] // size) + channel * columns + first * rows
    if width == LANES and columns == 1:
        for i in range(count):
            store(target, base + i * rows, load(tile, i * LANES))
        return
    if columns == 1:
        for i in range(count):
            store_first(target, base + i * rows, load(tile, i * LANES), width)
        return
    for i in range(count):
        for lane in range(width):
            target[batch, channel + lane, first + i] = tile[i * LANES + lane]


@inlined
def put_tile(target, batch, channel, width, first, count, tile, accumulate, scratch):
    """Write a tile with `write_tile`, or add it to the target if ``accumulate``.

    Adding overwrites ``tile`` and ``scratch``, a buffer of the same size.
    """
    if accumulate:
        read_tile(target, batch, channel, width, first, count, scratch)
        for k in range(0, count * LANES, LANES):
            store(tile, k, add(load(tile, k), load(scratch, k)))
    write_tile(target, batch, channel, width, first, count, tile)


@inner
def expect_tile(array, batch, channel, first, count):
    """Prefetch what `read_tile` or `write_tile` will soon access, if channels are adjacent.

    With adjacent channels, two positions lie as far apart as there are channels. At such distances
    the processor does not prefetch by itself.
    """
    size = array.itemsize
    rows, columns = array.strides[2] // size, array.strides[1] // size
    if columns == 1:
        base = batch * (array.strides[0] // size) + channel + first * rows
        for i in range(count):
            prefetch(array, base + i * rows)


@inlined
def copy_rows(source, source_at, target, target_at, rows, columns):
    """Copy a matrix from one array to another.

    ``source_at`` and ``target_at`` each hold the offset of the first element, the stride between
    rows and the stride between columns, in elements. This is faster than indexing the arrays, which
    would spend more time on addresses than on the elements.
    """
    for n in range(rows):
        begin = source_at[0] + n * source_at[1]
        other = target_at[0] + n * target_at[1]
        for i in range(columns):
            poke(target, other + i * target_at[2], peek(source, begin + i * source_at[2]))


@inner
def read_matrix(source, channel, width, buffer, start):
    """Copy ``source[channel : channel + width]`` to a buffer, one vector per column."""
    for n in range(source.shape[1]):
        for lane in range(LANES):
            value = source[channel + lane, n] if lane < width else source.dtype.type(0.0)
            buffer[start + n * LANES + lane] = value


@inner
def write_matrix(target, channel, width, buffer, start):
    """Copy vectors from a buffer to the columns of ``target[channel : channel + width]``."""
    for n in range(target.shape[1]):
        for lane in range(width):
            target[channel + lane, n] = buffer[start + n * LANES + lane]


@inlined
def sigmoid(x):
    """Compute ``1 / (1 + exp(-x))``."""
    one = full_like(x, 1.0)
    return div(one, add(one, exp2(mul(x, full_like(x, -LOG2E)))))


@inlined
def silu_slope(x, s):
    """Compute the derivative of SiLU, ``x * s`` with ``s = sigmoid(x)``."""
    return fma(mul(x, s), sub(full_like(s, 1.0), s), s)


@inlined
def softplus(x):
    """Compute ``log(1 + exp(x))`` without overflow."""
    zero = full_like(x, 0.0)
    magnitude = maximum(sub(zero, x), x)
    rest = log1p(exp2(mul(magnitude, full_like(x, -LOG2E))))
    return add(maximum(x, zero), rest)
