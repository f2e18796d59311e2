"""Hybrid noise: most tokens are masked, some are replaced by random symbols on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor
from typing_extensions import override

from seqdiff.process.base import (
    Interpolating,
    Masking,
    check_reserved,
    check_vocab_size,
    drawable,
    small_times,
)
from seqdiff.schedules import require

# Bend of ``small_times``: the terms of random tokens grow like 1 / t with probability sqrt(t).
_BEND = 0.1


@dataclass(frozen=True)
class Hybrid(Masking, Interpolating):
    """Masking mixed with uniform noise, so that a model learns to correct visible tokens.

    With c(t) = B sqrt(t (1 - t)) and C = 1 + c, alpha is (1 - t) / C, the mask has probability
    t / C and every symbol c / (C K). B is chosen such that at t = 1/2 a fraction ``p_u`` of all
    tokens is random; at t = 0 and t = 1 none is. Source: von Ruette et al. 2025, arXiv:2503.04482,
    section 3.

    Attributes:
        vocab_size: K, the number of real symbols; the mask has id K.
        p_u: Fraction of random tokens at t = 1/2, in [0, 1); 0 is linear masking.
        reserved: Symbols that the noise never draws, see ``Uniform``.
    """

    name: ClassVar[str] = "hybrid"
    uneven: ClassVar[bool] = True
    vocab_size: int
    p_u: float = 0.1
    reserved: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If there is no symbol, ``p_u`` is out of range, or the reserved symbols are
                not among the K.
        """
        check_vocab_size("Hybrid", self.vocab_size)
        check_reserved("Hybrid", self.reserved, self.vocab_size)
        fix = "0.1 is usual; for random tokens alone use the uniform process"
        require(0 <= self.p_u < 1, "Hybrid.p_u", "be in [0, 1)", self.p_u, fix)

    @property
    def _num_drawn(self) -> int:
        return self.vocab_size - len(self.reserved or ())

    @property
    def _strength(self) -> float:
        return 2 * self.p_u / (1 - self.p_u)

    def _random(self, t: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """c(t)."""
        return self._strength * (t * (1 - t)).clamp_min(0).sqrt()

    @override
    def alpha(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        t = t.double()
        return (1 - t) / (1 + self._random(t))

    @override
    def noise_probs(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n states"]:
        t = t.double()
        random = self._random(t)
        drawn = drawable(self.vocab_size, self.reserved, t.device)
        symbols = (random / self._num_drawn)[..., None] * drawn
        return torch.cat((symbols, t[..., None]), dim=-1) / (1 + random)[..., None]

    @override
    def time_at(
        self, fraction: Float64[Tensor, "*n"]
    ) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
        return small_times(fraction, _BEND)

    def rate_into(self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n 1"]:
        """Return the rate b' - (alpha' / alpha) b, which is positive at every t."""
        t = t.double().expand(z.shape)
        scale = 1 + self._random(t)
        into_mask = 1 / (scale * (1 - t))
        into_symbol = self._strength / (2 * self._num_drawn * scale * (t * (1 - t)).sqrt())
        if self.reserved:
            drawn = drawable(self.vocab_size, self.reserved, z.device)
            into_symbol = into_symbol * drawn[z.long().clamp_max(self.vocab_size - 1)]
        return torch.where(z == self.mask_id, into_mask, into_symbol)[..., None]
