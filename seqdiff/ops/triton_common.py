"""What the Triton kernels share: launches and the sigmoid."""
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
    """Run a kernel on the device of a tensor."""
    with torch.cuda.device_of(like):
        kernel[grid](*arguments, **options)  # pyright: ignore


def kind_of(dtype: torch.dtype) -> tl.dtype:
    """Triton's name of a compute dtype."""
    return _KINDS[dtype]


def ceil_div(a: int, b: int) -> int:
    """The quotient, rounded up."""
    return -(-a // b)


@triton.jit
def sigmoid(x):
    """Logistic function of a float tile."""
    return 1 / (1 + tl.exp(-x))
