"""Reveal tokens in the order of the network's certainty, a fixed number in each step."""

from __future__ import annotations

from abc import ABC
from dataclasses import dataclass

from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.samplers.adaptive import AdaptiveSampler, entropy


@dataclass(frozen=True)
class CertaintySampler(AdaptiveSampler, ABC):
    """Steps of equal size, the most certain positions first; ties go to the left.

    Attributes:
        num_steps: Evaluations a row at most; ``None`` reveals one token at a time.
    """

    num_steps: int | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is out of its range.
        """
        super().__post_init__()
        self._require(
            self.num_steps is None or self.num_steps >= 1,
            "num_steps",
            "be at least 1",
            "leave it out to reveal one token at a time",
        )

    def count(
        self, certainty: Float64[Tensor, "B L"], start: Int64[Tensor, " B"], step: int
    ) -> Int64[Tensor, " B"]:
        """See ``AdaptiveSampler``: as many as keep the steps equal, the smaller ones last."""
        if self.num_steps is None:
            return start.clamp_max(1)
        steps = start.clamp(1, self.num_steps)
        return -(-start * (step + 1) // steps) + (-start * step // steps)


@dataclass(frozen=True)
class ConfidenceSampler(CertaintySampler):
    """Most confident position first (likeliest letter); not the model's distribution.

    Source: Chang et al. 2022, arXiv:2202.04200, where a drawn letter's own probability counts.
    """

    def certainty(self, law: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
        """See ``AdaptiveSampler``."""
        return law.amax(dim=-1)


@dataclass(frozen=True)
class MarginSampler(CertaintySampler):
    """Largest gap between the two likeliest letters first; not the model's distribution.

    Source: Kim et al. 2025, arXiv:2502.06768, "top-K probability margin".
    """

    def certainty(self, law: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
        """See ``AdaptiveSampler``; with a single letter every gap is 1."""
        best = law.exp().topk(min(2, law.shape[-1]), dim=-1).values
        return best[:, 0] - best[:, 1:].sum(dim=-1)


@dataclass(frozen=True)
class EntropySampler(CertaintySampler):
    """Least entropy of the letter first; not the model's distribution."""

    def certainty(self, law: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
        """See ``AdaptiveSampler``."""
        return -entropy(law)
