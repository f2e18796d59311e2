"""Matrix product with a weight: in blocks of rows on the CPU, by PyTorch elsewhere.

For thousands of rows and about a hundred columns, whose rows are not aligned to cache lines, MKL
reaches only half of its usual rate. In blocks of rows that stay in the second-level cache it
reaches most of it, and where it does so anyway, blocks are not slower.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

BLOCK = 256


def linear(
    x: Float[Tensor, "*shape K"], weight: Float[Tensor, "N K"], bias: Float[Tensor, " N"] | None
) -> Float[Tensor, "*shape N"]:
    """Compute ``x @ weight.T + bias`` like ``torch.nn.functional.linear``.

    Args:
        x: Vectors along the last axis.
        weight: Weight.
        bias: Added to each product; None for no bias.
    """
    blocked = (
        x.device.type == "cpu"
        and bias is None
        and x.dtype == weight.dtype == torch.float32
        and x.shape[:-1].numel() >= 2 * BLOCK
        and not torch.is_autocast_enabled("cpu")
    )
    return _multiply(x, weight) if blocked else F.linear(x, weight, bias)


def _multiply(x: Tensor, weight: Tensor) -> Tensor:
    out = _Product.apply(x, weight)
    assert isinstance(out, Tensor)
    return out


class _Product(torch.autograd.Function):
    """``x @ weight.T`` in blocks of `BLOCK` rows, and a remainder of fewer rows."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor) -> Tensor:
        rows, right = x.reshape(-1, x.shape[-1]), weight.mT
        out = rows.new_empty(len(rows), right.shape[1])
        count = len(rows) // BLOCK
        whole = count * BLOCK
        blocks, results = (m[:whole].unflatten(0, (count, BLOCK)) for m in (rows, out))
        torch.bmm(blocks, right.expand(count, *right.shape), out=results)
        if whole < len(rows):
            torch.mm(rows[whole:], right, out=out[whole:])
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        grad = grads[0]
        d_x = _multiply(grad, weight.mT) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return d_x, None
        rows, slopes = (m.reshape(-1, m.shape[-1]) for m in (x, grad))
        # MKL is faster if the result has fewer rows than columns.
        if len(weight) <= weight.shape[1]:
            return d_x, slopes.mT @ rows
        return d_x, (rows.mT @ slopes).mT.contiguous()
