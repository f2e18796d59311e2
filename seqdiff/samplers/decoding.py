"""Temperature, top-k and nucleus: how distributions are reshaped before tokens are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from seqdiff.samplers.canvas import Canvas, Reshape
from seqdiff.samplers.protocol import option


def reshape(
    log_probs: Float64[Tensor, "N K"],
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float64[Tensor, "N K"]:
    """Sharpen and truncate distributions: first temperature, then top-k, then nucleus.

    The nucleus is the smallest set of the most likely symbols whose mass reaches ``top_p``. The
    symbol that crosses ``top_p`` belongs to it (Holtzman et al. 2020, arXiv:1904.09751; some
    samplers for diffusion models drop that symbol). Among equally likely symbols those with lower
    ids come first, so exactly ``top_k`` remain.

    Args:
        log_probs: Normalised, in nats.
        temperature: Divides log-probabilities, which is the same as dividing logits.
        top_k: Number of symbols to keep; ``None`` keeps all.
        top_p: Mass that the kept symbols must reach; ``None`` keeps all.

    Returns:
        Normalised log-probabilities in nats.
    """
    best = log_probs.amax(
        dim=-1, keepdim=True
    )  # subtracted first, so that no temperature overflows
    shaped = ((log_probs - best) / temperature).log_softmax(dim=-1)
    if top_k is None and top_p is None:
        return shaped
    ordered, symbols = shaped.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k is not None:
        keep[:, top_k:] = False
        ordered = ordered.masked_fill(~keep, -torch.inf).log_softmax(dim=-1)
    if top_p is not None and top_p < 1:
        mass = ordered.exp()
        keep &= mass.cumsum(dim=-1) - mass < top_p
        ordered = ordered.masked_fill(~keep, -torch.inf).log_softmax(dim=-1)
    return torch.empty_like(shaped).scatter_(-1, symbols, ordered)


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """The options of samplers that draw tokens themselves, from reshaped distributions.

    Attributes:
        temperature: Divides the logits; below 1 sharpens.
        top_k: Draw among the k most likely symbols only.
        top_p: Draw within the smallest set of symbols whose mass reaches p, the symbol that crosses
            p included.
    """

    temperature: float = option(
        1.0,
        lambda value: 0 < value < math.inf,
        "be above 0 and finite",
        "1 is the model's own distribution",
    )
    top_k: int | None = option(
        None, lambda value: value >= 1, "be at least 1", "leave it out for all"
    )
    top_p: float | None = option(None, lambda value: 0 < value <= 1, "be in (0, 1]", "1 keeps all")

    def shaped(self, log_probs: Float64[Tensor, "N K"]) -> Float64[Tensor, "N K"]:
        """Reshape distributions as these options say."""
        return reshape(log_probs, temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)

    @property
    def shape(self) -> Reshape | None:
        """How predictions of the clean token are reshaped; ``None`` if they are not."""
        plain = self.temperature == 1 and self.top_k is None and self.top_p is None
        return None if plain else self.shaped

    def _draw(
        self,
        canvas: Canvas,
        where: Bool[Tensor, "B L"],
        log_probs: Float64[Tensor, "N K"],
        step: int = 0,
    ) -> None:
        """Draw and write a token at each position where ``where`` is True.

        Args:
            canvas: The rows.
            where: Positions.
            log_probs: Their distributions from ``canvas.log_probs``.
            step: Distinguishes the draws of a sampler that may mask a position again.
        """
        canvas.draw(where, log_probs, step, self.shaped)
