"""Linear layer: by oneDNN for many rows on the CPU, by PyTorch otherwise.

PyTorch multiplies float32 matrices with MKL. ``python -m benchmarks.linear`` compares both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

ROWS = 256


def linear(
    x: Float[Tensor, "*shape K"],
    weight: Float[Tensor, "N K"],
    bias: Float[Tensor, " N"] | None = None,
) -> Float[Tensor, "*shape N"]:
    """Compute ``x @ weight.T + bias`` like ``torch.nn.functional.linear``.

    Args:
        x: Vectors along the last axis.
        weight: Weight.
        bias: Added to each product; None for no bias.
    """
    if not _uses_onednn(x, weight):
        return F.linear(x, weight, bias)
    if not torch.is_grad_enabled():  # each call of a Function takes a tenth of a millisecond
        return _multiply(x, weight, bias)
    out = _Product.apply(x, weight, bias)
    assert isinstance(out, Tensor)
    return out


class Linear(nn.Linear):
    """``torch.nn.Linear`` by `linear`."""

    def forward(self, input: Float[Tensor, "*shape K"]) -> Float[Tensor, "*shape N"]:
        """Multiply by the weight and add the bias."""
        return linear(input, self.weight, self.bias)


def _uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return whether the product has enough rows to gain from oneDNN, in a type that it has."""
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and x.shape[:-1].numel() >= ROWS
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
        and not torch.compiler.is_compiling()  # the compiler chooses and fuses products itself
        and not torch._C._are_functorch_transforms_active()  # oneDNN's operator has no such rules
        and forward_ad._current_level < 0
    )


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Product(torch.autograd.Function):
    """``x @ weight.T + bias`` by oneDNN."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _multiply(x, weight, bias)

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor
    ) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad, (wants_x, wants_weight, wants_bias) = grads[0], ctx.needs_input_grad
        rows, slopes = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        return (
            linear(grad, weight.mT) if wants_x else None,
            _weight_gradient(rows, slopes) if wants_weight else None,
            slopes.sum(0) if wants_bias else None,
        )


def _weight_gradient(rows: Tensor, slopes: Tensor) -> Tensor:
    """Compute ``slopes.T @ rows`` by MKL, which is faster if the result is wider than high."""
    if slopes.shape[1] <= rows.shape[1]:
        return slopes.mT @ rows
    return (rows.mT @ slopes).mT.contiguous()
