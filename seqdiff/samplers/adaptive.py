"""Samplers in which the network's certainty decides which tokens to unmask in a step.

An order strategy (``certainty``) ranks the masked positions, a count strategy (``count``) says how
many of them to unmask.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import (
    confidence,
    even_count,
    margin,
    negative_entropy,
    rank_by_certainty,
)
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import Decoding
from seqdiff.samplers.first_hitting import UNMASK_STEPS
from seqdiff.samplers.protocol import Sampler, option


@dataclass(frozen=True)
class AdaptiveSampler(Decoding, Sampler, ABC):
    """Predict all masked positions, choose some of them by their certainty, draw those.

    Certainty is that of the model's distribution within the allowed symbols, before it is reshaped.
    The samples do not follow the model's distribution. Ties go to the left.
    """

    order_dependent = True
    draws_from = "another"
    certainty = staticmethod(confidence)

    @override
    def fill(self, canvas: Canvas) -> None:
        start = canvas.masked.sum(dim=-1)
        step = 0
        while bool((masked := canvas.masked).any()):
            log_probs = canvas.log_probs(masked, canvas.time)
            certainty, rank = rank_by_certainty(masked, self.certainty(log_probs))
            count = self.count(certainty, start, step)
            where = masked & (rank < count[:, None])
            self._draw(canvas, where, log_probs[where[masked]])
            canvas.end_step()
            step += 1

    @abstractmethod
    def count(
        self, certainty: Float64[Tensor, "B L"], start: Int64[Tensor, " B"], step: int
    ) -> Int64[Tensor, " B"]:
        """Return how many of the most certain positions of each row to unmask, at least 1.

        Args:
            certainty: Falling along each row; ``-inf`` after the last masked position.
            start: Masked positions of each row at the start.
            step: Steps done.
        """


def equal_steps(
    self: ConfidenceSampler | MarginSampler | EntropySampler,
    certainty: Float64[Tensor, "B L"],
    start: Int64[Tensor, " B"],
    step: int,
) -> Int64[Tensor, " B"]:
    """Count strategy whose steps differ in size by at most one; the first has the largest size."""
    if self.num_steps is None:
        return start.clamp_max(1)
    return even_count(start, start.clamp(1, self.num_steps), step)


@dataclass(frozen=True)
class ConfidenceSampler(AdaptiveSampler):
    """Most confident position first (most likely symbol); not the model's distribution.

    Source: Chang et al. 2022, arXiv:2202.04200, where the probability of the drawn symbol counts.

    Attributes:
        num_steps: Maximum evaluations per row; the default unmasks one token at a time.
    """

    num_steps: int | None = option(None, lambda value: value >= 1, *UNMASK_STEPS)

    count = equal_steps


@dataclass(frozen=True)
class MarginSampler(AdaptiveSampler):
    """Largest gap between the two most likely symbols first; not the model's distribution.

    Source: Kim et al. 2025, arXiv:2502.06768, "top-K probability margin".

    Attributes:
        num_steps: Maximum evaluations per row; the default unmasks one token at a time.
    """

    certainty = staticmethod(margin)
    num_steps: int | None = option(None, lambda value: value >= 1, *UNMASK_STEPS)

    count = equal_steps


@dataclass(frozen=True)
class EntropySampler(AdaptiveSampler):
    """Lowest entropy of the token first; not the model's distribution.

    Attributes:
        num_steps: Maximum evaluations per row; the default unmasks one token at a time.
    """

    certainty = staticmethod(negative_entropy)
    num_steps: int | None = option(None, lambda value: value >= 1, *UNMASK_STEPS)

    count = equal_steps


@dataclass(frozen=True)
class ThresholdSampler(AdaptiveSampler):
    """All positions whose most likely symbol is above a threshold; not the model's distribution.

    Each step unmasks all positions above the threshold, and always at least the most confident one.
    Source: Wu et al. 2025, arXiv:2505.22618.

    Attributes:
        threshold: Probability in (0, 1] that the most likely symbol of a position must reach.
    """

    threshold: float = option(0.9, lambda value: 0 < value <= 1, "be in (0, 1]", "0.9 is common")

    @override
    def count(
        self, certainty: Float64[Tensor, "B L"], start: Int64[Tensor, " B"], step: int
    ) -> Int64[Tensor, " B"]:
        return (certainty >= math.log(self.threshold)).sum(dim=-1).clamp_min(1)


@dataclass(frozen=True)
class EntropyBudgetSampler(AdaptiveSampler):
    """Lowest entropy first, as many as an entropy budget allows; not the model's distribution.

    Each step unmasks the largest set, in rising order of entropy, whose entropies without the
    largest one add up to at most the budget. That sum bounds how much the tokens of a step can
    depend on each other. Source: Ben-Hamu et al. 2025, arXiv:2505.24857.

    Attributes:
        budget: Nats, at least 0; at 0 one token at a time unless others are certain.
    """

    certainty = staticmethod(negative_entropy)
    budget: float = option(0.1, lambda value: value >= 0, "be at least 0", "0 is the most careful")

    @override
    def count(
        self, certainty: Float64[Tensor, "B L"], start: Int64[Tensor, " B"], step: int
    ) -> Int64[Tensor, " B"]:
        entropies = -certainty
        others = entropies.cumsum(dim=-1).roll(1, dims=-1)
        others[:, 0] = 0.0  # in rising order the largest entropy of a set is its last
        affordable = (others <= self.budget) & (entropies < torch.inf)
        return affordable.sum(dim=-1).clamp_min(1)
