"""What a run minimises: unbiased estimates of the same bound, by different draws of the mask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from seqdiff.backbones import Backbone
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise
from seqdiff.schedules import NoiseSchedule
from seqdiff.time_sampling import TimeSampler, Uniform
from seqdiff.types import Batch


class Objective(ABC):
    """Corrupts a batch, asks the denoiser, and returns each token's share of the bound.

    An objective also says what it makes of a backbone, and what its runs are validated by; masked
    diffusion, which is the default here, means a ``Denoiser`` and its bound.
    """

    def process(self, vocab_size: int, schedule: NoiseSchedule) -> MaskedDiffusion:
        """Choose how tokens are hidden.

        Args:
            vocab_size: K.
            schedule: The run's.

        Raises:
            ValueError: If the schedule is not complete.
        """
        return MaskedDiffusion(vocab_size, schedule)

    def denoiser(self, backbone: Backbone, process: MaskedDiffusion) -> Denoiser:
        """Wrap a backbone into the model that this objective trains.

        Args:
            backbone: Embeds K+1 ids, emits K logits.
            process: How tokens are hidden.

        Raises:
            ValueError: If the backbone is not of the kind that the objective needs.
        """
        return Denoiser(backbone, process.vocab_size, process.schedule)

    def validation(self) -> Objective:
        """Choose what estimates the negative log-likelihood of the validation split."""
        return WeightedMLM()

    @abstractmethod
    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """Estimate the bound of each sequence, one draw of the mask each.

        Args:
            denoiser: The model.
            process: How tokens are hidden.
            batch: Clean tokens; what is outside its loss mask stays visible.
            noise: The run's noise, read at ``batch.index``.

        Returns:
            Nats, with a row's sum unbiased for the row's bound; 0 outside the loss mask.
        """


def _corrupt(process: MaskedDiffusion, batch: Batch, t: Tensor, noise: CounterNoise) -> Tensor:
    draws = noise.uniform(batch.index, batch.tokens.shape[1], stream=MASK_STREAM)
    return process.corrupt(batch.tokens, t, keep=~batch.loss_mask, noise=draws)


def bound(
    denoiser: Denoiser,
    process: MaskedDiffusion,
    batch: Batch,
    x_t: Int[Tensor, "B L"],
    t: Float[Tensor, " B"],
    weight: Float[Tensor, " B"] | Float[Tensor, "B L"],
) -> Float[Tensor, "B L"]:
    """What the masked tokens that count cost, times a weight; see ``weighted_mlm``.

    Positions that a data set hides itself without asking for a loss there do not count.

    Args:
        denoiser: The model.
        process: How tokens were hidden.
        batch: Clean tokens.
        x_t: Corrupted ids.
        t: Times of the rows.
        weight: One a row, or one a token.
    """
    mask_id = process.mask_id
    where = (x_t == mask_id) & (batch.tokens != mask_id) & batch.loss_mask
    nats = denoiser.nats(x_t, batch.tokens, where, t.float(), batch.padding, batch.label)
    return torch.where(where, nats * weight.to(nats.dtype).view(len(nats), -1), 0.0)


@dataclass(frozen=True)
class ContinuousNELBO(Objective):
    """The continuous-time bound at one random time a sequence.

    Source: Sahoo et al. 2024, arXiv:2406.07524, equation 10.

    Attributes:
        time_sampler: Draws the times.
    """

    time_sampler: TimeSampler = field(default_factory=Uniform)

    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """See ``Objective``."""
        t, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        x_t = _corrupt(process, batch, t, noise)
        weight = process.schedule.nelbo_weight(t) * inverse_density
        return bound(denoiser, process, batch, x_t, t, weight)


@dataclass(frozen=True)
class DiscreteNELBO(Objective):
    """The bound of a chain with ``num_steps`` steps, at one random step a sequence.

    Source: Sahoo et al. 2024, arXiv:2406.07524, equation 8.

    Attributes:
        num_steps: Steps of the chain.
        time_sampler: Draws the times that fall into the steps.
    """

    num_steps: int
    time_sampler: TimeSampler = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        """Check the number of steps.

        Raises:
            ValueError: If there is no step.
        """
        if self.num_steps < 1:
            raise ValueError(
                f"DiscreteNELBO.num_steps must be at least 1, got {self.num_steps}; "
                "use ContinuousNELBO for the limit of many steps"
            )

    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """See ``Objective``."""
        u, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        step = (u * self.num_steps).long().clamp_max(self.num_steps - 1)
        s, t = step / self.num_steps, (step + 1) / self.num_steps
        x_t = _corrupt(process, batch, t, noise)
        weight = self.num_steps * process.reveal_probability(s, t) * inverse_density
        return bound(denoiser, process, batch, x_t, t, weight)


@dataclass(frozen=True)
class WeightedMLM(Objective):
    """Masks exactly k of the n positions that count, k uniform on 1..n, with weight n / k.

    The same bound with less variance, since the number of masked tokens is not random given k.
    Source: Ou et al. 2024, arXiv:2406.03736, theorem 2.
    """

    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """See ``Objective``."""
        total = batch.loss_mask.sum(dim=-1)
        u = noise.uniform(batch.index, 1, stream=TIME_STREAM)[:, 0]
        count = (u * total).long().clamp_max(total - 1) + 1
        draws = noise.uniform(batch.index, batch.tokens.shape[1], stream=MASK_STREAM)
        x_t = process.corrupt_exactly(batch.tokens, count, keep=~batch.loss_mask, noise=draws)
        masked_share = count.double() / total.clamp_min(1)
        t = process.schedule.inverse(1 - masked_share)
        return bound(denoiser, process, batch, x_t, t, 1 / masked_share)
