"""Estimators that draw a time, for every process."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser, GaussianDenoiser, Needs
from seqdiff.likelihood.estimator import Estimator, PassNoise, constant, require_pairs
from seqdiff.losses import (
    continuous_terms,
    gaussian_prior,
    gaussian_reconstruction,
    gaussian_terms,
    has_reconstruction,
    prior_terms,
    reconstruction_terms,
    step_terms,
)
from seqdiff.process import AbsorbingByContext, DiscreteProcess, Gaussian, SymbolProcess
from seqdiff.types import Batch

# Below this fraction 1 - alpha is inaccurate; the integral there is less than 1e-8 nats per token.
_LEAST = 1e-10
_BEND = 0.3


@dataclass(frozen=True)
class TimeEstimator(Estimator):
    """Draws two times in each of ``evaluations / 2`` strata, and decodes z_0 twice.

    The two evaluations at t = 0 estimate the reconstruction term. They count as evaluations, but a
    model without this term is not called for them.

    Attributes:
        evaluations: Draws per pass; even.
    """

    evaluations: int = 64

    def __post_init__(self) -> None:
        """Check the number of draws.

        Raises:
            ValueError: If it is odd or less than 2.
        """
        require_pairs(self, self.evaluations)

    @property
    @override
    def degrees(self) -> int:
        return self.evaluations // 2 + 1

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(self.evaluations + 2, num_tokens)

    @override
    def terms(
        self, denoiser: Denoiser, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise
    ) -> Float[Tensor, "B L"]:
        found = torch.zeros(batch.tokens.shape, dtype=torch.float64, device=batch.tokens.device)
        at_zero = evaluation >= self.evaluations
        for chosen, term in ((~at_zero, self._inside), (at_zero, self.ends)):
            rows = chosen.nonzero().squeeze(-1)
            if len(rows):
                terms = term(denoiser, batch.take(rows), evaluation[rows], noise)
                found[rows] = terms.double()
        return found

    @override
    def coefficients(self, calls: int) -> Float64[np.ndarray, " {calls}"]:
        return np.append(np.full(calls - 2, 1 / (calls - 2)), [0.5, 0.5])

    def _inside(
        self, denoiser: Denoiser, batch: Batch, evaluation: Tensor, noise: PassNoise
    ) -> Tensor:
        u = (evaluation // 2 + noise.scalar(batch, evaluation)) / (self.evaluations // 2)
        return self.integrand(denoiser, batch, u, evaluation, noise)

    @abstractmethod
    def integrand(
        self,
        denoiser: Denoiser,
        batch: Batch,
        u: Float64[Tensor, " B"],
        draw: Int64[Tensor, " B"],
        noise: PassNoise,
    ) -> Float[Tensor, "B L"]:
        """Terms whose mean over u in (0, 1) is the integral between the ends of the bound.

        Args:
            denoiser: The model.
            batch: The rows.
            u: One number per row.
            draw: For each row, the number of the draw within the pass.
            noise: The pass's noise.
        """

    @abstractmethod
    def ends(
        self, denoiser: Denoiser, batch: Batch, draw: Int64[Tensor, " B"], noise: PassNoise
    ) -> Float[Tensor, "B L"]:
        """Terms of the bound at t = 1 and t = 0; for the arguments see ``integrand``."""

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        inside, ends = values[:-2], values[-2:]
        differences = (inside[0::2] - inside[1::2]) / len(inside)
        components = np.append(differences, (ends[0] - ends[1]) / 2) ** 2
        return float(inside.mean() + ends.mean()), components


def noise_fraction(
    u: Float64[Tensor, "*shape"],
) -> tuple[Float64[Tensor, "*shape"], Float64[Tensor, "*shape"]]:
    """Return m = (1 + a) u^4 / (u^3 + a) with a = 0.3, and dm/du.

    Args:
        u: Numbers in (0, 1).
    """
    cube = u**3
    place = (1 + _BEND) * u * cube / (cube + _BEND)
    slope = (1 + _BEND) * cube * (cube + 4 * _BEND) / (cube + _BEND) ** 2
    return place.clamp_min(_LEAST), slope


@dataclass(frozen=True)
class DiscreteTimeEstimator(TimeEstimator):
    """A ``TimeEstimator`` of a process on symbols.

    At a small noise fraction m, one of n tokens is noisy with a probability of about n m, and its
    term is of the order 1/m. So the standard deviation of the integrand within a stratum is of the
    order m^(-1/2), up to a logarithm. ``noise_fraction`` draws m with a density of the order
    m^(-3/4) near 0, which makes the moments up to the fourth finite; otherwise intervals by
    Student's t would be too narrow. Elsewhere the density is nearly flat, because varying weights
    would add to the variance.
    """

    @override
    def integrand(
        self,
        denoiser: Denoiser,
        batch: Batch,
        u: Float64[Tensor, " B"],
        draw: Int64[Tensor, " B"],
        noise: PassNoise,
    ) -> Float[Tensor, "B L"]:
        place, slope = noise_fraction(u)
        return self.terms_at(denoiser, batch, place, slope, noise.positions(batch, draw))

    @override
    def ends(
        self, denoiser: Denoiser, batch: Batch, draw: Int64[Tensor, " B"], noise: PassNoise
    ) -> Float[Tensor, "B L"]:
        process = denoiser.process
        assert isinstance(process, SymbolProcess)  # by ``needs``
        terms = prior_terms(denoiser, batch)
        if not has_reconstruction(denoiser):
            return terms
        zero = torch.zeros(len(terms), dtype=torch.float64, device=terms.device)
        draws = noise.positions(batch, draw)
        z = process.corrupt(batch.tokens, zero, keep=~batch.loss_mask, noise=draws)
        return terms + reconstruction_terms(denoiser, batch, z, zero + 1)

    @abstractmethod
    def terms_at(
        self,
        denoiser: Denoiser,
        batch: Batch,
        place: Float64[Tensor, " B"],
        slope: Float64[Tensor, " B"],
        draws: Float64[Tensor, "B L"],
    ) -> Tensor:
        """Terms of the bound between its ends, at one time per row.

        Args:
            denoiser: The model.
            batch: The rows.
            place: Fraction of the noise that has been added, in (0, 1).
            slope: One over the density of ``place``.
            draws: Uniforms for the noise.
        """


@dataclass(frozen=True)
class TimeIntegral(DiscreteTimeEstimator):
    """The continuous-time bound of any discrete process: its integral and both end terms.

    It is the only estimator of the continuous-time bound for uniform and hybrid noise and for
    scores. For masked diffusion ``StratifiedK`` has less variance.
    """

    name: ClassVar[str] = "time-integral"
    needs: ClassVar[Needs] = Needs(
        (DiscreteProcess, AbsorbingByContext), ("loo", "full", "score", "rates")
    )

    @override
    def terms_at(
        self,
        denoiser: Denoiser,
        batch: Batch,
        place: Float64[Tensor, " B"],
        slope: Float64[Tensor, " B"],
        draws: Float64[Tensor, "B L"],
    ) -> Tensor:
        process = denoiser.process
        assert isinstance(process, SymbolProcess)  # by ``needs``
        t, speed = process.time_at(place)
        z = process.corrupt(batch.tokens, t, keep=~batch.loss_mask, noise=draws)
        return continuous_terms(denoiser, batch, z, t, slope * speed)


@dataclass(frozen=True)
class DiscreteSteps(DiscreteTimeEstimator):
    """The bound of a chain of ``num_steps`` equal steps, of any discrete process.

    Attributes:
        num_steps: T, the number of steps.
    """

    name: ClassVar[str] = "discrete-steps"
    needs: ClassVar[Needs] = Needs((DiscreteProcess,), ("loo", "full"))
    num_steps: int = 1000

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: If there is no step; see ``TimeEstimator``.
        """
        super().__post_init__()
        if self.num_steps < 1:
            raise ValueError(
                f"DiscreteSteps.num_steps must be at least 1, got {self.num_steps}; time-integral "
                "is the limit of many"
            )

    @property
    @override
    def quantity(self) -> str:
        return f"upper bound, {self.num_steps} steps"

    @override
    def terms_at(
        self,
        denoiser: Denoiser,
        batch: Batch,
        place: Float64[Tensor, " B"],
        slope: Float64[Tensor, " B"],
        draws: Float64[Tensor, "B L"],
    ) -> Tensor:
        process = denoiser.process
        assert isinstance(process, DiscreteProcess)  # by ``needs``
        step = (place * self.num_steps).long().clamp_max(self.num_steps - 1)
        s, t = step / self.num_steps, (step + 1) / self.num_steps
        s, t = s.double(), t.double()
        z = process.corrupt(batch.tokens, t, keep=~batch.loss_mask, noise=draws)
        return step_terms(denoiser, batch, z, s, t, self.num_steps * slope)


