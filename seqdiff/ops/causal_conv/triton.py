"""The convolution on a CUDA device, by Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiff.ops.causal_conv.operator import register_conv
from seqdiff.ops.causal_conv.triton_kernels import conv_outputs, conv_slopes
from seqdiff.ops.operators import compute_dtype
from seqdiff.ops.triton_common import BLOCK, ceil_div, kind_of, launch, strided

SPAN = 32
"""Number of positions that one program processes."""


def causal_conv1d_triton(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool
) -> Tensor:
    """Run the convolution on a CUDA device, in float64 if any input is float64, else in float32.

    Args:
        x: Input ``(B, D, L)``.
        weight: Filter ``(D, W)``.
        bias: ``(D,)``.
        silu: Whether SiLU follows.
        reverse: Read the positions to the right instead of those to the left.

    Returns:
        The filtered input in x's dtype.

    Raises:
        ValueError: The tensors are not on a CUDA device.
    """
    offset = None if bias is None else bias.contiguous()
    return torch.ops.seqdiff.causal_conv1d_triton(x, weight, offset, silu, reverse)


def _grid(x: Tensor) -> tuple[int, int, int]:
    return x.shape[0], ceil_div(x.shape[1], BLOCK), ceil_div(x.shape[2], SPAN)


def _options(weight: Tensor, dtype: torch.dtype, silu: bool, reverse: bool) -> dict[str, object]:
    return {
        "SILU": silu,
        "REVERSE": reverse,
        "TAPS": weight.shape[1],
        "SPAN": SPAN,
        "BLOCK": BLOCK,
        "KIND": kind_of(dtype),
        "enable_fp_fusion": True,
    }


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool) -> Tensor:
    out = torch.empty_like(x)
    options = _options(weight, compute_dtype(x, weight, bias), silu, reverse)
    arguments = [*strided(x, weight), bias, *strided(out), x.shape[1], x.shape[2]]
    launch(conv_outputs, _grid(x), x, arguments, options)
    return out


def _backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool, d_out: Tensor
) -> list[Tensor]:
    dtype, grid = compute_dtype(x, weight, bias), _grid(x)
    batch, channels, length = x.shape
    slope, dx = torch.empty_like(x, dtype=dtype), torch.empty_like(x)
    d_weight = x.new_empty(batch, grid[2], weight.shape[1], channels, dtype=dtype)
    d_bias = x.new_empty(batch, grid[2], channels, dtype=dtype)
    begin = [
        *strided(x, weight), bias, *strided(d_out, slope), d_weight, d_bias, channels, length
    ]  # fmt: skip
    launch(conv_slopes, grid, x, begin, _options(weight, dtype, silu, reverse))
    finish = [*strided(slope, weight), None, *strided(dx), channels, length]
    launch(conv_outputs, grid, x, finish, _options(weight, dtype, False, not reverse))
    d_weight = d_weight.sum((0, 1)).mT.to(weight.dtype).contiguous()
    d_bias = d_bias.sum((0, 1)).to(dtype if bias is None else bias.dtype)
    return [dx, d_weight, d_bias]


register_conv("causal_conv1d_triton", _forward, _backward)
