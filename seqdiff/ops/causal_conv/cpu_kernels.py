"""Numba kernels of the depthwise causal convolution with SiLU, forward and backward.

A task is one batch row and one vector of channels. Looking right instead of left is a view with
negative strides. Rows may be cut into blocks: the ``W - 1`` positions before a block are then its
tail, which is given or zero. A row that is not cut is one block.
"""

from __future__ import annotations

from seqdiff.ops.cpu_simd.cuts import Cuts, count_cuts, find_cut
from seqdiff.ops.cpu_simd.jit import inlined, inner
from seqdiff.ops.cpu_simd.tiles import (
    buffer,
    put_tile,
    read_matrix,
    read_tile,
    sigmoid,
    silu_slope,
    write_matrix,
    write_tile,
)
from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    add,
    fma,
    load,
    load_first,
    mul,
    next_task,
    store,
    store_first,
    sub,
)

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


CHUNK = 64


@inlined
def _tail_place(tails, b, number, row, channel):
    size = tails.itemsize
    place = b * tails.strides[0] + number * tails.strides[1] + row * tails.strides[2]
    return place // size + channel


@inlined
def _read_window(x, tails, b, number, channel, width, begin, first, count, taps, window):
    """Load a chunk and the ``taps - 1`` positions before it, of which the tail holds some."""
    before = min(first - begin, taps - 1)
    missing = taps - 1 - before
    if tails.size:
        for row in range(missing):
            place = _tail_place(tails, b, number, first - begin + row, channel)
            store(window, row * LANES, load_first(tails, place, width))
    else:
        window[: missing * LANES] = 0.0
    rest = window[missing * LANES :]
    read_tile(x, b, channel, width, first - before, count + before, rest)


@inlined
def filter_at(window, weights, bias, taps, i):
    """The filtered value at the chunk's position i."""
    value = load(bias, 0)
    for w in range(taps):
        value = fma(load(weights, w * LANES), load(window, (i + w) * LANES), value)
    return value


