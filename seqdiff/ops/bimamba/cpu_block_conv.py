"""Numba kernels of the causal convolution with SiLU over rows cut into blocks of tokens.

What a block's first positions reach for lies in its tail, ``W - 1`` positions that are given with
it, or is zero.
"""

from __future__ import annotations

from numba import njit

from seqdiff.ops.bimamba.cpu_block_cuts import Cuts, count_cuts, find_cut
from seqdiff.ops.causal_conv.cpu_kernels import CHUNK, filter_at, gather, through_silu
from seqdiff.ops.cpu_simd.tasks import next_task
from seqdiff.ops.cpu_simd.tiles import (
    buffer,
    put_tile,
    read_matrix,
    read_tile,
    sigmoid,
    write_matrix,
    write_tile,
)
from seqdiff.ops.cpu_simd.vectors import LANES, fma, load, load_first, mul, store, store_first, sub

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


@njit(forceinline=True)
def _tail_place(tails, b, number, row, channel):
    size = tails.itemsize
    place = b * tails.strides[0] + number * tails.strides[1] + row * tails.strides[2]
    return place // size + channel


@njit(forceinline=True)
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


def block_conv_forward(counter, x, weight, bias, silu, period, lead, tails, out):
    """Take tasks until none is left, and fill out.

    Args:
        counter: One int64 that all threads share, 0 at the start.
        x: ``(B, D, L)``, any strides.
        weight: ``(D, W)``.
        bias: ``(D, 1)``, size 0 when absent.
        silu: Whether SiLU follows.
        period: See `seqdiff.ops.bimamba.cpu_block_scan.Cuts`.
        lead: Likewise.
        tails: ``(B, n, W - 1, D)``, channels adjacent, or size 0.
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


@njit
def _write_tail(d_tails, b, number, channel, width, slopes, weights, taps):
    """The gradient of a block's tail, from those before the activation at its first positions."""
    for row in range(taps - 1):
        zero = load(weights, 0)
        value = sub(zero, zero)
        for w in range(row + 1):
            value = fma(load(weights, w * LANES), load(slopes, (row - w) * LANES), value)
        store_first(d_tails, _tail_place(d_tails, b, number, row, channel), value, width)


def block_conv_backward(
    counter, x, weight, bias, silu, period, lead, tails, d_out, dx, accumulate, d_weight, d_bias,
    d_tails,
):  # fmt: skip
    """Take tasks until none is left, and fill the gradients.

    Args:
        counter: See `block_conv_forward`.
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
