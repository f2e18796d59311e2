"""Numba kernels of the depthwise causal convolution with SiLU, forward and backward.

The docstring of `seqdiff.ops.cpu_simd` explains the words used here. A task is one row and one
vector of channels. A token block starts from its tail, the ``W - 1`` inputs before it, which is
given or zero; a row that is not divided is one token block. The kernels process a token block in
chunks of `CHUNK` positions. A window is a chunk together with the ``W - 1`` positions before it.
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
    """Return the offset of a channel in position ``row`` of the tail of token block ``number``."""
    size = tails.itemsize
    place = b * tails.strides[0] + number * tails.strides[1] + row * tails.strides[2]
    return place // size + channel


@inlined
def _read_window(x, tails, b, number, channel, width, begin, first, count, taps, window):
    """Fill the window of a chunk of ``count`` positions that starts at ``first``.

    Positions before ``begin``, where token block ``number`` begins, come from its tail.
    """
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
    """Compute the output at position i of the chunk, before the activation."""
    value = load(bias, 0)
    for w in range(taps):
        value = fma(load(weights, w * LANES), load(window, (i + w) * LANES), value)
    return value


def conv_forward(counter, x, weight, bias, silu, period, lead, tails, out):
    """Run tasks until none is left, and fill ``out``.

    Args:
        counter: The number of the next task, one int64 that all threads share; 0 at first.
        x: ``(B, D, L)``, any strides.
        weight: ``(D, W)``.
        bias: ``(D, 1)``, size 0 when absent.
        silu: Whether SiLU follows.
        period: Length of a token block, see `Cuts`.
        lead: Length of the token block read first.
        tails: Inputs before each token block ``(B, n, W - 1, D)``, with adjacent channels; size 0
            for zeros.
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
    """Multiply the output's gradients by the derivative of SiLU, in place."""
    for i in range(count):
        value = filter_at(window, weights, bias, taps, i)
        s = sigmoid(value)
        store(slopes, i * LANES, mul(load(slopes, i * LANES), silu_slope(value, s)))


@inlined
def gather(slopes, weights, taps, count, window, dx, d_weights, d_bias):
    """Compute the gradient of x, and add to the gradients of the filter and the bias.

    ``slopes`` holds the gradients before the activation: those of the chunk, then those of the
    ``taps - 1`` positions after it.
    """
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
    """Write the gradient of a token block's tail, from the slopes at its first positions."""
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
    """Run tasks until none is left, and fill the gradients.

    Args:
        counter: See `conv_forward`.
        x: See `conv_forward`.
        weight: See `conv_forward`.
        bias: See `conv_forward`.
        silu: See `conv_forward`.
        period: See `conv_forward`.
        lead: See `conv_forward`.
        tails: See `conv_forward`.
        d_out: Gradient of the output ``(B, D, L)``, any strides.
        dx: Gradient of x, any strides.
        accumulate: Whether to add to ``dx`` instead of overwriting it.
        d_weight: Gradient of the filter from each row ``(B, D, W)``.
        d_bias: Gradient of the bias from each row ``(B, D, 1)``.
        d_tails: Gradient of the tails, in their shape; size 0 if there are none.
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
