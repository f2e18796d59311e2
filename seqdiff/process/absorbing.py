"""The absorbing process: tokens turn into a mask and stay there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.process.base import Masking, Scheduled, check_vocab_size
from seqdiff.rng import permutation_rank
from seqdiff.schedules import LogLinear, NoiseSchedule


@dataclass(frozen=True)
class Absorbing(Masking, Scheduled):
    """Masked diffusion: q(z_t | x0) = Cat(alpha_t x0 + (1 - alpha_t) m).

    Source: Sahoo et al. 2024, arXiv:2406.07524, section 3.

    Attributes:
        vocab_size: K, the number of real symbols; the mask has id K.
        schedule: A complete noise schedule, alpha(0) = 1 and alpha(1) = 0.
    """

    name: ClassVar[str] = "absorbing"
    needs_time: ClassVar[bool] = False
    visible_is_clean: ClassVar[bool] = True
    vocab_size: int
    schedule: NoiseSchedule = field(default_factory=LogLinear)

    def __post_init__(self) -> None:
        """Check the schedule.

        Raises:
            ValueError: If there is no symbol, or alpha(0) != 1 or alpha(1) != 0: generation starts
                from masks alone, so the bound would be infinite with alpha(1) > 0.
        """
        check_vocab_size("Absorbing", self.vocab_size)
        first, last = self.schedule.alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
        if (first, last) != (1.0, 0.0):
            raise ValueError(
                "Absorbing.schedule must have alpha(0) = 1 and alpha(1) = 0, got "
                f"{first:.6g} and {last:.6g} from {self.schedule}; wrap it in Completed(...), on "
                "the command line --process.schedule Completed --process.schedule.schedule "
                f"{type(self.schedule).__name__}"
            )

    @override
    def noise_probs(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n states"]:
        mask = torch.zeros(self.states, dtype=torch.float64, device=t.device)
        mask[self.mask_id] = 1.0
        return (1 - self.alpha(t))[..., None] * mask

    def rate_into(self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n 1"]:
        """Return the rate sigma'(t) into the mask, and 0 into a symbol."""
        rate = self.schedule.dsigma(t.double())
        return torch.where(z == self.mask_id, rate, 0.0)[..., None]

    @property
    @override
    def starts_clean(self) -> bool:
        return True  # the schedule is complete

    def unmask_probability(
        self, s: Float[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n"]:
        """P(a token masked at t is visible at s) = (alpha_s - alpha_t) / (1 - alpha_t)."""
        alpha_s, alpha_t = self.alpha(s), self.alpha(t)
        return (alpha_s - alpha_t) / (1 - alpha_t)

    def log_posterior(
        self,
        log_probs: Float[Tensor, "*n k"],
        z: Int[Tensor, "*n"],
        s: Float[Tensor, "*n"],
        t: Float[Tensor, "*n"],
    ) -> Float64[Tensor, "*n states"]:
        """Distribution of z_s given z_t; visible tokens stay, at t = 1 too."""
        visible = (z != self.mask_id)[..., None]
        present = torch.nn.functional.one_hot(z.long(), self.states).double().log()
        masked = torch.full_like(z, self.mask_id)
        return torch.where(visible, present, super().log_posterior(log_probs, masked, s, t))

    def corrupt(
        self,
        x0: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | Float[Tensor, "B L"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Draw x_t given x0: each token is masked independently with probability 1 - alpha(t)."""
        masked = 1 - self.alpha(t)
        return self._mask(x0, noise < (masked if masked.dim() == 2 else masked[:, None]), keep)

    def corrupt_exactly(
        self,
        x0: Int[Tensor, "B L"],
        count: Int[Tensor, " B"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Mask exactly ``count`` positions of each row, all subsets equally likely.

        Given its number of masked tokens, x_t of any absorbing process has this distribution (Ou et
        al. 2024, arXiv:2406.03736, section 3.3).

        Args:
            x0: Clean ids in ``0..K``.
            count: Positions to mask, at most the number that is not kept.
            keep: Positions that are not masked.
            noise: Independent uniforms in (0, 1).
        """
        eligible = torch.ones_like(x0, dtype=torch.bool) if keep is None else ~keep
        return self._mask(x0, permutation_rank(noise, eligible) < count[:, None], keep)

    def _mask(self, x0: Tensor, masked: Tensor, keep: Tensor | None) -> Tensor:
        if keep is not None:
            masked = masked & ~keep
        return torch.where(masked, self.mask_id, x0)
