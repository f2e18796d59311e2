"""Cross-entropy without the bound's weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import full_terms, masked_terms
from seqdiff.objectives.base import Objective, corrupted
from seqdiff.objectives.time_sampling import TimeSampler
from seqdiff.objectives.time_sampling import Uniform as UniformTimes
from seqdiff.process import Absorbing, Hybrid, Uniform
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class CrossEntropy(Objective):
    """-log p(x0) of noisy tokens at a random time, all noise levels weighing alike.

    It varies less than a bound and bounds nothing; runs are validated and evaluated by the bound.
    Masked diffusion counts its masked tokens (twice, since half of them are masked on average),
    other processes the prediction of every token given all noisy ones, its own among them. (Of a
    network that sees the own token, the leave-one-out prediction without that evidence would learn
    it.) Source: the unweighted loss of Austin et al. 2021, arXiv:2107.03006, section 3.4, and of
    BERT with a random masking rate.

    Attributes:
        time_sampler: Draws the times.
    """

    needs: ClassVar[Needs] = Needs((Absorbing, Uniform, Hybrid), ("loo", "full"))
    time_sampler: TimeSampler = field(default_factory=UniformTimes)

    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        """See ``Objective``; the sum of a row is no bound."""
        t, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        z = corrupted(denoiser, batch, t, noise)
        if isinstance(denoiser.process, Absorbing):
            return masked_terms(denoiser, batch, z, t, 2 * inverse_density)
        return full_terms(denoiser, batch, z, t, inverse_density)
