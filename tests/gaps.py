"""Relative differences between results."""

from collections.abc import Iterable

import torch
from torch import Tensor


def largest_gap(got: Iterable[Tensor], wanted: Iterable[Tensor]) -> float:
    """The largest difference relative to each result's largest value; NaN if there is one."""
    pairs = zip(got, wanted, strict=True)
    gaps = [(g - w).abs().max() / w.abs().max().clamp_min(1e-30) for g, w in pairs]
    return float(torch.stack(gaps).detach().max())


def norm_gap(got: Tensor, wanted: Tensor) -> float:
    """The norm of the difference relative to the norm of what is wanted, in float64."""
    assert got.shape == wanted.shape
    wide, right = got.detach().double(), wanted.detach().double()
    return float((wide - right).norm() / right.norm())
