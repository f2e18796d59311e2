"""RMSNorm: one call, a kernel on the CPU, PyTorch's own elsewhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def rms_norm(
    x: Float[Tensor, "*shape D"], weight: Float[Tensor, " D"], eps: float
) -> Float[Tensor, "*shape D"]:
    """Divide each vector by its root mean square, and scale its channels.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. PyTorch's own is ten operations
    on the CPU; the kernel is one pass in each direction.

    Args:
        x: Vectors along the last axis.
        weight: Gain of each channel.
        eps: Added to the mean square.

    Raises:
        ValueError: If ``weight`` does not fit the channels.
    """
    if weight.shape != x.shape[-1:]:
        raise ValueError(
            f"rms_norm.weight must have shape {tuple(x.shape[-1:])}, got {tuple(weight.shape)}"
        )
    wide = x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64)
    if x.device.type == "cpu" and wide and x.numel():
        from .cpu_norm_op import rms_norm_cpu

        return rms_norm_cpu(x, weight, eps)
    return F.rms_norm(x, weight.shape, weight, eps)