@dataclass(frozen=True)
class GaussianIntegral(TimeEstimator):
    """The bound of Gaussian diffusion on embeddings: its integral, reconstruction and prior.

    A self-conditioned network sees its first prediction in every evaluation, which counts as two.
    """

    name: ClassVar[str] = "gaussian-integral"
    needs: ClassVar[Needs] = Needs((Gaussian,), ("full",))

    @override
    def integrand(
        self,
        denoiser: Denoiser,
        batch: Batch,
        u: Float64[Tensor, " B"],
        draw: Int64[Tensor, " B"],
        noise: PassNoise,
    ) -> Float[Tensor, "B L"]:
        assert isinstance(denoiser, GaussianDenoiser)  # by ``needs``
        level = denoiser.schedule(u)
        normals = noise.normals(batch, draw, denoiser.process.dim)
        inputs = denoiser.corrupt(batch, level.gamma, normals)
        return gaussian_terms(denoiser, batch, inputs, level, torch.ones_like(u))

    @override
    def ends(
        self, denoiser: Denoiser, batch: Batch, draw: Int64[Tensor, " B"], noise: PassNoise
    ) -> Float[Tensor, "B L"]:
        assert isinstance(denoiser, GaussianDenoiser)  # by ``needs``
        one = torch.ones(len(draw), dtype=torch.float64, device=draw.device)
        normals = noise.normals(batch, draw, denoiser.process.dim)
        inputs = denoiser.corrupt(batch, denoiser.schedule(one - 1).gamma, normals)
        decoded = gaussian_reconstruction(denoiser, batch, inputs, one)
        return gaussian_prior(denoiser, batch) + decoded
