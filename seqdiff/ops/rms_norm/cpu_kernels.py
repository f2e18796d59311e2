"""Numba kernels of RMSNorm, forward and backward.

The input is a matrix ``(M, D)`` whose rows are normalised. A task is `ROWS` rows. The lanes of a
SIMD vector hold adjacent channels. Sums over channels are computed for `LANES` rows at a time. Each
task writes its own part of the weight's gradient.
"""

from __future__ import annotations

import math

from seqdiff.ops.cpu_simd.jit import inlined
from seqdiff.ops.cpu_simd.tiles import buffer
from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    fma,
    load,
    load_first,
    mul,
    next_task,
    splat,
    store,
    store_first,
    sub,
    sum_lanes,
)

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


ROWS = 64


@inlined
def _read(array, at, left):
    """Load the vector at offset ``at``; lanes beyond the ``left`` remaining channels are zero."""
    return load(array, at) if left >= LANES else load_first(array, at, left)


@inlined
def _write(array, at, left, value):
    """Store a vector at offset ``at``, without lanes beyond the ``left`` remaining channels."""
    if left >= LANES:
        store(array, at, value)
    else:
        store_first(array, at, value, left)


def norm_forward(counter, x, weight, eps, out, inverse):
    """Run tasks until none is left, and fill ``out`` and ``inverse``.

    Args:
        counter: The number of the next task, one int64 that all threads share; 0 at first.
        x: ``(M, D)``, contiguous.
        weight: ``(D,)``, contiguous.
        eps: Added to the mean square, ``(1,)``.
        out: ``(M, D)``, contiguous.
        inverse: Reciprocal of the root mean square of each row ``(M,)``.
    """
    rows, channels = x.shape
    parts = buffer(LANES, x)
    while True:
        task = next_task(counter)
        if task * ROWS >= rows:
            return
        for first in range(task * ROWS, min(rows, (task + 1) * ROWS), LANES):
            count = min(LANES, rows - first)
            for r in range(count):
                total = splat(x.dtype.type(0.0))
                for d in range(0, channels, LANES):
                    value = _read(x, (first + r) * channels + d, channels - d)
                    total = fma(value, value, total)
                store(parts, r * LANES, total)
            store(parts, 0, sum_lanes(parts, 0, LANES))
            for r in range(count):
                inverse[first + r] = 1.0 / math.sqrt(parts[r] / channels + eps[0])
            for r in range(count):
                scale = splat(inverse[first + r])
                for d in range(0, channels, LANES):
                    at, left = (first + r) * channels + d, channels - d
                    value = mul(mul(_read(x, at, left), scale), _read(weight, d, left))
                    _write(out, at, left, value)


def norm_backward(counter, x, weight, inverse, d_out, dx, d_weight):
    """Run tasks until none is left, and fill ``dx`` and ``d_weight``.

    With g the gradient of the output and r the reciprocal of the root mean square:
    ``dx = r w g - x r^3 sum(w g x) / D``, ``dw = sum over rows of g x r``.

    Args:
        counter: The number of the next task, one int64 that all threads share; 0 at first.
        x: ``(M, D)``, contiguous.
        weight: ``(D,)``, contiguous.
        inverse: From `norm_forward` ``(M,)``.
        d_out: Gradient of the output ``(M, D)``, contiguous.
        dx: Gradient of x ``(M, D)``, contiguous.
        d_weight: Each task's part of the weight's gradient ``(ceil(M / ROWS), D)``; zero at first.
    """
    rows, channels = x.shape
    parts = buffer(LANES, x)
    while True:
        task = next_task(counter)
        if task * ROWS >= rows:
            return
        for first in range(task * ROWS, min(rows, (task + 1) * ROWS), LANES):
            count = min(LANES, rows - first)
            for r in range(count):
                total = splat(x.dtype.type(0.0))
                for d in range(0, channels, LANES):
                    at, left = (first + r) * channels + d, channels - d
                    weighed = mul(_read(d_out, at, left), _read(weight, d, left))
                    total = fma(weighed, _read(x, at, left), total)
                store(parts, r * LANES, total)
            store(parts, 0, sum_lanes(parts, 0, LANES))
            for r in range(count):
                scale = inverse[first + r]
                through = splat(x.dtype.type(scale * scale * scale * parts[r] / channels))
                for d in range(0, channels, LANES):
                    at, left = (first + r) * channels + d, channels - d
                    value, slope = _read(x, at, left), mul(_read(d_out, at, left), splat(scale))
                    own = task * channels + d
                    _write(d_weight, own, left, fma(slope, value, _read(d_weight, own, left)))
                    weighed = mul(slope, _read(weight, d, left))
                    _write(dx, at, left, sub(weighed, mul(value, through)))
