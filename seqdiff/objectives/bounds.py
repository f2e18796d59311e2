"""Bounds of discrete processes, the likelihood of autoregressive models, and their choice."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from scipy.special import betaincinv
from torch import Tensor
from typing_extensions import override

from seqdiff.blocks import cut, num_blocks, spread
from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import continuous_terms, masked_terms, step_terms, weighted
from seqdiff.objectives.base import Objective, add_ends, corrupted, position_noise
from seqdiff.objectives.time_sampling import Sobol, TimeSampler, Uniform
from seqdiff.parameterization import Subs
from seqdiff.process import (
    Absorbing,
    Blockwise,
    DiscreteProcess,
    Gaussian,
    LeftToRight,
    SymbolProcess,
)
from seqdiff.rng import TIME_STREAM, CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class ContinuousNELBO(Objective):
    """The continuous-time bound at one random time per sequence, for every discrete process.

    For masked diffusion it is MDLM's loss (Sahoo et al. 2024, arXiv:2406.07524, equation 10); for
    scores it is SEDD's, see ``losses.score_entropy``; for leave-one-out predictions it is that of
    UDLM and GIDD, see ``losses.ctmc_nelbo``. The terms at t = 0 and t = 1 are included.

    Attributes:
        time_sampler: Draws the times.
    """

    needs: ClassVar[Needs] = Needs((DiscreteProcess,), fixed_process=True)
    time_sampler: TimeSampler = field(default_factory=Uniform)

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        t, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        process = denoiser.process
        assert isinstance(process, SymbolProcess)  # by ``needs``
        if process.uneven:
            t, slope = process.time_at(t)
            inverse_density = inverse_density * slope
        z = corrupted(denoiser, batch, t, noise)
        terms = continuous_terms(denoiser, batch, z, t, inverse_density)
        return add_ends(terms, denoiser, batch, noise)


@dataclass(frozen=True)
class DiscreteNELBO(Objective):
    """D3PM's loss: the bound of a chain of ``num_steps`` steps, at one random step per sequence.

    Source: Austin et al. 2021, arXiv:2107.03006, equations 3 and 5; for masked diffusion Sahoo et
    al. 2024, arXiv:2406.07524, equation 8. There the loss is the term of one step, here T times it.

    Attributes:
        num_steps: T, the number of steps of the chain.
        time_sampler: Draws the times that fall into the steps.
        auxiliary: Coefficient lambda of the cross-entropy of x0 that D3PM adds to each step (the
            hybrid loss): .01 is published for absorbing text, 0 for uniform. Above 0 the loss is
            no bound; runs are validated without it.
    """

    needs: ClassVar[Needs] = Needs((DiscreteProcess,), ("loo", "full"), fixed_process=True)
    num_steps: int
    time_sampler: TimeSampler = field(default_factory=Uniform)
    auxiliary: float = 0.0

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: If there is no step, or the coefficient is negative.
        """
        if self.num_steps < 1:
            raise ValueError(
                f"DiscreteNELBO.num_steps must be at least 1, got {self.num_steps}; "
                "use ContinuousNELBO for the limit of many steps"
            )
        if not self.auxiliary >= 0:
            raise ValueError(
                f"DiscreteNELBO.auxiliary must be at least 0, got {self.auxiliary}; 0.01 is "
                "published for absorbing text"
            )

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        u, inverse_density = self.time_sampler.sample(batch.index, noise=noise)
        step = (u * self.num_steps).floor().clamp_max(self.num_steps - 1)
        s, t = step / self.num_steps, (step + 1) / self.num_steps
        z = corrupted(denoiser, batch, t, noise)
        weight = self.num_steps * inverse_density
        extra = self.auxiliary * self.num_steps
        terms = step_terms(denoiser, batch, z, s, t, weight, extra)
        return add_ends(terms, denoiser, batch, noise)


