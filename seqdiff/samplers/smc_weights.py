"""Weights of particles: what they estimate, and how particles are chosen by them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


@dataclass(frozen=True)
class Particles:
    """Weighted rows that stand for a law.

    Attributes:
        tokens: N rows for each row that was asked for.
        log_weights: Their shares, as logarithms: they add up to 1.
        log_normalizer: Logarithm of an unbiased estimate of the law's normalising constant.
    """

    tokens: Int64[Tensor, "B N L"]
    log_weights: Float64[Tensor, "B N"]
    log_normalizer: Float64[Tensor, " B"]


@dataclass
class Weights:
    """Unnormalised weights since the last resampling, and the mean weights before.

    Attributes:
        log_weights: Of each particle, in nats.
        log_normalizer: Sum of the logarithms of the mean weights at each resampling.
    """

    log_weights: Float64[Tensor, "B N"]
    log_normalizer: Float64[Tensor, " B"]

    @classmethod
    def equal(cls, rows: int, num_particles: int, device: torch.device) -> Weights:
        """Start with weights of 1."""
        zeros = torch.zeros((rows, num_particles), dtype=torch.float64, device=device)
        return cls(zeros, zeros.sum(dim=-1))

    @property
    def shares(self) -> Float64[Tensor, "B N"]:
        """Logarithms of the weights divided by their sum."""
        return self.log_weights.log_softmax(dim=-1)

    @property
    def effective_size(self) -> Float64[Tensor, " B"]:
        """How many equally weighted particles would be as good: (sum w)^2 / sum w^2."""
        return (-(2 * self.shares).logsumexp(dim=-1)).exp()

    @property
    def total(self) -> Float64[Tensor, " B"]:
        """The estimate of the normalising constant so far, as a logarithm."""
        count = self.log_weights.shape[-1]
        return self.log_normalizer + self.log_weights.logsumexp(dim=-1) - math.log(count)

    def settle(self, rows: Tensor) -> None:
        """Move the mean weights of some rows into the normaliser: the rest starts from 1.

        Args:
            rows: True where the particles have been resampled, ``[B]``.
        """
        self.log_normalizer = torch.where(rows, self.total, self.log_normalizer)
        self.log_weights = self.log_weights.masked_fill(rows[:, None], 0.0)


def systematic(
    shares: Float64[Tensor, "B N"], start: Float64[Tensor, " B"]
) -> Int64[Tensor, "B N"]:
    """Choose N particles at N equally spaced places of the line of shares.

    Each particle is chosen N times its share on average, and never a whole time more or less.
    Source: Douc, Cappe and Moulines 2005, arXiv:cs/0507025, and what is cited there.

    Args:
        shares: Logarithms; they add up to 1.
        start: Where the first place lies in its interval, uniform on (0, 1).

    Returns:
        The particle at each place.
    """
    count = shares.shape[-1]
    line = shares.exp().cumsum(dim=-1)
    places = (torch.arange(count, device=shares.device) + start[:, None]) / count * line[:, -1:]
    last = torch.nextafter(line[:, -1:], torch.zeros_like(line[:, -1:]))
    return torch.searchsorted(line, torch.minimum(places, last), right=True)
