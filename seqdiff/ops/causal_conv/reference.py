"""The convolution in plain PyTorch, as a reference for the kernels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor


def causal_conv1d_reference(
    x: Float[Tensor, "B D L"],
    weight: Float[Tensor, "D W"],
    bias: Float[Tensor, " D"] | None,
    activation: str | None,
    reverse: bool,
) -> Float[Tensor, "B D L"]:
    """Convolve each channel over the current and the ``W - 1`` preceding positions.

    Args:
        x: Input.
        weight: Filter; its last column multiplies the current position.
        bias: Added to each channel.
        activation: ``"silu"`` or None.
        reverse: Convolve over the following positions instead of the preceding ones.

    Returns:
        The filtered input in x's dtype.
    """
    kind = torch.promote_types(torch.promote_types(x.dtype, weight.dtype), torch.float32)
    width = weight.shape[1]
    padded = F.pad(x.to(kind), (0, width - 1) if reverse else (width - 1, 0))
    taps = (weight.flip(1) if reverse else weight).to(kind)[:, None]
    offset = None if bias is None else bias.to(kind)
    out = F.conv1d(padded, taps, offset, groups=x.shape[1])
    return (F.silu(out) if activation == "silu" else out).to(x.dtype)
