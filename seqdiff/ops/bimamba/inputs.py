"""The weights of the Mamba operators, and checks of their arguments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Direction(NamedTuple):
    """The weights of one direction, with D channels, rank R, N states and a filter of width W.

    Attributes:
        conv_weight: Filter ``(D, W)``.
        conv_bias: Bias of the convolution ``(D,)``, or None.
        x_proj: Projects the convolution's output to the low-rank step sizes, B and C
            ``(R + 2 N, D)``.
        dt_proj: Projects the low-rank step sizes to the channels ``(D, R)``.
        dt_bias: Bias of the step size before softplus ``(D,)``.
        A: Decay rates ``(D, N)``.
        D: Skip weight ``(D,)``.
    """

    conv_weight: Tensor
    conv_bias: Tensor | None
    x_proj: Tensor
    dt_proj: Tensor
    dt_bias: Tensor
    A: Tensor
    D: Tensor


def check_direction(
    xz: Tensor, weights: Direction, padding: Tensor | None, *, gated: bool = True
) -> None:
    """Check the shapes and devices of the arguments.

    Args:
        xz: Input and gate side by side.
        weights: Weights of the direction.
        padding: True at padding ``(B, L)``.
        gated: Whether ``xz`` holds a gate.

    Raises:
        ValueError: A shape is wrong, or a tensor is on another device than ``xz``.
    """
    parts = 2 if gated else 1
    if xz.ndim != 3 or xz.shape[1] < 1 or xz.shape[2] % parts:
        raise ValueError(
            f"mamba_direction.xz must have shape (batch, length >= 1, {parts} * channels), "
            f"got {tuple(xz.shape)}"
        )
    channels = xz.shape[2] // parts
    taps, rank, states = (
        m.shape[-1] if m.ndim == 2 else 0 for m in (weights.conv_weight, weights.dt_proj, weights.A)
    )
    expected = {
        "conv_weight": (channels, max(1, taps)),
        "conv_bias": (channels,),
        "dt_proj": (channels, max(1, rank)),
        "dt_bias": (channels,),
        "A": (channels, max(1, states)),
        "D": (channels,),
        "x_proj": (rank + 2 * states, channels),
        "padding": tuple(xz.shape[:2]),
    }
    found = {**weights._asdict(), "padding": padding}
    for name, shape in expected.items():
        tensor = found[name]
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise ValueError(
                f"mamba_direction.{name} must have shape {shape} for xz of {tuple(xz.shape)}, "
                f"got {tuple(tensor.shape)}"
            )
        if tensor.device != xz.device:
            raise ValueError(
                f"mamba_direction.{name} must be on xz's device {xz.device}, got {tensor.device}; "
                "move it there"
            )


def fits_cpu(backend: str, xz: Tensor, *others: Tensor | None) -> bool:
    """Tell whether the CPU operator supports these tensors.

    Without autocast, all must be in float32, or all in float64. Under autocast to bfloat16, the
    weights must be in float32, and ``xz`` may be in bfloat16, which is what projections return.
    """
    if backend not in ("auto", "cpu") or xz.device.type != "cpu":
        return False
    kinds = {t.dtype for t in others if t is not None}
    if not torch.is_autocast_enabled("cpu"):
        kinds.add(xz.dtype)
        return len(kinds) == 1 and kinds <= {torch.float32, torch.float64}
    half = torch.get_autocast_dtype("cpu") == torch.bfloat16
    return half and kinds == {torch.float32} and xz.dtype in (torch.float32, torch.bfloat16)
