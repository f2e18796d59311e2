"""Registration of a backend of the convolution as a PyTorch operator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from seqdiff.ops.operators import compute_dtype, differentiable_operator


def register_conv(
    name: str, forward: Callable[..., Tensor], backward: Callable[..., list[Tensor]]
) -> None:
    """Register a backend.

    Args:
        name: Name of the operator.
        forward: Takes x, the filter, its bias or None, whether SiLU follows, and ``reverse``.
            Returns the output.
        backward: Takes the same arguments and the gradient of the output. Returns the gradients of
            x, the filter and the bias; the last is ignored if there is no bias.
    """

    def backward_fake(x, weight, bias, silu, reverse, d_out):
        dtype = compute_dtype(x, weight) if bias is None else bias.dtype
        d_bias = weight.new_empty(weight.shape[0], dtype=dtype)
        return [torch.empty_like(x), weight.new_empty(weight.shape), d_bias]

    differentiable_operator(
        name,
        forward,
        lambda x, weight, bias, silu, reverse: torch.empty_like(x),
        backward,
        backward_fake,
        remember=lambda inputs, _: (inputs[:3], inputs[3:]),
        differentiable=3,
    )
