"""Triton kernels of the depthwise causal convolution.

A program computes one tile: SPAN positions by BLOCK channels of one row (a sequence of the batch).
Positions are counted in the order in which they are read, so from the right if REVERSE. A tensor is
followed by the tuple of its strides.
"""

from __future__ import annotations

import triton
import triton.language as tl

from seqdiff.ops.triton_common import sigmoid

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false


@triton.jit
def tile_of(channels, length, SPAN: tl.constexpr, BLOCK: tl.constexpr):
    """Return the row, the positions, the channels and the mask of this program's tile."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(2) * SPAN + tl.arange(0, SPAN)
    d = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    return row, i, d.to(tl.int64), (i < length)[:, None] & (d < channels)[None, :]


@triton.jit
def at(tensor, s, row, i, d, length, REVERSE: tl.constexpr):
    """Return pointers to the tile of positions i and channels d."""
    place = (length - 1 - i if REVERSE else i).to(tl.int64)
    return tensor + row * s[0] + d[None, :] * s[1] + place[:, None] * s[2]


@triton.jit
def tap(weight, s, w, d, channels, KIND: tl.constexpr):
    """Load column w of the filter."""
    return tl.load(weight + d * s[0] + w * s[1], mask=d < channels, other=0).to(KIND)[None, :]


@triton.jit
def shifted(x, sx, row, i, d, back, channels, length, REVERSE: tl.constexpr, KIND: tl.constexpr):
    """Load the tile ``back`` positions before i; it is zero outside the row."""
    source = i - back
    has = ((source >= 0) & (source < length))[:, None] & (d < channels)[None, :]
    return tl.load(at(x, sx, row, source, d, length, REVERSE), mask=has, other=0).to(KIND)


@triton.jit
def filtered(
    x, sx, weight, s_weight, bias, row, i, d, channels, length,
    TAPS: tl.constexpr, REVERSE: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute the convolution before its activation."""
    total = tl.zeros((i.shape[0], d.shape[0]), KIND)
    if bias is not None:
        total += tl.load(bias + d, mask=d < channels, other=0).to(KIND)[None, :]
    for w in tl.static_range(TAPS):
        moved = shifted(x, sx, row, i, d, TAPS - 1 - w, channels, length, REVERSE, KIND)
        total += moved * tap(weight, s_weight, w, d, channels, KIND)
    return total


@triton.jit
def conv_outputs(
    x, sx, weight, s_weight, bias, out, s_out, channels, length, SILU: tl.constexpr,
    TAPS: tl.constexpr, REVERSE: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """Convolve and activate one tile."""
    row, i, d, has = tile_of(channels, length, SPAN, BLOCK)
    y = filtered(
        x, sx, weight, s_weight, bias, row, i, d, channels, length, TAPS, REVERSE, KIND
    )  # fmt: skip
    if SILU:
        y *= sigmoid(y)
    tl.store(at(out, s_out, row, i, d, length, REVERSE), y, mask=has)


@triton.jit
def conv_slopes(
    x, sx, weight, s_weight, bias, d_out, s_dout, slope, s_slope, d_weight, d_bias, channels,
    length, SILU: tl.constexpr, TAPS: tl.constexpr, REVERSE: tl.constexpr, SPAN: tl.constexpr,
    BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute the gradient before the activation for one tile.

    Also write this tile's contribution to the gradients of the filter, ``(rows, tiles, W, D)``, and
    of the bias, ``(rows, tiles, D)``, where tiles are counted along the positions.
    """
    row, i, d, has = tile_of(channels, length, SPAN, BLOCK)
    g = tl.load(at(d_out, s_dout, row, i, d, length, REVERSE), mask=has, other=0).to(KIND)
    if SILU:
        y = filtered(
            x, sx, weight, s_weight, bias, row, i, d, channels, length, TAPS, REVERSE, KIND
        )  # fmt: skip
        s = sigmoid(y)
        g *= s * (1 + y * (1 - s))
    tl.store(at(slope, s_slope, row, i, d, length, REVERSE), g, mask=has)
    part = row * tl.num_programs(2) + tl.program_id(2)
    tl.store(d_bias + part * channels + d, tl.sum(g, 0), mask=d < channels)
    for w in tl.static_range(TAPS):
        moved = shifted(x, sx, row, i, d, TAPS - 1 - w, channels, length, REVERSE, KIND)
        into = d_weight + (part * TAPS + w) * channels + d
        tl.store(into, tl.sum(moved * g, 0), mask=d < channels)
