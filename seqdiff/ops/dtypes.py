"""The dtypes that the operators take and compute in."""

from __future__ import annotations

import torch
from torch import Tensor

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def compute_dtype(*tensors: Tensor | None) -> torch.dtype:
    """float64 when any input is, else float32: nothing is accumulated in less."""
    wide = any(t is not None and t.dtype == torch.float64 for t in tensors)
    return torch.float64 if wide else torch.float32
