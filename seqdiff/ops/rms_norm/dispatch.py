"""RMSNorm by a fused kernel on the CPU and by PyTorch elsewhere."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def rms_norm(
    x: Float[Tensor, "*shape D"], weight: Float[Tensor, " D"], eps: float
) -> Float[Tensor, "*shape D"]:
    """Divide each vector by its root mean square, and scale its channels.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467, equation 4. On the CPU in float32 and
    float64, one kernel replaces the ten operations of PyTorch's implementation. It has no second
    derivative.

    Args:
        x: Vectors along the last axis.
        weight: Gain of each channel.
        eps: Added to the mean square.

    Raises:
        ValueError: If ``weight`` has the wrong shape or is on another device than ``x``, or ``eps``
            is not positive.
    """
    if x.ndim < 1 or weight.shape != x.shape[-1:] or weight.device != x.device:
        raise ValueError(
            f"rms_norm.weight must have shape {tuple(x.shape[-1:])} on {x.device} for x of "
            f"{tuple(x.shape)}, got {tuple(weight.shape)} on {weight.device}"
        )
    if not eps > 0:
        raise ValueError(f"rms_norm.eps must be positive, got {eps}; 1e-5 is common")
    wide = x.dtype == weight.dtype and x.dtype in (torch.float32, torch.float64)
    if x.device.type == "cpu" and wide and x.numel():
        from seqdiff.ops.rms_norm.cpu import rms_norm_cpu

        return rms_norm_cpu(x, weight, eps)
    return F.rms_norm(x, weight.shape, weight, eps)
