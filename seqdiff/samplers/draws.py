"""The random choices that samplers make, and the noise for them.

A sampler makes no other choices. An implementation of ``Draws`` therefore controls a sampler
completely: the library draws from counter-based noise, and its tests enumerate every outcome.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.rng import CounterNoise, categorical, standard_normal

_TIME, _TOKEN, _COIN, _KINDS = range(4)

# Keys of the noise: of a row's own choices, of the seeds of its copies, and of its normals.
_OWN, _COPIES, _NORMALS = range(3)


class Draws(ABC):
    """Independent random choices for every position of a batch of rows.

    The *unmask time* of a position is the masked fraction 1 - alpha at which the reverse process
    unmasks it. It is uniform on (0, 1) whatever the schedule. A position has one unmask time, so
    ``unmask_times`` and ``unmask_steps`` agree.
    """

    @abstractmethod
    def unmask_times(self, where: Bool[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """Draw the unmask times of some positions; 0 elsewhere."""

    @abstractmethod
    def unmask_steps(
        self, edges: Float64[Tensor, " n"], where: Bool[Tensor, "B L"]
    ) -> Int64[Tensor, "B L"]:
        """Draw the steps of a grid that the unmask times fall into.

        Args:
            edges: Masked fractions between steps, falling from 1 to 0.
            where: Positions that take part.

        Returns:
            The i >= 1 with ``edges[i] < time <= edges[i - 1]``; 0 elsewhere.
        """

    @abstractmethod
    def tokens(
        self, log_probs: Float64[Tensor, "N K"], where: Bool[Tensor, "B L"], step: int
    ) -> Int64[Tensor, " N"]:
        """Draw a token for each of the N positions that are True.

        Args:
            log_probs: Normalised, in nats, in the order of ``where.nonzero()``.
            where: The positions.
            step: Distinguishes the draws of one position.
        """

    @abstractmethod
    def coins(
        self, probability: Float64[Tensor, "B L"], where: Bool[Tensor, "B L"], step: int
    ) -> Bool[Tensor, "B L"]:
        """Toss a coin at each position that is True; False elsewhere.

        Args:
            probability: Probability of True.
            where: The positions.
            step: Distinguishes the coins of one position.
        """

    def normals(
        self, where: Bool[Tensor, "B L"], dim: int, step: int
    ) -> Float64[Tensor, "N {dim}"]:
        """Draw standard normals for each of the N positions that are True, for Gaussian diffusion.

        Args:
            where: The positions.
            dim: Normals per position.
            step: Distinguishes the draws of one position.

        Raises:
            NotImplementedError: If this source of choices has none.
        """
        raise NotImplementedError(f"{type(self).__name__} draws no normals; use SeededDraws")

    @abstractmethod
    def window(self, start: int) -> Draws:
        """Return the draws of the positions from ``start`` on, counted from there."""

    @abstractmethod
    def take(self, rows: Int64[Tensor, " b"]) -> Draws:
        """Return the draws of some rows, in this order."""

    @abstractmethod
    def repeated(self, count: int) -> Draws:
        """Return draws in which each row is repeated ``count`` times, with the same noise."""

    @abstractmethod
    def copies(self, count: int) -> Draws:
        """Return draws in which each row is repeated ``count`` times, with independent noise."""


@dataclass(frozen=True)
class SeededDraws(Draws):
    """Choices as a pure function of (seed of the row, position, kind, step), in float64.

    So the sample of a row depends on its seed and its network outputs alone, never on the rest of
    the batch.

    Attributes:
        seeds: One per row, in [0, 2^63).
        offset: Added to positions.
    """

    seeds: Int64[Tensor, " B"]
    offset: int = 0

    def _uniform(
        self, where: Bool[Tensor, "B L"], kind: int, step: int = 0
    ) -> Float64[Tensor, " N"]:
        row, position = where.nonzero(as_tuple=True)
        stream = _KINDS * step + kind
        return CounterNoise(_OWN).uniform_at(self.seeds[row], position + self.offset, stream=stream)

    @override
    def unmask_times(self, where: Bool[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        times = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
        times[where] = self._uniform(where, _TIME)
        return times

    @override
    def unmask_steps(
        self, edges: Float64[Tensor, " n"], where: Bool[Tensor, "B L"]
    ) -> Int64[Tensor, "B L"]:
        rising = torch.searchsorted(edges.flip(0), self.unmask_times(where))
        return torch.where(where, len(edges) - rising, 0)

    @override
    def tokens(
        self, log_probs: Float64[Tensor, "N K"], where: Bool[Tensor, "B L"], step: int
    ) -> Int64[Tensor, " N"]:
        return categorical(log_probs, self._uniform(where, _TOKEN, step))

    @override
    def coins(
        self, probability: Float64[Tensor, "B L"], where: Bool[Tensor, "B L"], step: int
    ) -> Bool[Tensor, "B L"]:
        heads = torch.zeros_like(where)
        heads[where] = self._uniform(where, _COIN, step) < probability[where]
        return heads

    @override
    def normals(
        self, where: Bool[Tensor, "B L"], dim: int, step: int
    ) -> Float64[Tensor, "N {dim}"]:
        row, position = where.nonzero(as_tuple=True)
        place = (position + self.offset)[:, None] * dim + torch.arange(dim, device=where.device)
        seeds = self.seeds[row].repeat_interleave(dim)
        uniform = CounterNoise(_NORMALS).uniform_at(seeds, place.flatten(), stream=step)
        return standard_normal(uniform).view(-1, dim)

    @override
    def window(self, start: int) -> SeededDraws:
        return replace(self, offset=self.offset + start)

    @override
    def take(self, rows: Int64[Tensor, " b"]) -> SeededDraws:
        return replace(self, seeds=self.seeds[rows])

    @override
    def repeated(self, count: int) -> SeededDraws:
        return replace(self, seeds=self.seeds.repeat_interleave(count))

    @override
    def copies(self, count: int) -> SeededDraws:
        owner = self.repeated(count).seeds
        number = torch.arange(count, device=owner.device).repeat(len(self.seeds))
        seeds = CounterNoise(_COPIES).uniform_at(owner, number, stream=0)
        return replace(self, seeds=(seeds * 2.0**53).long())


def row_seeds(count: int, generator: torch.Generator) -> Int64[Tensor, " {count}"]:
    """Draw a seed for each row; those of n rows are the first n of those of more rows.

    Args:
        count: Number of rows.
        generator: On any device, where the seeds will be too.
    """
    seeds = torch.empty(count, dtype=torch.int64, device=generator.device)
    for row in seeds:
        row.random_(0, 2**63 - 1, generator=generator)
    return seeds
