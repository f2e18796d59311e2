"""Samplers in which the network's certainty chooses which tokens to unmask in a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import DecodingSampler


def entropy(log_probs: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
    """Entropy of laws, in nats."""
    return torch.special.entr(log_probs.exp()).sum(dim=-1)


@dataclass(frozen=True)
class AdaptiveSampler(DecodingSampler, ABC):
    """Ask for the laws of all masked positions, choose some by their certainty, draw those.

    The choice looks at the model's law within the allowed letters, before it is reshaped. What is
    drawn does not follow the model's law: certain positions come first, ties from the left.
    """

    directed = True
    draws_from = "another"

    def fill(self, canvas: Canvas) -> None:
        """See ``Sampler``; a row is evaluated until it is full."""
        start = canvas.masked.sum(dim=-1)
        step = 0
        while bool((masked := canvas.masked).any()):
            law = canvas.log_probs(masked, canvas.time)
            certainty = torch.full(masked.shape, -torch.inf, dtype=torch.float64).to(law.device)
            certainty[masked] = self.certainty(law)
            order = certainty.argsort(dim=-1, descending=True, stable=True)
            count = self.count(certainty.gather(-1, order), start, step)
            rank = torch.empty_like(order).scatter_(
                -1, order, torch.arange(order.shape[-1], device=order.device).expand_as(order)
            )
            where = masked & (rank < count[:, None])
            self._reveal(canvas, where, law[where[masked]])
            canvas.end_step()
            step += 1

    @abstractmethod
    def certainty(self, law: Float64[Tensor, "N K"]) -> Float64[Tensor, " N"]:
        """Measure how certain laws are; the most certain position is the first to be revealed."""

    @abstractmethod
    def count(
        self, certainty: Float64[Tensor, "B L"], start: Int64[Tensor, " B"], step: int
    ) -> Int64[Tensor, " B"]:
        """Say how many of the most certain positions of each row to reveal, at least 1.

        Args:
            certainty: Falling along each row; ``-inf`` after the last masked position.
            start: Masked positions of each row at the start.
            step: Steps done.
        """


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
