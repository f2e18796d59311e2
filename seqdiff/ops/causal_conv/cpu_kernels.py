"""Numba kernels of the depthwise causal convolution with SiLU, forward and backward.

A task is one batch row and one vector of channels. Looking right instead of left is a view with
negative strides.
"""

from __future__ import annotations

from numba import njit

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
from seqdiff.ops.cpu_simd.vectors import LANES, add, fma, full_like, load, mul, store, sub

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


CHUNK = 64


@njit(forceinline=True)
def _read_window(x, batch, channel, width, first, count, taps, window):
    """Load a chunk and the ``taps - 1`` positions before it, zero where there are none."""
    before = min(first, taps - 1)
    missing = taps - 1 - before
    window[: missing * LANES] = 0.0
    rest = window[missing * LANES :]
    read_tile(x, batch, channel, width, first - before, count + before, rest)


@njit(forceinline=True)
def filter_at(window, weights, bias, taps, i):
    """The filtered value at the chunk's position i."""
    value = load(bias, 0)
    for w in range(taps):
        value = fma(load(weights, w * LANES), load(window, (i + w) * LANES), value)
    return value


def conv_forward(counter, x, weight, bias, silu, out):
    """Take tasks until none is left, and fill out.

    Args:
        counter: One int64 that all threads share, 0 at the start.
        x: ``(B, D, L)``, any strides.
        weight: ``(D, W)``.
        bias: ``(D, 1)``, size 0 when absent.
        silu: Whether SiLU follows.
        out: ``(B, D, L)``, any strides.
    """
    batches, channels, length = x.shape
    taps, tiles = weight.shape[1], -(-channels // LANES)
    window, result = buffer(CHUNK + taps, x), buffer(CHUNK, x)
    weights, offset = buffer(taps, x), buffer(1, x)
    while True:
        task = next_task(counter)
        if task >= batches * tiles:
            return
        batch, channel = task // tiles, task % tiles * LANES
        width = min(LANES, channels - channel)
        read_matrix(weight, channel, width, weights, 0)
        if bias.size:
            read_matrix(bias, channel, width, offset, 0)
        for first in range(0, length, CHUNK):
            count = min(CHUNK, length - first)
            _read_window(x, batch, channel, width, first, count, taps, window)
            for i in range(count):
                value = filter_at(window, weights, offset, taps, i)
                store(result, i * LANES, mul(value, sigmoid(value)) if silu else value)
            write_tile(out, batch, channel, width, first, count, result)


@njit(forceinline=True)
def through_silu(window, weights, bias, taps, count, slopes):
    """Multiply the output's gradients by SiLU's slope, in place."""
    for i in range(count):
        value = filter_at(window, weights, bias, taps, i)
        s = sigmoid(value)
        slope = fma(mul(value, s), sub(full_like(s, 1.0), s), s)
        store(slopes, i * LANES, mul(load(slopes, i * LANES), slope))


@njit(forceinline=True)
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


def conv_backward(counter, x, weight, bias, silu, d_out, dx, accumulate, d_weight, d_bias):
    """Take tasks until none is left, and fill the gradients.

    Args:
        counter: One int64 that all threads share, 0 at the start.
        x: ``(B, D, L)``, any strides.
        weight: ``(D, W)``.
        bias: ``(D, 1)``, size 0 when absent.
        silu: Whether SiLU follows.
        d_out: Gradient of the output ``(B, D, L)``, any strides.
        dx: Gradient of x, any strides.
        accumulate: Whether to add to dx.
        d_weight: Each row's gradient of the filter ``(B, D, W)``.
        d_bias: Each row's gradient of the bias ``(B, D, 1)``.
    """
    batches, channels, length = x.shape
    taps, tiles = weight.shape[1], -(-channels // LANES)
    window, slopes = buffer(CHUNK + taps, x), buffer(CHUNK + taps, x)
    result, weights, offset = buffer(CHUNK, x), buffer(taps, x), buffer(1, x)
    sum_weights, sum_bias = buffer(taps, x), buffer(1, x)
    while True:
        task = next_task(counter)
        if task >= batches * tiles:
            return
        batch, channel = task // tiles, task % tiles * LANES
        width = min(LANES, channels - channel)
        read_matrix(weight, channel, width, weights, 0)
        if bias.size:
            read_matrix(bias, channel, width, offset, 0)
        slopes[:] = 0.0
        sum_weights[:] = 0.0
        sum_bias[:] = 0.0
        for chunk in range((length - 1) // CHUNK, -1, -1):
            first = chunk * CHUNK
            count = min(CHUNK, length - first)
            for w in range(taps - 2, -1, -1):
                store(slopes, (count + w) * LANES, load(slopes, w * LANES))
            _read_window(x, batch, channel, width, first, count, taps, window)
            read_tile(d_out, batch, channel, width, first, count, slopes)
            if silu:
                through_silu(window, weights, offset, taps, count, slopes)
            gather(slopes, weights, taps, count, window, result, sum_weights, sum_bias)
            put_tile(dx, batch, channel, width, first, count, result, accumulate, window)
        write_matrix(d_weight[batch], channel, width, sum_weights, 0)
        write_matrix(d_bias[batch], channel, width, sum_bias, 0)
