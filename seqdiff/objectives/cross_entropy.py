"""Cross-entropies of noisy tokens without the weights of a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import full_terms, masked_terms, weighted
from seqdiff.objectives.base import Objective, corrupted, position_noise
from seqdiff.objectives.time_sampling import TimeSampler
from seqdiff.objectives.time_sampling import Uniform as UniformTimes
from seqdiff.process import Absorbing, Hybrid, Uniform
from seqdiff.rng import REPLACE_STREAM, CounterNoise, permutation_rank
from seqdiff.types import Batch


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """-log p(x0) of noisy tokens at a random time, with equal weight at all noise levels.

    It varies less than a bound, but is none; runs are validated and evaluated by the bound. Masked
    diffusion counts its masked tokens (twice, since half of all tokens are masked on average).
    Other processes count the prediction of every token given all noisy tokens, its own included: a
    network that sees the own token would otherwise learn the leave-one-out prediction from it.
    Source: the unweighted loss of Austin et al. 2021, arXiv:2107.03006, section 3.4, and of BERT
    with a random masking rate.

    Attributes:
        time_sampler: Draws the times.
    """

    needs: ClassVar[Needs] = Needs((Absorbing, Uniform, Hybrid), ("loo", "full"))
    time_sampler: TimeSampler = field(default_factory=UniformTimes)

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        t, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        z = corrupted(denoiser, batch, t, noise)
        if isinstance(denoiser.process, Absorbing):
            return masked_terms(denoiser, batch, z, t, 2 * inverse_density)
        return full_terms(denoiser, batch, z, t, inverse_density)


@dataclass(frozen=True)
class MaskedLM(Objective):
    """BERT's masked language model: predict a few chosen tokens, most of which are masked.

    ``max(1, round(fraction n))`` of the n counted positions of a sequence are chosen. A chosen
    token is shown as the mask with probability ``mask_probability``, as a symbol drawn uniformly
    from the K real ones with ``random_probability``, and as itself otherwise. Its cross-entropy has
    the weight n over the number of chosen tokens, so that the loss per token is the mean over
    chosen tokens. It is no bound.

    Runs are validated, evaluated and sampled like masked diffusion. The network then sees mask
    fractions that it has not been trained on. Source: Devlin et al. 2019, arXiv:1810.04805,
    section 3.1 and appendix A.1.

    Attributes:
        fraction: Fraction of positions that are chosen, in (0, 1].
        mask_probability: Probability that a chosen token is masked.
        random_probability: Probability that a chosen token is replaced by a random symbol.
    """

    needs: ClassVar[Needs] = Needs((Absorbing,), any_order=True)
    fraction: float = 0.15
    mask_probability: float = 0.8
    random_probability: float = 0.1

    def __post_init__(self) -> None:
        """Check the probabilities.

        Raises:
            ValueError: If one is out of its range.
        """
        if not 0 < self.fraction <= 1:
            raise ValueError(
                f"MaskedLM.fraction must be in (0, 1], got {self.fraction}; 0.15 is usual"
            )
        hidden = self.mask_probability + self.random_probability
        least = min(self.mask_probability, self.random_probability)
        if not (least >= 0 and (hidden < 1 or math.isclose(hidden, 1))):
            raise ValueError(
                "MaskedLM.mask_probability and random_probability must be at least 0 and add up to "
                f"1 at most, got {self.mask_probability} and {self.random_probability}; 0.8 and "
                "0.1 are usual"
            )

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        process = denoiser.process
        assert isinstance(process, Absorbing)  # by ``needs``
        total = batch.loss_mask.sum(dim=-1)
        count = (self.fraction * total.double()).round().long().clamp_min(1)
        rank = permutation_rank(position_noise(batch, noise), batch.loss_mask)
        chosen = batch.loss_mask & (rank < count[:, None])
        shown = torch.where(chosen, self._disguise(process, batch, noise), batch.tokens)
        masked = (chosen & (shown == process.unknown_id)).sum(dim=-1)
        t = process.schedule.inverse(1 - masked.double() / total.clamp_min(1))
        where = chosen & (batch.tokens != process.unknown_id)
        return weighted(denoiser, batch, shown, t, where, total.double() / count)

    def _disguise(
        self, process: Absorbing, batch: Batch, noise: CounterNoise
    ) -> Int64[Tensor, "B L"]:
        """Draw what each position shows if it is chosen."""
        draws = noise.uniform(batch.index, 2 * batch.tokens.shape[1], stream=REPLACE_STREAM)
        fate, which = draws.unflatten(1, (-1, 2)).unbind(dim=-1)
        symbol = (which * process.vocab_size).long().clamp_max(process.vocab_size - 1)
        replaced = fate < self.mask_probability + self.random_probability
        shown = torch.where(replaced, symbol, batch.tokens)
        return torch.where(fate < self.mask_probability, process.unknown_id, shown)
