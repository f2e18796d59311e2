"""The CPU convolution as a PyTorch operator: differentiable, opaque to ``torch.compile``."""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiff.ops.cpu_simd.runtime import conv_kernel, run_tasks, view
from seqdiff.ops.cpu_simd.vectors import LANES
from seqdiff.ops.dtypes import compute_dtype


def causal_conv1d_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool
) -> Tensor:
    """Run the convolution on the CPU, in float32 or, if any input is in it, float64.

    Args:
        x: Input ``(B, D, L)``.
        weight: Filter ``(D, W)``.
        bias: ``(D,)``.
        silu: Whether SiLU follows.
        reverse: Look right instead of left.

    Returns:
        The filtered input in x's dtype.
    """
    kind = compute_dtype(x, weight, bias)
    offset = None if bias is None else bias.to(kind)
    out = torch.ops.seqdiff.causal_conv1d(x.to(kind), weight.to(kind), offset, silu, reverse)
    return out.to(x.dtype)


@torch.library.custom_op("seqdiff::causal_conv1d", mutates_args=())
def _conv(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool) -> Tensor:
    return run_conv(x, weight, bias, silu, reverse)


def run_conv(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool) -> Tensor:
    """The filtered input; arguments as `_conv` takes them."""
    out = torch.empty_like(x)
    offset = view(None if bias is None else bias[:, None], x, 2)
    arguments = (view(x, x, 3, reverse), view(weight, x, 2), offset, silu, view(out, x, 3, reverse))
    run_tasks(conv_kernel("conv_forward", x.dtype), arguments, x.shape[0] * -(-x.shape[1] // LANES))
    return out


@_conv.register_fake
def _conv_fake(x, weight, bias, silu, reverse):
    return torch.empty_like(x)


@torch.library.custom_op("seqdiff::causal_conv1d_backward", mutates_args=())
def _conv_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    reverse: bool,
    d_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x)
    d_weight, d_bias = run_conv_backward(
        x, weight, bias, silu, reverse, d_out, dx, accumulate=False
    )
    return dx, d_weight, d_bias


def run_conv_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    reverse: bool,
    d_out: Tensor,
    dx: Tensor,
    *,
    accumulate: bool,
) -> tuple[Tensor, Tensor]:
    """Write x's gradient into ``dx``, or add it; arguments as `_conv_backward` takes them.

    Returns:
        The gradients of the filter and of the bias.
    """
    d_weight = x.new_empty(x.shape[0], *weight.shape)
    d_bias = x.new_empty(x.shape[0], x.shape[1], 1)
    offset = view(None if bias is None else bias[:, None], x, 2)
    arguments = (
        view(x, x, 3, reverse), view(weight, x, 2), offset, silu, view(d_out, x, 3, reverse),
        view(dx, x, 3, reverse), accumulate, view(d_weight, x, 3), view(d_bias, x, 3),
    )  # fmt: skip
    run_tasks(
        conv_kernel("conv_backward", x.dtype), arguments, x.shape[0] * -(-x.shape[1] // LANES)
    )
    return d_weight.sum(0), d_bias.sum((0, 2))


@_conv_backward.register_fake
def _conv_backward_fake(x, weight, bias, silu, reverse, d_out):
    return torch.empty_like(x), weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _conv_context(ctx, inputs, output):
    x, weight, bias, silu, reverse = inputs
    ctx.save_for_backward(x, weight, bias)
    ctx.options = (silu, reverse)


def _conv_gradients(ctx, d_out):
    x, weight, bias = ctx.saved_tensors
    dx, d_weight, d_bias = torch.ops.seqdiff.causal_conv1d_backward(
        x, weight, bias, *ctx.options, d_out
    )
    return dx, d_weight, None if bias is None else d_bias, None, None


_conv.register_autograd(_conv_gradients, setup_context=_conv_context)
