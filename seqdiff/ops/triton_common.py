"""Helpers of all Triton kernels: launching, dtypes and the sigmoid."""
# pyright: reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 32
"""Number of channels that one program processes: the width of a warp."""

_KINDS = {torch.float32: tl.float32, torch.float64: tl.float64}


def strided(*tensors: Tensor | None) -> list[object]:
    """Return each tensor followed by its strides, as the kernels expect them; None stays None."""
    return [part for t in tensors for part in (t, None if t is None else t.stride())]


def launch(
    kernel: object,
    grid: tuple[int, ...],
    like: Tensor,
    arguments: list[object],
    options: dict[str, object],
) -> None:
    """Launch a kernel on the device of the tensor ``like``."""
    with torch.cuda.device_of(like):
        kernel[grid](*arguments, **options)  # pyright: ignore


def kind_of(dtype: torch.dtype) -> tl.dtype:
    """Return Triton's name of a compute dtype."""
    return _KINDS[dtype]


def ceil_div(a: int, b: int) -> int:
    """Divide and round up."""
    return -(-a // b)


@triton.jit
def sigmoid(x):
    """Compute the logistic function."""
    return 1 / (1 + tl.exp(-x))