def conv_forward(counter, x, weight, bias, silu, period, lead, tails, out):
    """Take tasks until none is left, and fill out.

    Args:
        counter: One int64 that all threads share, 0 at the start.
        x: ``(B, D, L)``, any strides.
        weight: ``(D, W)``.
        bias: ``(D, 1)``, size 0 when absent.
        silu: Whether SiLU follows.
        period: Positions of a block, see `Cuts`.
        lead: Positions of the block read first.
        tails: Inputs before each block ``(B, n, W - 1, D)``, channels adjacent, or size 0.
        out: ``(B, D, L)``, any strides.
    """
    batches, channels, length = x.shape
    taps, tiles, cuts = weight.shape[1], -(-channels // LANES), Cuts(period, lead, False)
    window, result = buffer(CHUNK + taps, x), buffer(CHUNK, x)
    weights, offset = buffer(taps, x), buffer(1, x)
    while True:
        task = next_task(counter)
        if task >= batches * tiles:
            return
        b, channel = task // tiles, task % tiles * LANES
        width = min(LANES, channels - channel)
        read_matrix(weight, channel, width, weights, 0)
        if bias.size:
            read_matrix(bias, channel, width, offset, 0)
        for number in range(count_cuts(cuts, length)):
            begin, end = find_cut(cuts, length, number)
            for first in range(begin, end, CHUNK):
                count = min(CHUNK, end - first)
                _read_window(x, tails, b, number, channel, width, begin, first, count, taps, window)
                for i in range(count):
                    value = filter_at(window, weights, offset, taps, i)
                    store(result, i * LANES, mul(value, sigmoid(value)) if silu else value)
                write_tile(out, b, channel, width, first, count, result)


@inlined
def through_silu(window, weights, bias, taps, count, slopes):
    """Multiply the output's gradients by SiLU's slope, in place."""
    for i in range(count):
        value = filter_at(window, weights, bias, taps, i)
        s = sigmoid(value)
        store(slopes, i * LANES, mul(load(slopes, i * LANES), silu_slope(value, s)))


@inlined
def gather(slopes, weights, taps, count, window, dx, d_weights, d_bias):
    """From gradients before the activation to those of x, the filter and the bias."""
    sum_bias = load(d_bias, 0)
    for i in range(count):
        slope = load(slopes, i * LANES)
        sum_bias = add(sum_bias, slope)
        value = sub(slope, slope)
        for w in range(taps):
            later = load(slopes, (i + taps - 1 - w) * LANES)
            value = fma(load(weights, w * LANES), later, value)
        store(dx, i * LANES, value)
    store(d_bias, 0, sum_bias)
    for w in range(taps):
        sum_weight = load(d_weights, w * LANES)
        for i in range(count):
            place = load(window, (i + w) * LANES)
            sum_weight = fma(load(slopes, i * LANES), place, sum_weight)
        store(d_weights, w * LANES, sum_weight)


@inner
def _write_tail(d_tails, b, number, channel, width, slopes, weights, taps):
    """The gradient of a block's tail, from those before the activation at its first positions."""
    for row in range(taps - 1):
        zero = load(weights, 0)
        value = sub(zero, zero)
        for w in range(row + 1):
            value = fma(load(weights, w * LANES), load(slopes, (row - w) * LANES), value)
        store_first(d_tails, _tail_place(d_tails, b, number, row, channel), value, width)


def conv_backward(
    counter, x, weight, bias, silu, period, lead, tails, d_out, dx, accumulate, d_weight, d_bias,
    d_tails,
):  # fmt: skip
    """Take tasks until none is left, and fill the gradients.

    Args:
        counter: See `conv_forward`.
        x: Likewise.
        weight: Likewise.
        bias: Likewise.
        silu: Likewise.
        period: Likewise.
        lead: Likewise.
        tails: Likewise.
        d_out: Gradient of the output ``(B, D, L)``, any strides.
        dx: Gradient of x, any strides.
        accumulate: Whether to add to dx.
        d_weight: Each row's gradient of the filter ``(B, D, W)``.
        d_bias: Each row's gradient of the bias ``(B, D, 1)``.
        d_tails: Gradient of the tails, like them.
    """
    batches, channels, length = x.shape
    taps, tiles, cuts = weight.shape[1], -(-channels // LANES), Cuts(period, lead, False)
    window, slopes = buffer(CHUNK + taps, x), buffer(CHUNK + taps, x)
    result, weights, offset = buffer(CHUNK, x), buffer(taps, x), buffer(1, x)
    sum_weights, sum_bias = buffer(taps, x), buffer(1, x)
    while True:
        task = next_task(counter)
        if task >= batches * tiles:
            return
        b, channel = task // tiles, task % tiles * LANES
        width = min(LANES, channels - channel)
        read_matrix(weight, channel, width, weights, 0)
        if bias.size:
            read_matrix(bias, channel, width, offset, 0)
        sum_weights[:] = 0.0
        sum_bias[:] = 0.0
        for number in range(count_cuts(cuts, length)):
            begin, end = find_cut(cuts, length, number)
            slopes[: (taps - 1) * LANES] = 0.0
            for chunk in range((end - begin - 1) // CHUNK, -1, -1):
                first = begin + chunk * CHUNK
                count = min(CHUNK, end - first)
                for w in range(taps - 2, -1, -1):
                    store(slopes, (count + w) * LANES, load(slopes, w * LANES))
                _read_window(x, tails, b, number, channel, width, begin, first, count, taps, window)
                read_tile(d_out, b, channel, width, first, count, slopes)
                if silu:
                    through_silu(window, weights, offset, taps, count, slopes)
                gather(slopes, weights, taps, count, window, result, sum_weights, sum_bias)
                put_tile(dx, b, channel, width, first, count, result, accumulate, window)
            if d_tails.size:
                _write_tail(d_tails, b, number, channel, width, slopes, weights, taps)
        write_matrix(d_weight[b], channel, width, sum_weights, 0)
        write_matrix(d_bias[b], channel, width, sum_bias, 0)
