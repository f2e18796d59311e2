"""What samplers share that let the network's own certainty choose what to reveal next."""

from __future__ import annotations

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
