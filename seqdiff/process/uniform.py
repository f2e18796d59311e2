"""The uniform process: tokens are replaced by symbols drawn uniformly."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from typing_extensions import override

from seqdiff.process.base import (
    Scheduled,
    check_reserved,
    check_vocab_size,
    drawable,
)
from seqdiff.schedules import LogLinear, NoiseSchedule


@dataclass(frozen=True)
class Uniform(Scheduled):
    """q(z_t | x0) = Cat(alpha_t x0 + (1 - alpha_t) / K): a replaced token may be any real symbol.

    The noise is uniform over the symbols that are not reserved. Masks, padding and unknown tokens
    have the id K, which is never drawn. A run takes the reserved symbols from its tokenizer:
    entries of the vocabulary that no text holds, such as [PAD], [MASK] and the unused ones of BERT.
    Tokens that begin or end a text are not reserved.

    The schedule need not be complete: with alpha(0) < 1 the bound has a reconstruction term, and
    with alpha(1) > 0 a prior term. Source: Austin et al. 2021, arXiv:2107.03006; in continuous
    time Schiff et al. 2024, arXiv:2412.10193.

    Attributes:
        vocab_size: K, the number of real symbols.
        schedule: Noise schedule.
        reserved: Symbols that the noise never draws.
    """

    name: ClassVar[str] = "uniform"
    vocab_size: int
    schedule: NoiseSchedule = field(default_factory=LogLinear)
    reserved: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the symbols.

        Raises:
            ValueError: If there is none, or the reserved ones are not among them.
        """
        check_vocab_size("Uniform", self.vocab_size)
        check_reserved("Uniform", self.reserved, self.vocab_size)

    @property
    @override
    def states(self) -> int:
        return self.vocab_size

    @property
    def num_drawn(self) -> int:
        """Number of symbols that the noise draws."""
        return self.vocab_size - len(self.reserved or ())

    @override
    def noise_probs(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n _"]:
        level = ((1 - self.alpha(t)) / self.num_drawn)[..., None]
        return (
            level * drawable(self.vocab_size, self.reserved, t.device) if self.reserved else level
        )

    def rate_into(self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n 1"]:
        """Return the rate into each drawn symbol: sigma'(t) over the number of drawn symbols."""
        rate = self.schedule.dsigma(t.double()).expand(z.shape) / self.num_drawn
        if self.reserved:
            rate = rate * drawable(self.vocab_size, self.reserved, z.device)[z.long()]
        return rate[..., None]

    @override
    def log_prior(self, device: torch.device | str = "cpu") -> Float64[Tensor, " states"]:
        found = drawable(self.vocab_size, self.reserved, torch.device(device))
        return found.log() - math.log(self.num_drawn)

    @override
    def prior_kl(self, x0: Int[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        if self.reserved:
            return super().prior_kl(x0)
        # Without reserved symbols it is the same for every symbol.
        alpha = self.alpha(torch.ones((), dtype=torch.float64, device=x0.device))
        replaced = (1 - alpha) / self.vocab_size
        others = (self.vocab_size - 1) * torch.xlogy(replaced, replaced * self.vocab_size)
        kept = alpha + replaced
        return (others + torch.xlogy(kept, kept * self.vocab_size)).expand(x0.shape)

    @property
    @override
    def forgets(self) -> bool:
        return float(self.alpha(torch.ones(()))) == 0.0
