"""Remasking in a loop at a fixed mask rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from seqdiff.samplers.remask import EtaRemaskSampler, largest_sigma
from seqdiff.schedules import NoiseSchedule


@dataclass(frozen=True)
class RemaskLoopSampler(EtaRemaskSampler):
    """ReMDM-loop: hides and redraws at a fixed mask rate; not the model's distribution.

    The grid runs from 1 to 0. Above ``t_on`` it is ancestral sampling up to visible share
    ``alpha_on``; from ``t_on`` to ``t_off`` that share is kept and tokens are hidden with
    probability min(eta, largest possible); below, ancestral sampling draws the rest. Source: Wang
    et al. 2025, arXiv:2503.00307.

    Attributes:
        t_on: Grid time at which the loop starts, below 1.
        t_off: Grid time at which it ends, above 0 and below ``t_on``.
        alpha_on: Visible share in the loop, in (0, 1).
    """

    t_on: float = 0.55
    t_off: float = 0.05
    alpha_on: float = 0.9

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(0 < self.t_off < 1, "t_off", "be in (0, 1)", "0.05 is published")
        self._require(
            self.t_off < self.t_on < 1,
            "t_on",
            f"be above t_off = {self.t_off} and below 1",
            "0.55 is published",
        )
        self._require(0 < self.alpha_on < 1, "alpha_on", "be in (0, 1)", "0.9 is published")

    def clock(self, times: Float64[Tensor, " n"], schedule: NoiseSchedule) -> Float64[Tensor, " n"]:
        """See ``RemaskSampler``."""
        held = schedule.inverse(torch.tensor(self.alpha_on, dtype=times.dtype, device=times.device))
        before = held + (1 - held) * (times - self.t_on) / (1 - self.t_on)
        after = held * times / self.t_off
        return torch.where(times > self.t_on, before, torch.where(times < self.t_off, after, held))

    def sigma(
        self, alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
    ) -> Float64[Tensor, ""]:
        """See ``RemaskSampler``; 0 outside of the loop."""
        strength = largest_sigma(alpha_t, alpha_s).clamp_max(self.eta)
        return torch.where(alpha_s == alpha_t, strength, 0.0)
