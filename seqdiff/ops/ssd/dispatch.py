"""State-space duality, and the choice between its chunked form and the recurrence."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from seqdiff.ops.operators import FLOATS, compute_dtype
from seqdiff.ops.ssd.chunked import ssd_chunked
from seqdiff.ops.ssd.reference import ssd_reference

BACKENDS = ("auto", "reference")
CHUNK = 64


def ssd(
    x: Float[Tensor, "Bt L H P"],
    dt: Float[Tensor, "Bt L H"],
    A: Float[Tensor, " H"],
    B: Float[Tensor, "Bt L N"],
    C: Float[Tensor, "Bt L N"],
    D: Float[Tensor, " H"],
    *,
    reverse: bool = False,
    chunk: int = CHUNK,
    backend: str = "auto",
) -> Float[Tensor, "Bt L H P"]:
    """Run the scan of Mamba-2, whose H heads decay at one rate each.

    ``h_l = exp(dt_l A) h_{l-1} + dt_l x_l B_l'`` and ``y_l = h_l C_l + D x_l`` for each head, with
    the same B and C for all heads. Source: Dao and Gu 2024, arXiv:2405.21060, sections 5 and 6.

    The chunked form has no second derivative; ``backend="reference"`` has one. All computation is
    in float64 if an input is, else in float32.

    Args:
        x: Input.
        dt: Step sizes, at least 0.
        A: Decay rates, at most 0.
        B: Maps the input to the states.
        C: Maps the states to the output.
        D: Skip weight.
        reverse: Run from the last position to the first.
        chunk: Largest number of positions that one block of matrix products covers.
        backend: ``"auto"`` runs the chunked form on any device; ``"reference"`` runs the recurrence
            position by position.

    Returns:
        The output in x's dtype.

    Raises:
        ValueError: A shape, a dtype, a device, ``chunk`` or ``backend`` is wrong.
    """
    _check(x, dt, A, B, C, D)
    if backend not in BACKENDS:
        raise ValueError(f"ssd.backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if chunk < 1:
        raise ValueError(f"ssd.chunk must be at least 1, got {chunk}; the default is {CHUNK}")
    own, kind = x.dtype, compute_dtype(x, dt, A, B, C, D)
    x, dt, A, B, C, D = (t.to(kind) for t in (x, dt, A, B, C, D))
    with torch.autocast(x.device.type, enabled=False):
        if backend == "reference":
            return ssd_reference(x, dt, A, B, C, D, reverse).to(own)
        return ssd_chunked(x, dt, A, B, C, D, reverse, chunk).to(own)


def _check(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor) -> None:
    if x.ndim != 4 or not x.numel():
        raise ValueError(
            "ssd.x must have shape (batch, length, heads, channels of a head), none of them 0, got "
            f"{tuple(x.shape)}"
        )
    batch, length, heads, _ = x.shape
    states = B.shape[-1] if B.ndim else 0
    expected = {
        "x": (x, tuple(x.shape)),
        "dt": (dt, (batch, length, heads)),
        "A": (A, (heads,)),
        "B": (B, (batch, length, max(1, states))),
        "C": (C, (batch, length, max(1, states))),
        "D": (D, (heads,)),
    }
    for name, (tensor, shape) in expected.items():
        if tensor.shape != shape:
            raise ValueError(
                f"ssd.{name} must have shape {shape} for x of {tuple(x.shape)} and {states} "
                f"states, got {tuple(tensor.shape)}"
            )
        if tensor.dtype not in FLOATS:
            raise ValueError(
                f"ssd.{name} must be one of float64, float32, bfloat16, float16, got {tensor.dtype}"
            )
        if tensor.device != x.device:
            raise ValueError(
                f"ssd.{name} must be on x's device {x.device}, got {tensor.device}; move it there"
            )
