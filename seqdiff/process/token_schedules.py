"""Absorbing processes whose noise schedule depends on the token, or on the whole clean row."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.process.base import DiscreteProcess, Masking, check_vocab_size
from seqdiff.schedules import require


class TokenScheduled(Masking):
    """Masked diffusion in which a token is masked at time t with probability t^w.

    A mask is removed at the rate w / t. The powers w depend on the clean tokens, so they are
    unknown to the model, whose own rates of removal the bound compares with the true ones.
    """

    uneven: ClassVar[bool] = True
    visible_is_clean: ClassVar[bool] = True

    @property
    @abstractmethod
    def least_power(self) -> Float64[Tensor, ""]:
        """Lower limit of all powers."""

    @abstractmethod
    def power_of(self, x0: Int[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """Power w of each token of clean rows; any number at unknown tokens."""

    @property
    def starts_clean(self) -> bool:
        """True: no token is masked at t = 0."""
        return True

    def sigma(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        """Return -log(1 - t), which does not depend on the powers."""
        return -torch.log1p(-t.double())

    def log_noise(
        self, x0: Int[Tensor, "B L"], z: Int[Tensor, "B L"], t: Float[Tensor, " B"]
    ) -> Float64[Tensor, "B L"]:
        """Log-probability log q_t(z | x0) of noisy tokens that are x0 or the mask.

        Args:
            x0: Clean ids.
            z: Noisy ids.
            t: Times in (0, 1).
        """
        masked = self.power_of(x0) * t.double().log()[:, None]
        return torch.where(z == self.mask_id, masked, _log_1m_exp(masked))

    @override
    def time_at(
        self, fraction: Float64[Tensor, "*n"]
    ) -> tuple[Float64[Tensor, "*n"], Float64[Tensor, "*n"]]:
        """Time at which a token of the least power is masked with a probability of ``fraction``.

        In this time the terms of every token vary at most as much as those of linear masking. No
        gradient flows through it.
        """
        least = 1 / self.least_power.detach().to(fraction.device)
        t = (fraction**least).clamp_max(1 - torch.finfo(torch.float64).eps)
        return t, least * t / fraction

    @override
    def corrupt(
        self,
        x0: Int[Tensor, "B L"],
        t: Float[Tensor, " B"] | Float[Tensor, "B L"],
        *,
        keep: Bool[Tensor, "B L"] | None = None,
        noise: Float64[Tensor, "B L"],
    ) -> Int64[Tensor, "B L"]:
        """Draw z_t given x0: each token is masked with probability t^w."""
        times = t.double() if t.dim() == 2 else t.double()[:, None]
        masked = noise < times ** self.power_of(x0)
        masked = masked if keep is None else masked & ~keep
        return x0.long().masked_fill(masked, self.mask_id)


@dataclass(frozen=True)
class AbsorbingBySymbol(TokenScheduled, DiscreteProcess):
    """Masked diffusion in which symbol k is masked at time t with probability t^w_k.

    Symbols with a small power w are masked first and therefore generated last. A mask is evidence
    about its token: early in the process, it probably hides a symbol of small power. So the
    distribution of a token given all noisy tokens is not the leave-one-out one at masks, and it
    depends on the time. If all powers are equal, this is ``Absorbing`` with another clock. Source:
    Shi et al. 2024, arXiv:2406.04329, section 6 (GenMD4).

    A run learns the powers: ``BySymbolDenoiser`` holds the parameters, and its ``process`` has
    their present values. In a plain ``Denoiser`` the powers are constants.

    Attributes:
        vocab_size: K, the number of real symbols; the mask has id K.
        powers: w of each symbol; 1 unless ``given_log_powers`` has set them.
    """

    name: ClassVar[str] = "absorbing-by-symbol"
    vocab_size: int
    powers: Float64[Tensor, " K"] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the number of symbols.

        Raises:
            ValueError: If there is none.
        """
        check_vocab_size("AbsorbingBySymbol", self.vocab_size)
        object.__setattr__(self, "powers", torch.ones(self.vocab_size, dtype=torch.float64))

    def given_log_powers(self, log_powers: Float[Tensor, " K"]) -> AbsorbingBySymbol:
        """Return this process with other powers.

        Args:
            log_powers: log w of each symbol; gradients with respect to them are kept.

        Raises:
            ValueError: If there is not one for each symbol.
        """
        if log_powers.shape != (self.vocab_size,):
            raise ValueError(
                f"AbsorbingBySymbol.log_powers must have shape ({self.vocab_size},), got "
                f"{tuple(log_powers.shape)}; give one for each symbol, 0 is linear"
            )
        other = copy(self)
        object.__setattr__(other, "powers", log_powers.double().exp())
        return other

    @property
    @override
    def least_power(self) -> Float64[Tensor, ""]:
        return self.powers.min()

    @override
    def power_of(self, x0: Int[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
        return self._powers(x0.device)[x0.long().masked_fill(x0 == self.mask_id, 0)]

    def log_marginal(
        self, log_probs: Float[Tensor, "*n K"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Distribution of z_t; symbol y is left with probability 1 - t^w_y."""
        masked = self._log_masked(t)
        log_probs = log_probs.double()
        on_mask = (log_probs + masked).logsumexp(dim=-1, keepdim=True)
        return torch.cat((log_probs + _log_1m_exp(masked), on_mask), dim=-1)

    def log_step(
        self, z: Int[Tensor, "*n"], s: Float[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Symbols stay with probability alpha_t / alpha_s or turn into the mask, which stays."""
        before, after = self._log_masked(s), self._log_masked(t)
        left = _log_1m_exp(before)
        hidden = after + _log_1m_exp(before - after) - left
        onto_mask = torch.nn.functional.pad(hidden, (0, 1), value=0.0)
        stay = torch.nn.functional.pad(_log_1m_exp(after) - left, (0, 1), value=-torch.inf)
        present = torch.nn.functional.one_hot(z.long(), self.states).bool()
        kept = torch.where(present, stay, -torch.inf)
        return torch.where((z == self.mask_id)[..., None], onto_mask, kept)

    def rate_into(
        self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n states"]:
        """Return the rates w_y t^(w_y - 1) / (1 - t^w_y) into the mask, and 0 into a symbol."""
        masked = self._log_masked(t.double().expand(z.shape))
        slope = self._powers(z.device) / t.double()[..., None]
        rates = torch.nn.functional.pad(slope / torch.expm1(-masked), (0, 1))
        return torch.where((z == self.mask_id)[..., None], rates, 0.0)

    @override
    def log_likelihood(
        self, z: Int[Tensor, "*n"], t: Float[Tensor, "*n"]
    ) -> Float64[Tensor, "*n K"]:
        """Evidence of z: a mask favours small powers, and a visible token is certain.

        At t = 1 too, where only given tokens are visible.
        """
        masked = self._log_masked(t).expand(*z.shape, -1)
        same = z[..., None] == torch.arange(self.vocab_size, device=z.device)
        left = _log_1m_exp(masked.clamp_max(-torch.finfo(torch.float64).tiny))
        return torch.where(
            (z == self.mask_id)[..., None], masked, torch.where(same, left, -torch.inf)
        )

    @override
    def log_posterior(
        self,
        log_probs: Float[Tensor, "*n K"],
        z: Int[Tensor, "*n"],
        s: Float[Tensor, "*n"],
        t: Float[Tensor, "*n"],
    ) -> Float64[Tensor, "*n states"]:
        """Distribution of z_s given z_t; visible tokens stay, at t = 1 too."""
        before, after, log_probs = self._log_masked(s), self._log_masked(t), log_probs.double()
        unmasked = log_probs + after + _log_1m_exp(before - after)
        stays = (log_probs + before).logsumexp(dim=-1, keepdim=True)
        step = torch.cat((unmasked, stays), dim=-1).log_softmax(dim=-1)
        present = torch.nn.functional.one_hot(z.long(), self.states).double().log()
        return torch.where((z != self.mask_id)[..., None], present, step)

    def _powers(self, device: torch.device) -> Tensor:
        return self.powers.to(device)

    def _log_masked(self, t: Tensor) -> Float64[Tensor, "*n K"]:
        """Log-probability w log t of a mask, for each clean symbol."""
        return self._powers(t.device) * t.double().log()[..., None]


Scores = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class AbsorbingByContext(TokenScheduled):
    """Masked diffusion in which a token is masked with probability t^w, w depending on the row.

    The power of position i is w_i = least + spread score_i(x0), with a score in (0, 1) that depends
    on the whole clean row. Positions of small score are masked first and therefore generated last.
    The model cannot know the powers, so it predicts them by ``Velocity``. Source: arXiv:2602.02112.

    The scores are learned: ``ByContextDenoiser`` has the network that gives them.

    Attributes:
        vocab_size: K, the number of real symbols; the mask has id K.
        least: Power at a score of 0, positive; 0.7 is published.
        spread: Difference between the powers at scores of 1 and 0, at least 0; 0.65 is published.
        scores: Function of clean ids ``[B, L]`` that returns their scores; see ``given_scores``.
    """

    name: ClassVar[str] = "absorbing-by-context"
    vocab_size: int
    least: float = 0.7
    spread: float = 0.65
    scores: Scores | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If there is no symbol, or a power would not be positive.
        """
        check_vocab_size("AbsorbingByContext", self.vocab_size)
        fix = "0.7 and 0.65 are published"
        require(self.least > 0, "AbsorbingByContext.least", "be positive", self.least, fix)
        require(self.spread >= 0, "AbsorbingByContext.spread", "be at least 0", self.spread, fix)

    def given_scores(self, scores: Scores) -> AbsorbingByContext:
        """Return this process with the scores of positions.

        Args:
            scores: Function of clean ids ``[B, L]`` that returns numbers in [0, 1].
        """
        other = copy(self)
        object.__setattr__(other, "scores", scores)
        return other

    @property
    @override
    def least_power(self) -> Float64[Tensor, ""]:
        return torch.tensor(self.least, dtype=torch.float64)

    @override
    def power_of(self, x0: Int[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        if self.scores is None:
            raise ValueError(
                "AbsorbingByContext.scores must be given before rows are masked, got None; build "
                "a ByContextDenoiser, or call given_scores"
            )
        return self.least + self.spread * self.scores(x0).double()


def _log_1m_exp(value: Float64[Tensor, "*n"]) -> Float64[Tensor, "*n"]:
    """log(1 - e^value) of values that are not positive."""
    return torch.log(-torch.expm1(value))
