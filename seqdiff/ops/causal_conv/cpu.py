"""The convolution on the CPU, over whole rows or over their token blocks.

The docstring of `seqdiff.ops.cpu_simd` explains the words used here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiff.ops.causal_conv.cpu_kernels import conv_backward, conv_forward
from seqdiff.ops.causal_conv.operator import register_conv
from seqdiff.ops.cpu_simd.cuts import Cut
from seqdiff.ops.cpu_simd.runtime import copy, run_tasks, view
from seqdiff.ops.cpu_simd.vectors import LANES
from seqdiff.ops.operators import compute_dtype


def causal_conv1d_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool
) -> Tensor:
    """Run the convolution on the CPU, in float64 if any input is float64, else in float32.

    Args:
        x: Input ``(B, D, L)``.
        weight: Filter ``(D, W)``.
        bias: ``(D,)``.
        silu: Whether SiLU follows.
        reverse: Read the positions to the right instead of those to the left.

    Returns:
        The filtered input in x's dtype.
    """
    kind = compute_dtype(x, weight, bias)
    offset = None if bias is None else bias.to(kind)
    out = torch.ops.seqdiff.causal_conv1d(x.to(kind), weight.to(kind), offset, silu, reverse)
    return out.to(x.dtype)


def run_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, cut: Cut, tails: Tensor | None
) -> Tensor:
    """Run the forward kernel.

    Args:
        x: Input ``(B, D, L)``.
        weight: Filter ``(D, W)``.
        bias: ``(D,)``.
        silu: Whether SiLU follows.
        cut: How rows are divided into token blocks.
        tails: The inputs before each of n token blocks ``(B, n, W - 1, D)``; None for zeros.

    Returns:
        The filtered input.
    """
    out = torch.empty_like(x)
    arguments = (*_arguments(x, weight, bias, silu, cut, tails), view(out, x, 3, cut.reverse))
    run_tasks(conv_forward, x, arguments, x.shape[0] * -(-x.shape[1] // LANES))
    return out


def run_conv_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    cut: Cut,
    tails: Tensor | None,
    d_out: Tensor,
    dx: Tensor,
    *,
    add: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Run the backward kernel.

    It writes the gradient of x to ``dx``, or adds it to ``dx`` if ``add``. The other arguments are
    those of ``run_conv`` and the gradient of its output.

    Returns:
        The gradients of the filter, of the bias and of the tails.
    """
    d_weight = x.new_empty(x.shape[0], *weight.shape)
    d_bias = x.new_empty(x.shape[0], x.shape[1], 1)
    d_tails = None if tails is None else x.new_empty(tails.shape)
    arguments = (
        *_arguments(x, weight, bias, silu, cut, tails),
        view(d_out, x, 3, cut.reverse),
        view(dx, x, 3, cut.reverse),
        add,
        view(d_weight, x, 3),
        view(d_bias, x, 3),
        view(d_tails, x, 4),
    )
    run_tasks(conv_backward, x, arguments, x.shape[0] * -(-x.shape[1] // LANES))
    return d_weight.sum(0), d_bias.sum((0, 2)), d_tails


def _arguments(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, cut: Cut, tails: Tensor | None
) -> tuple:
    if tails is not None and tails.stride(-1) != 1:
        tails = tails.contiguous()
    offset = copy(None if bias is None else bias[:, None], x, 2)
    places = (view(x, x, 3, cut.reverse), copy(weight, x, 2), offset, silu)
    return (*places, *cut.arguments(x.shape[2]), view(tails, x, 4))


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool) -> Tensor:
    return run_conv(x, weight, bias, silu, Cut(x.shape[2], reverse), None)


def _backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool, d_out: Tensor
) -> list[Tensor]:
    dx, cut = torch.empty_like(x), Cut(x.shape[2], reverse)
    d_weight, d_bias, _ = run_conv_backward(x, weight, bias, silu, cut, None, d_out, dx, add=False)
    return [dx, d_weight, d_bias]


register_conv("causal_conv1d", _forward, _backward)
