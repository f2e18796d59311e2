"""Samplers of the times at which a bound is estimated, from each example's place in the stream.

Low-discrepancy samplers spread one *group* of consecutive stream positions evenly over time. If the
group is the global batch (examples per step over all devices and accumulated batches), each
optimizer step is stratified, whichever device holds which example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float64, Int, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.rng import ORDER_STREAM, TIME_STREAM, CounterNoise


class TimeSampler(ABC):
    """Draws a time for each example."""

    @abstractmethod
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        """Draw times.

        Args:
            index: Place of each example in the stream, see ``Batch.index``.
            noise: The run's noise.

        Returns:
            Times in (0, 1), and 1 / density, by which a term is multiplied to stay unbiased.
        """


@dataclass(frozen=True)
class Uniform(TimeSampler):
    """Independent uniform times."""

    @override
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        t = noise.uniform(index, 1, stream=TIME_STREAM)[:, 0]
        return t, torch.ones_like(t)


@dataclass(frozen=True)
class _Grouped(TimeSampler):
    """Divides [0, 1] into as many strata as a group has examples."""

    group: int

    def __post_init__(self) -> None:
        """Check the group.

        Raises:
            ValueError: If it has no example.
        """
        if self.group < 1:
            raise ValueError(
                f"{type(self).__name__}.group must be at least 1, got {self.group}; use the "
                "examples per optimizer step"
            )

    def _strata(
        self, index: Int[Tensor, " B"], noise: CounterNoise
    ) -> tuple[Int64[Tensor, " B"], Int64[Tensor, " B"]]:
        """Return each example's group, and its stratum in a random order of that group."""
        block = index // self.group
        blocks, which = block.unique(return_inverse=True)
        orders = noise.uniform(blocks, self.group, stream=ORDER_STREAM).argsort(dim=-1)
        return block, orders[which, index % self.group]


@dataclass(frozen=True)
class Stratified(_Grouped):
    """One jittered time in each of ``group`` equal strata.

    MDLM's "antithetic" sampling (Sahoo et al. 2024, arXiv:2406.07524, appendix C.3), with the
    strata shuffled so that no row of a batch is tied to a noise level.

    Attributes:
        group: Number of consecutive examples that share the strata.
    """

    @override
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        _, stratum = self._strata(index, noise)
        jitter = noise.uniform(index, 1, stream=TIME_STREAM)[:, 0]
        t = (stratum + jitter) / self.group
        return t, torch.ones_like(t)


@dataclass(frozen=True)
class VDM(_Grouped):
    """A grid of ``group`` equidistant times, shifted by one draw for the whole group.

    Source: Kingma et al. 2021, arXiv:2107.00630, appendix I.1; shuffled within the group.

    Attributes:
        group: Number of consecutive examples that share the shift.
    """

    @override
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        block, stratum = self._strata(index, noise)
        shift = noise.uniform(block, 1, stream=TIME_STREAM)[:, 0]
        t = (stratum + shift) / self.group
        return t, torch.ones_like(t)


@dataclass(frozen=True)
class Sobol(TimeSampler):
    """The one-dimensional Sobol sequence over the stream, rotated by one draw per run.

    Any 2^m consecutive positions from a multiple of 2^m on hit each of 2^m equal strata once, so
    that no group has to be chosen. Source: Sobol 1967; rotation by Cranley and Patterson 1976.
    """

    @override
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        shift = noise.uniform(torch.zeros_like(index[:1]), 1, stream=TIME_STREAM)[:, 0]
        t = (_radical_inverse(index) + shift) % 1.0
        t = torch.where(t > 0, t, shift)
        return t, torch.ones_like(t)


def _radical_inverse(index: Int[Tensor, " B"]) -> Float64[Tensor, " B"]:
    """Mirror the binary digits of an index at the point: the first dimension of Sobol."""
    shifts = torch.arange(62, device=index.device)
    digits = (index[:, None] >> shifts) & 1
    return (digits * 2.0 ** -(shifts + 1).double()).sum(dim=-1)


@dataclass(frozen=True)
class Importance(TimeSampler):
    """Times with a piecewise constant density.

    The estimated bound has the least variance if a bin's weight is proportional to the root mean
    square of the bound's density in it.

    Attributes:
        weights: One positive weight for each of ``len(weights)`` equal bins of [0, 1].
        base: Sampler whose times the inverse distribution function maps, which keeps them evenly
            spread.
    """

    weights: Sequence[float]
    base: TimeSampler = field(default_factory=Uniform)

    def __post_init__(self) -> None:
        """Check the weights."""
        if not self.weights or min(self.weights) <= 0:
            raise ValueError(
                f"Importance.weights must be positive and not empty, got {list(self.weights)}; "
                "a bin of weight 0 would make the bound biased"
            )

    @override
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        u, base_inverse = self.base.sample(index, noise=noise)
        mass = torch.tensor(list(self.weights), dtype=torch.float64, device=u.device)
        mass = mass / mass.sum()
        edges = mass.cumsum(dim=0)
        chosen = torch.searchsorted(edges, u.contiguous()).clamp_max(len(mass) - 1)
        place = (u - (edges - mass)[chosen]) / mass[chosen]
        t = (chosen + place.clamp(0, 1)) / len(mass)
        return t, base_inverse / (mass[chosen] * len(mass))
