"""The bound of masked diffusion that also trains the noise schedules of tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import continuous_terms
from seqdiff.objectives.base import Objective, corrupted
from seqdiff.objectives.time_sampling import TimeSampler, Uniform
from seqdiff.process import AbsorbingByContext, AbsorbingBySymbol, TokenScheduled
from seqdiff.rng import MASK_STREAM, SECOND_MASK_STREAM, CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class TokenScheduleNELBO(Objective):
    """The continuous-time bound at one random time and two noisy rows per sequence.

    The powers of tokens change the bound by its terms and by the distribution of the noisy
    rows. The gradient of the second part is that of REINFORCE, where each of the two rows is the
    baseline of the other (leave-one-out): it is (f_1 - f_2) / 2 times the gradient of log q(z_1) -
    log q(z_2), and unbiased. A step costs two network evaluations per sequence. Source: Shi et al.
    2024, arXiv:2406.04329, section 6; arXiv:2602.02112; Kool et al. 2019, "Buy 4 REINFORCE samples,
    get a baseline for free".

    Attributes:
        time_sampler: Draws the fraction of the noise, see ``TokenScheduled.time_at``.
    """

    needs: ClassVar[Needs] = Needs(
        (AbsorbingBySymbol, AbsorbingByContext), ("loo", "full", "rates")
    )
    time_sampler: TimeSampler = field(default_factory=Uniform)

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        process = denoiser.process
        assert isinstance(process, TokenScheduled)  # by ``needs``
        fraction, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        t, slope = process.time_at(fraction)
        both = torch.arange(len(t), device=t.device).repeat(2)
        z = torch.cat(
            [
                corrupted(denoiser, batch, t, noise, stream)
                for stream in (MASK_STREAM, SECOND_MASK_STREAM)
            ]
        )
        found = continuous_terms(
            denoiser, batch.take(both), z, t[both], (inverse_density * slope)[both]
        )
        first, second = found.chunk(2)
        value = (first + second) / 2
        # Tokens that are kept are equal in both rows and cancel.
        log_first, log_second = process.log_noise(batch.tokens[both], z, t[both]).chunk(2)
        gap = (first - second).detach().sum(dim=-1, keepdim=True) / 2
        score = gap * (log_first - log_second)
        return value + score - score.detach()
