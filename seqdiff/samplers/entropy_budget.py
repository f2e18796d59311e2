"""Reveal in parallel as many tokens as a budget of entropy allows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.samplers.adaptive import AdaptiveSampler, entropy


@dataclass(frozen=True)
class EntropyBudgetSampler(AdaptiveSampler):
    """Least entropy first, as many as an entropy budget allows; not the model's distribution.

    In each step the largest set, in rising order of entropy, whose entropies without the largest
    add up to at most the budget. That sum bounds how far the tokens of a step can depend on each
    other. Source: Ben-Hamu et al. 2025, arXiv:2505.24857.

    Attributes:
        budget: Nats, at least 0; at 0 one token at a time unless others are certain.
    """

    budget: float = 0.1

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(self.budget >= 0, "budget", "be at least 0", "0 is the most careful")

    def certainty(self, law: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
        """See ``AdaptiveSampler``."""
        return -entropy(law)

    def count(
        self, certainty: Float64[Tensor, "B L"], start: Int64[Tensor, " B"], step: int
    ) -> Int64[Tensor, " B"]:
        """See ``AdaptiveSampler``; in rising order the largest entropy of a set is its last."""
        entropies = -certainty
        others = entropies.cumsum(dim=-1).roll(1, dims=-1)
        others[:, 0] = 0.0
        affordable = (others <= self.budget) & (entropies < torch.inf)
        return affordable.sum(dim=-1).clamp_min(1)
