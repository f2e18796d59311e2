"""The bound of Gaussian diffusion on embeddings, which also trains its schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser, GaussianDenoiser, Level, Needs, NoisyEmbeddings
from seqdiff.losses import gaussian_prior, gaussian_reconstruction, gaussian_terms
from seqdiff.objectives.base import Objective, add_on_some_rows
from seqdiff.objectives.time_sampling import TimeSampler, Uniform
from seqdiff.process import Gaussian
from seqdiff.rng import CONDITIONING_STREAM, MASK_STREAM, CounterNoise, standard_normal
from seqdiff.types import Batch

# Fraction of training rows for which a self-conditioned network sees its first prediction.
_CONDITIONED = 1 / 4


@dataclass(frozen=True)
class GaussianVLB(Objective):
    """The bound at one random time per sequence, with its prior and reconstruction terms.

    The integral does not depend on the shape of the schedule between its ends. So the ends are
    trained on the bound, like the network, and the shape on the mean square of the estimates of the
    bound, which has the same minimum as their variance. Source: Gulrajani and Hashimoto 2023,
    arXiv:2305.18619; Kingma et al. 2021, arXiv:2107.00630, appendix I.2.

    Attributes:
        time_sampler: Draws the times.
    """

    needs: ClassVar[Needs] = Needs((Gaussian,), ("full",))
    time_sampler: TimeSampler = field(default_factory=Uniform)

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        assert isinstance(denoiser, GaussianDenoiser)  # by ``needs``
        model = denoiser  # of this type in ``decode`` too
        t, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        level, hooks = _level(model, t)
        inputs = _corrupted(model, batch, level.gamma, noise)
        terms = gaussian_terms(model, batch, inputs, level, inverse_density)
        hooks.nats_per_token = terms.detach().sum(dim=-1) / batch.num_tokens.clamp_min(1)

        def decode(part: Batch, weight: Float64[Tensor, " b"]) -> Tensor:
            first = model.schedule(torch.zeros_like(weight)).gamma
            hidden = _corrupted(model, part, first, noise)
            return gaussian_reconstruction(model, part, hidden, weight)

        terms = terms + gaussian_prior(model, batch)
        return add_on_some_rows(terms, batch, noise, decode)


class _SquaredLoss:
    """Hook that turns gradients of the rows' nats into those of half their square per token.

    The gradient of a squared estimate is 2 x estimate x gradient, so that the schedule's shape
    needs no separate backward pass.
    """

    nats_per_token: Tensor

    def __call__(self, gradient: Tensor) -> Tensor:
        """Scale the gradient of each row."""
        return gradient * self.nats_per_token.to(gradient.dtype)


def _level(denoiser: GaussianDenoiser, t: Float64[Tensor, " B"]) -> tuple[Level, _SquaredLoss]:
    """Return the noise level, and the hook that trains its shape on the squared loss."""
    squared = _SquaredLoss()
    shape, slope = denoiser.schedule.shape(t)
    for value in (shape, slope):
        if value.requires_grad:
            value.register_hook(squared)
    return denoiser.schedule.between_ends(shape, slope), squared


def _corrupted(
    denoiser: GaussianDenoiser, batch: Batch, gamma: Float64[Tensor, " B"], noise: CounterNoise
) -> NoisyEmbeddings:
    """Draw noisy rows; a longer row begins with the noise of a shorter one."""
    length, dim = batch.tokens.shape[1], denoiser.process.dim
    uniform = noise.uniform(batch.index, length * dim, stream=MASK_STREAM)
    normals = standard_normal(uniform).unflatten(-1, (length, dim))
    conditioned = None
    if denoiser.training:
        draws = noise.uniform(batch.index, 1, stream=CONDITIONING_STREAM)[:, 0]
        conditioned = draws < _CONDITIONED
    return denoiser.corrupt(batch, gamma, normals, conditioned)
