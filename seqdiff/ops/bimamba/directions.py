"""Mamba between its projections, one way along a row or both ways added."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from seqdiff.ops.bimamba.inputs import Direction, check_direction, one_kind_on_cpu
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
    """Convolution with SiLU, the projections that depend on the input, selective scan, gate.

    Source: Gu and Dao 2023, arXiv:2312.00752, sections 3.2 to 3.6.

    Args:
        xz: Input and gate side by side, ``E = 2 D``; zero where padded.
        weights: The direction's.
        padding: True where the input of the scan is to be zero, the convolution's reach included.
        reverse: Run from the last position to the first.
        backend: Kernel of the scan, and of the convolution where that has one of this name.

    Raises:
        ValueError: A shape or a device is wrong; and as `seqdiff.ops.selective_scan.dispatch` does.
    """
    check_direction(xz, weights, padding)
    x, z = xz.chunk(2, dim=-1)
    u = causal_conv1d(
        x.transpose(1, 2),
        weights.conv_weight,
        weights.conv_bias,
        activation="silu",
        reverse=reverse,
        backend=backend if backend in CONV_BACKENDS else "auto",
    )
    if padding is not None:
        u = u.masked_fill(padding[:, None], 0)
    rank, states = weights.dt_proj.shape[1], weights.A.shape[1]
    mapped = F.linear(u.transpose(1, 2), weights.x_proj)
    dt, B, C = mapped.split((rank, states, states), dim=-1)
    y = selective_scan(
        u,
        F.linear(dt, weights.dt_proj).transpose(1, 2),
        weights.A,
        B.transpose(1, 2),
        C.transpose(1, 2),
        weights.D,
        z.transpose(1, 2),
        delta_bias=weights.dt_bias,
        delta_softplus=True,
        reverse=reverse,
        backend=backend,
    )
    assert isinstance(y, Tensor)  # no last state was asked for
    return y.transpose(1, 2)


def mamba_both_ways(
    xz: Float[Tensor, "B L E"],
    fwd: Direction,
    rev: Direction,
    padding: Bool[Tensor, "B L"] | None = None,
    *,
    mirrored: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "B L D"]:
    """``mamba_direction`` from left to right plus the same from right to left.

    On the CPU in float32 and float64 both ways are one operator: gradients that meet are added
    where they are made, and nothing is copied together. It has no second derivative; that takes
    ``backend="reference"``.

    Args:
        xz: Input and gate side by side, ``E = 2 D``; zero where padded.
        fwd: Weights of the direction from left to right.
        rev: Weights of the other.
        padding: See ``mamba_direction``.
        mirrored: Exchange the directions.
        backend: See ``mamba_direction``.

    Raises:
        ValueError: See ``mamba_direction``.
    """
    if backend in ("auto", "cpu") and one_kind_on_cpu(xz, *fwd, *rev):
        for weights in (fwd, rev):
            check_direction(xz, weights, padding)
        from seqdiff.ops.bimamba.cpu import mamba_both_ways_cpu

        return mamba_both_ways_cpu(xz, fwd, rev, padding, mirrored)
    y_fwd = mamba_direction(xz, fwd, padding, reverse=mirrored, backend=backend)
    y_rev = mamba_direction(xz, rev, padding, reverse=not mirrored, backend=backend)
    return y_fwd + y_rev
