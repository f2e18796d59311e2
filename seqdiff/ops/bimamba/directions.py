"""Mamba without its input and output projections, in one direction or in both."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from seqdiff.ops.bimamba.inputs import Direction, check_direction, fits_cpu
from seqdiff.ops.causal_conv.dispatch import BACKENDS as CONV_BACKENDS
from seqdiff.ops.causal_conv.dispatch import causal_conv1d
from seqdiff.ops.selective_scan.dispatch import selective_scan


def mamba_direction(
    xz: Float[Tensor, "B L E"],
    weights: Direction,
    padding: Bool[Tensor, "B L"] | None = None,
    *,
    reverse: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B L D"]:
    """Run one direction: convolution with SiLU, projections of its output, selective scan, gate.

    Source: Gu and Dao 2023, arXiv:2312.00752, sections 3.2 to 3.6.

    Args:
        xz: Input and gate side by side, ``E = 2 D``; zero where padded.
        weights: Weights of the direction.
        padding: True where the output of the convolution, which the scan reads, is set to zero.
        reverse: Run from the last position to the first.
        backend: Kernel of the scan, and of the convolution if it has a kernel of this name.

    Raises:
        ValueError: A shape or a device is wrong. See also `selective_scan`.
    """
    check_direction(xz, weights, padding)
    u, delta, B, C, _ = scan_inputs(xz, weights, padding, backend, reverse=reverse)
    y = selective_scan(
        *(u, delta, weights.A, B, C, weights.D, xz.chunk(2, dim=-1)[1].mT, weights.dt_bias, True),
        reverse=reverse,
        backend=backend,
    )
    assert isinstance(y, Tensor)  # without a last state
    return y.mT


def scan_inputs(
    xz: Tensor,
    weights: Direction,
    padding: Tensor | None,
    backend: str,
    *,
    tail: Tensor | None = None,
    reverse: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Compute the inputs of the scan: run the convolution and project its output.

    Args:
        xz: Input, with or without the gate beside it.
        weights: See ``mamba_direction``.
        padding: See ``mamba_direction``.
        backend: See ``mamba_direction``.
        tail: The ``W - 1`` inputs before the row ``(B, W - 1, D)``; zeros by default.
        reverse: See ``mamba_direction``.

    Returns:
        The scan's input, the raw step sizes, B, C, and the convolution's input including its tail.
    """
    x = xz[..., : len(weights.D)]
    if tail is not None:
        x = torch.cat((tail.to(x.dtype), x), dim=1)
    u = causal_conv1d(
        x.mT,
        weights.conv_weight,
        weights.conv_bias,
        activation="silu",
        reverse=reverse,
        backend=backend if backend in CONV_BACKENDS else "auto",
    )
    if tail is not None:
        u = u[..., tail.shape[1] :]
    if padding is not None:
        u = u.masked_fill(padding[:, None], 0)
    rank, states = weights.dt_proj.shape[1], weights.A.shape[1]
    dt, B, C = F.linear(u.mT, weights.x_proj).split((rank, states, states), dim=-1)
    return u, F.linear(dt, weights.dt_proj).mT, B.mT, C.mT, x


def mamba_both_ways(
    xz: Float[Tensor, "B L E"],
    fwd: Direction,
    rev: Direction,
    padding: Bool[Tensor, "B L"] | None = None,
    *,
    mirrored: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B L D"]:
    """Add ``mamba_direction`` from left to right and ``mamba_direction`` from right to left.

    On the CPU in float32 and float64, one operator runs both directions without intermediate
    copies. Under autocast to bfloat16, it computes the products with ``x_proj`` in bfloat16 and the
    rest in float32. It has no second derivative; ``backend="reference"`` has one.

    Args:
        xz: Input and gate side by side, ``E = 2 D``; zero where padded.
        fwd: Weights of the direction from left to right.
        rev: Weights of the other direction.
        padding: See ``mamba_direction``.
        mirrored: Whether to swap the directions.
        backend: See ``mamba_direction``.

    Raises:
        ValueError: See ``mamba_direction``.
    """
    if fits_cpu(backend, xz, *fwd, *rev):
        for weights in (fwd, rev):
            check_direction(xz, weights, padding)
        from seqdiff.ops.bimamba.cpu import mamba_cpu

        return mamba_cpu(xz, fwd, rev, padding, mirrored=mirrored)[0]
    y_fwd = mamba_direction(xz, fwd, padding, reverse=mirrored, backend=backend)
    y_rev = mamba_direction(xz, rev, padding, reverse=not mirrored, backend=backend)
    return y_fwd + y_rev