@dataclass(frozen=True)
class WeightedMLM(Objective):
    """Masks exactly k of the n counted positions, k uniform on 1..n, with weight n / k.

    It is the bound of ``ContinuousNELBO`` with less variance, since the number of masked tokens is
    not random given k. In block diffusion every block has its own k; with blocks of one token it is
    the exact negative log-likelihood from left to right. Source: Ou et al. 2024, arXiv:2406.03736,
    theorem 2.

    With other parameters than 1, the fraction of masked tokens is drawn from a beta distribution
    and the mean over a row's masked tokens is minimised, which is no bound: 2 and 2 seldom mask
    few or nearly all tokens, where a masked token is nearly certain or hardly predictable. Runs are
    validated and evaluated by the bound.

    Attributes:
        a: First parameter of the beta distribution of the masked fraction.
        b: Second parameter.
    """

    needs: ClassVar[Needs] = Needs((Absorbing, Blockwise), any_order=True)
    a: float = 1.0
    b: float = 1.0

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            ValueError: If one is not positive.
        """
        for name in ("a", "b"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(
                    f"WeightedMLM.{name} must be positive and finite, got {getattr(self, name)}; 1 "
                    "gives the bound, 2 masks fractions near 1/2 more often"
                )

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        process = denoiser.process
        draws = position_noise(batch, noise)
        if isinstance(process, Blockwise):
            size, length = process.block_size, batch.tokens.shape[1]
            blocks = num_blocks(length, size)
            total = cut(batch.loss_mask, size).sum(dim=-1).view(-1, blocks)
            u = self._fractions(noise.uniform(batch.index, blocks, stream=TIME_STREAM))
            count = ((u * total).long() + 1).minimum(total)
            x_t = process.corrupt_exactly(batch.tokens, count, keep=~batch.loss_mask, noise=draws)
            weight = spread(total.double() / count.clamp_min(1), size, length)
            return masked_terms(denoiser, batch, x_t, None, weight)
        assert isinstance(process, Absorbing)  # by ``needs``
        total = batch.loss_mask.sum(dim=-1)
        u = self._fractions(noise.uniform(batch.index, 1, stream=TIME_STREAM))[:, 0]
        count = (u * total).long().clamp_max(total - 1) + 1
        x_t = process.corrupt_exactly(batch.tokens, count, keep=~batch.loss_mask, noise=draws)
        fraction = count.double() / total.clamp_min(1)
        t = process.schedule.inverse(1 - fraction)
        return masked_terms(denoiser, batch, x_t, t, 1 / fraction)

    def _fractions(self, u: Tensor) -> Tensor:
        """Turn uniform draws into draws of the beta distribution."""
        if self.a == self.b == 1:
            return u
        return torch.from_numpy(betaincinv(self.a, self.b, u.cpu().numpy())).to(u)


@dataclass(frozen=True)
class BlockNELBO(Objective):
    """The continuous-time bound of block diffusion, with a random time for every block.

    The masked fraction 1 - alpha of a block is uniform on [beta, omega], and its masked tokens have
    the weight one over that fraction, for any noise schedule. On [0, 1] this is the bound, and the
    sum of a row is unbiased for it. A clipped interval has less variance and gives no bound; runs
    are validated and evaluated by the bound in any case. Source: Arriola et al. 2025,
    arXiv:2503.09573, equations 8 and 9, section 5.

    Attributes:
        beta: Least masked fraction, in [0, omega).
        omega: Largest masked fraction, at most 1.
        time_sampler: Draws where in the interval a block is. Blocks are numbered over the stream,
            so its group is a number of blocks.
        search_batches: After each validation, switch to the interval whose loss varies least over
            this many batches of the validation split. This takes one forward pass for each batch
            and each of 36 intervals, see ``ClippedScheduleSearch``; null keeps beta and omega.
    """

    needs: ClassVar[Needs] = Needs((Blockwise,))
    beta: float = 0.0
    omega: float = 1.0
    time_sampler: TimeSampler = field(default_factory=Uniform)
    search_batches: int | None = None

    def __post_init__(self) -> None:
        """Check the interval and the number of batches.

        Raises:
            ValueError: If [beta, omega] is no interval within [0, 1], or there are too few batches
                for a variance.
        """
        if not 0 <= self.beta < self.omega <= 1:
            raise ValueError(
                "BlockNELBO.beta and omega must satisfy 0 <= beta < omega <= 1, got "
                f"{self.beta} and {self.omega}; 0 and 1 give the bound"
            )
        if self.search_batches is not None and self.search_batches < 2:
            raise ValueError(
                "BlockNELBO.search_batches must be at least 2, got "
                f"{self.search_batches}; 64 is usual, null does not search"
            )

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        process, length = denoiser.process, batch.tokens.shape[1]
        assert isinstance(process, Blockwise)  # by ``needs``
        place, inverse_density = self._places(batch, process.block_size, noise)
        fraction = self.beta + (self.omega - self.beta) * place
        x_t = corrupted(denoiser, batch, process.process.schedule.inverse(1 - fraction), noise)
        weight = spread(inverse_density / fraction, process.block_size, length)
        return masked_terms(denoiser, batch, x_t, None, weight)

    def _places(
        self, batch: Batch, block_size: int, noise: CounterNoise
    ) -> tuple[Float64[Tensor, "B n"], Float64[Tensor, "B n"]]:
        """Draw where in the interval each block is, with one over the density."""
        count = num_blocks(batch.tokens.shape[1], block_size)
        number = torch.arange(count, device=batch.index.device)
        index = (batch.index[:, None] * count + number).flatten()
        place, inverse_density = self.time_sampler.sample(index, noise=noise)
        return place.view(-1, count), inverse_density.view(-1, count)


@dataclass(frozen=True)
class Autoregressive(Objective):
    """The exact negative log-likelihood from left to right, by the chain rule, in one pass.

    Positions outside the loss mask are context for those after them and are not counted.
    """

    needs: ClassVar[Needs] = Needs((LeftToRight,))

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        del noise
        where = batch.loss_mask & (batch.tokens != denoiser.process.unknown_id)
        one = torch.ones(len(where), device=where.device)
        return weighted(denoiser, batch, batch.tokens, None, where, one)


def validation_objective(objective: Objective, denoiser: Denoiser) -> Objective:
    """Choose the objective that a run is validated by: the bound with the least variance.

    Validation values of runs of one process are comparable, whatever their training objectives. A
    chain of T steps is validated as that chain, unless it is masked diffusion, whose network does
    not depend on T.

    Args:
        objective: The objective of training.
        denoiser: The model.
    """
    process, parameterization = denoiser.process, denoiser.parameterization
    if isinstance(parameterization, Subs) and parameterization.carry_over:
        return WeightedMLM()
    if process.context == "prefix" or isinstance(process, Gaussian):
        return objective
    if isinstance(objective, DiscreteNELBO):
        return replace(objective, auxiliary=0.0)
    return ContinuousNELBO(Sobol())
