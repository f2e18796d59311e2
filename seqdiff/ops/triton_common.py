"""What the Triton kernels share: launches, pointwise functions and how a position is read."""
# pyright: reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32
"""Channels of one program: one a lane."""

_KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}


def strided(*tensors: Tensor | None) -> list[object]:
    """Each tensor followed by its strides, as the kernels take them."""
    return [part for t in tensors for part in (t, None if t is None else t.stride())]


def launch(
    kernel: object,
    grid: tuple[int, ...],
    like: Tensor,
    arguments: list[object],
    options: dict[str, object],
) -> None:
    """Run a kernel on the device of a tensor.

    Args:
        kernel: A Triton kernel.
        grid: Its programs.
        like: A tensor on the device.
        arguments: Its arguments in order.
        options: Its compile-time arguments.
    """
    with torch.cuda.device_of(like):
        kernel[grid](*arguments, **options)  # pyright: ignore


def kind_of(dtype: torch.dtype) -> tl.dtype:
    """Triton's name of a compute dtype."""
    return _KINDS[dtype]


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return triton.next_power_of_2(n)


@triton.jit
def sigmoid(x):
    """Logistic function of a float tile."""
    return 1 / (1 + tl.exp(-x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), exact to the last bits where exp(x) vanishes beside 1."""
    e = tl.exp(tl.minimum(x, 20.0, propagate_nan=tl.PropagateNan.ALL))
    w = 1 + e
    small = w == 1
    return tl.where(x > 20, x, tl.where(small, e, tl.log(w) * (e / tl.where(small, 1, w - 1))))


@triton.jit
def place_of(i, length, REVERSE: tl.constexpr):
    """Where the i-th position read lies, kept inside the row."""
    clipped = tl.minimum(i, length - 1)
    return (length - 1 - clipped if REVERSE else clipped).to(tl.int64)


@triton.jit
def inside(mask, i, length):
    """A mask that is off from the end of the row on."""
    return mask & (tl.zeros(mask.shape, tl.int32) + i < length)
