"""Reveal in parallel every token that the network is sure of."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.samplers.adaptive import AdaptiveSampler


@dataclass(frozen=True)
class ThresholdSampler(AdaptiveSampler):
    """All positions whose likeliest letter reaches a probability; not the model's distribution.

    In each step, and always at least the most confident one. Source: Wu et al. 2025,
    arXiv:2505.22618.

    Attributes:
        threshold: Probability in (0, 1]; above it a position counts as sure.
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(0 < self.threshold <= 1, "threshold", "be in (0, 1]", "0.9 is common")

    def certainty(self, law: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
        """See ``AdaptiveSampler``."""
        return law.amax(dim=-1)

    def count(
        self, certainty: Float64[Tensor, "B L"], start: Int64[Tensor, " B"], step: int
    ) -> Int64[Tensor, " B"]:
        """See ``AdaptiveSampler``."""
        return (certainty >= math.log(self.threshold)).sum(dim=-1).clamp_min(1)
