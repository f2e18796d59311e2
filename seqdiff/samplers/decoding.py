"""Temperature, top-k and nucleus: how a law is reshaped before a letter is drawn from it."""

from __future__ import annotations

import math
from abc import ABC
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.checks import check_numbers
from seqdiff.samplers.protocol import Sampler


def reshape_law(
    log_probs: Float64[Tensor, "N K"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float64[Tensor, "N K"]:
    """Sharpen and truncate laws: first temperature, then top-k, then nucleus.

    The nucleus is the smallest set of likeliest letters whose mass reaches ``top_p``: the letter
    that crosses it belongs to it (Holtzman et al. 2020, arXiv:1904.09751; some
    samplers for diffusion models drop that letter). Among equally likely letters those with lower
    ids come first, so exactly ``top_k`` stay.

    Args:
        log_probs: Normalised, in nats.
        temperature: Divides log-probabilities, which is the same as dividing logits.
        top_k: Letters that stay; ``None`` keeps all.
        top_p: Mass that the letters that stay must reach; ``None`` keeps all.

    Returns:
        Normalised log-probabilities in nats.
    """
    best = log_probs.amax(dim=-1, keepdim=True)  # taken off first, so that no temperature overflows
    law = ((log_probs - best) / temperature).log_softmax(dim=-1)
    if top_k is None and top_p is None:
        return law
    ordered, letters = law.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        keep[:, top_k:] = False
        ordered = ordered.masked_fill(~keep, -torch.inf).log_softmax(dim=-1)
    if top_p is not None and top_p < 1:
        mass = ordered.exp()
        keep &= mass.cumsum(dim=-1) - mass < top_p
        ordered = ordered.masked_fill(~keep, -torch.inf).log_softmax(dim=-1)
    return torch.empty_like(law).scatter_(-1, letters, ordered)


@dataclass(frozen=True, kw_only=True)
class DecodingSampler(Sampler, ABC):
    """A sampler that draws letters itself, from the model's law reshaped.

    Attributes:
        temperature: Divides the logits; below 1 sharpens.
        top_k: Draw among the k likeliest letters only.
        top_p: Draw within the smallest set of letters whose mass reaches p, the crossing letter
            included.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If one is no number, or out of its range.
        """
        check_numbers(self)
        self._require(
            0 < self.temperature < math.inf, "temperature", "be above 0", "1 is the model's own law"
        )
        self._require(
            self.top_k is None or self.top_k >= 1, "top_k", "be at least 1", "leave it out for all"
        )
        self._require(
            self.top_p is None or 0 < self.top_p <= 1, "top_p", "be in (0, 1]", "1 keeps all"
        )

    def _require(self, holds: bool, name: str, requirement: str, fix: str) -> None:
        """Refuse a value of one of the sampler's fields."""
        if not holds:
            raise ValueError(
                f"{type(self).__name__}.{name} must {requirement}, got {getattr(self, name)}; {fix}"
            )

    def _reveal(
        self,
        canvas: Canvas,
        where: Bool[Tensor, "B L"],
        law: Float64[Tensor, "N K"],
        step: int = 0,
    ) -> None:
        """Draw and place a letter at each position that is True.

        Args:
            canvas: The rows.
            where: Masked positions.
            law: Their laws from ``canvas.log_probs``.
            step: Tells apart the draws of a sampler that may mask a position again.
        """
        shaped = reshape_law(law, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        canvas.place(where, canvas.draws.letters(shaped, where, step))
