"""Remasking (ReMDM): unmasked tokens may be masked again while the mask rate stays what it was."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.grid import GridSampler
from seqdiff.schedules import NoiseSchedule


def largest_sigma(
    alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
) -> Float64[Tensor, ""]:
    """The largest remasking probability that leaves the mask rate at s at 1 - alpha_s.

    One where nothing is visible yet. Source: Wang et al. 2025, arXiv:2503.00307.
    """
    return torch.where(alpha_t > 0, (1 - alpha_s) / alpha_t, 1.0).clamp_max(1.0)


@dataclass(frozen=True)
class RemaskSampler(GridSampler, ABC):
    """Step as q_sigma does: hide a visible token with probability sigma, reveal the more for it.

    A masked token is revealed with probability (alpha_s - (1 - sigma) alpha_t) / (1 - alpha_t), so
    that at time s a token is masked with probability 1 - alpha_s whatever sigma. Tokens visible at
    the start are never hidden. Source: Wang et al. 2025, arXiv:2503.00307.
    """

    draws_from = "another"

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``; a step that reveals nothing in a row evaluates nothing there."""
        schedule = canvas.absorbing.schedule
        times = self.clock(self.times(canvas.x_t.device), schedule)
        confidence = torch.zeros(canvas.x_t.shape, dtype=torch.float64, device=times.device)
        for step, (t, s) in enumerate(pairwise(times), start=1):
            alpha_t, alpha_s = schedule.alpha(t), schedule.alpha(s)
            sigma = self.sigma(alpha_t, alpha_s)
            masked = canvas.masked
            shown = canvas.free & ~masked
            reveal = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
            opened = canvas.draws.coins(reveal.expand(masked.shape), masked, step)
            hidden = canvas.draws.coins(self.spread(sigma, shown, confidence), shown, step)
            law = canvas.log_probs(opened, t.expand(len(masked)))
            self._reveal(canvas, opened, law, step)
            chosen = canvas.x_t[opened][:, None]
            confidence[opened] = law.gather(-1, chosen).squeeze(-1).exp()
            canvas.hide(hidden)
            canvas.end_step()

    def clock(self, times: Float64[Tensor, " n"], schedule: NoiseSchedule) -> Float64[Tensor, " n"]:
        """The process's times at the grid's; the same unless a sampler bends time."""
        return times

    @abstractmethod
    def sigma(
        self, alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
    ) -> Float64[Tensor, ""]:
        """The mean probability that a visible token is hidden, at most ``largest_sigma``."""

    def spread(
        self,
        sigma: Float64[Tensor, ""],
        shown: Bool[Tensor, "B L"],
        confidence: Float64[Tensor, "B L"],
    ) -> Float64[Tensor, "B L"]:
        """Share sigma out over the positions of a row that may be hidden: evenly.

        Args:
            sigma: The mean over the positions that may be hidden.
            shown: Those positions.
            confidence: The model's probability of each letter when it was drawn.
        """
        return sigma.expand(shown.shape)


@dataclass(frozen=True)
class EtaRemaskSampler(RemaskSampler, ABC):
    """Remasking whose strength is one number.

    Attributes:
        eta: Strength of the remasking, in [0, 1]; at 0 the sampler is ancestral.
    """

    eta: float = 0.05

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(0 <= self.eta <= 1, "eta", "be in [0, 1]", "0 never hides a token")


@dataclass(frozen=True)
class RemaskCapSampler(EtaRemaskSampler):
    """ReMDM-cap: hides a token with probability min(eta, largest); not the model's distribution."""

    def sigma(
        self, alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
    ) -> Float64[Tensor, ""]:
        """See ``RemaskSampler``."""
        return largest_sigma(alpha_t, alpha_s).clamp_max(self.eta)


@dataclass(frozen=True)
class RemaskRescaleSampler(EtaRemaskSampler):
    """ReMDM-rescale: hides a token with eta times the largest; not the model's distribution."""

    def sigma(
        self, alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
    ) -> Float64[Tensor, ""]:
        """See ``RemaskSampler``."""
        return self.eta * largest_sigma(alpha_t, alpha_s)


@dataclass(frozen=True)
class RemaskConfSampler(RemaskRescaleSampler):
    """ReMDM-conf: hides unsure tokens more often than rescale; not the model's distribution.

    The weights are exp(-confidence), as in Wang et al. 2025, arXiv:2503.00307. There
    they add up to 1 over the row, here to the number of tokens that may be hidden: then their mean
    leaves the row's mask rate at 1 - alpha_s. No weight exceeds e, so sigma is kept to 1 / e.
    """

    def sigma(
        self, alpha_t: Float64[Tensor, ""], alpha_s: Float64[Tensor, ""]
    ) -> Float64[Tensor, ""]:
        """See ``RemaskSampler``."""
        return super().sigma(alpha_t, alpha_s).clamp_max(math.exp(-1))

    def spread(
        self,
        sigma: Float64[Tensor, ""],
        shown: Bool[Tensor, "B L"],
        confidence: Float64[Tensor, "B L"],
    ) -> Float64[Tensor, "B L"]:
        """See ``RemaskSampler``."""
        weights = torch.where(shown, torch.exp(-confidence), 0.0)
        total = weights.sum(dim=-1, keepdim=True)
        mean = total / shown.sum(dim=-1, keepdim=True)
        return sigma * weights / torch.where(total > 0, mean, 1.0)


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
