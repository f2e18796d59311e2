"""The kinds of random choice that samplers make, and where the noise for them comes from.

A sampler makes no other. Whoever implements ``Draws`` therefore controls a sampler completely: the
library draws from counter-based noise, its tests walk through every outcome.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from seqdiff.rng import CounterNoise, categorical, standard_normal

_LEVEL, _LETTER, _COIN, _KINDS = range(4)

# Keys of the noise: of a row's own choices, of the seeds of its copies, and of its normals.
_OWN, _COPIES, _NORMALS = range(3)


class Draws(ABC):
    """Independent random choices for every position of a batch of rows.

    A position's *level* is the masked share 1 - alpha at which the process run backwards reveals
    it: uniform on (0, 1), whatever the schedule. A position has one level, so ``levels`` and
    ``cells`` of it agree.
    """

    @abstractmethod
    def levels(self, where: Bool[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """Draw levels; 0 elsewhere."""

    @abstractmethod
    def cells(
        self, edges: Float64[Tensor, " n"], where: Bool[Tensor, "B L"]
    ) -> Int64[Tensor, "B L"]:
        """Draw levels up to the cell they fall in.

        Args:
            edges: Falling from 1 to 0.
            where: Positions that take part.

        Returns:
            The i >= 1 with ``edges[i] < level <= edges[i - 1]``; 0 elsewhere.
        """

    @abstractmethod
    def letters(
        self, log_probs: Float64[Tensor, "N K"], where: Bool[Tensor, "B L"], step: int
    ) -> Int64[Tensor, " N"]:
        """Draw a letter for each of the N positions that are True.

        Args:
            log_probs: Normalised laws in nats, in the order of ``where.nonzero()``.
            where: The positions.
            step: Tells apart the draws that one position gets.
        """

    @abstractmethod
    def coins(
        self, probability: Float64[Tensor, "B L"], where: Bool[Tensor, "B L"], step: int
    ) -> Bool[Tensor, "B L"]:
        """Toss a coin at each position that is True; False elsewhere.

        Args:
            probability: Of True.
            where: The positions.
            step: Tells apart the coins that one position gets.
        """

    def normals(
        self, where: Bool[Tensor, "B L"], dim: int, step: int
    ) -> Float64[Tensor, "N {dim}"]:
        """Draw standard normals for each of the N positions that are True.

        Only samplers of Gaussian diffusion do.

        Args:
            where: The positions.
            dim: Normals of a position.
            step: Tells apart the draws that one position gets.

        Raises:
            NotImplementedError: If this source of choices has none.
        """
        raise NotImplementedError(f"{type(self).__name__} draws no normals; use SeededDraws")

    @abstractmethod
    def window(self, start: int) -> Draws:
        """The draws of the positions from ``start`` on, counted from there."""

    @abstractmethod
    def take(self, rows: Int64[Tensor, " b"]) -> Draws:
        """The draws of some rows, in this order."""

    @abstractmethod
    def repeated(self, count: int) -> Draws:
        """Draws for ``count`` rows in each row's place, which all have the noise of that row."""

    @abstractmethod
    def copies(self, count: int) -> Draws:
        """Draws for ``count`` rows in each row's place, all independent, the row's own too."""


@dataclass(frozen=True)
class SeededDraws(Draws):
    """Choices as a pure function of (seed of the row, position, kind, step), in float64.

    So a row's sample depends on its seed and its network outputs alone, never on the rest of the
    batch.

    Attributes:
        seeds: One a row, in [0, 2^63).
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

    def levels(self, where: Bool[Tensor, "B L"]) -> Float64[Tensor, "B L"]:
        """See ``Draws``."""
        levels = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
        levels[where] = self._uniform(where, _LEVEL)
        return levels

    def cells(
        self, edges: Float64[Tensor, " n"], where: Bool[Tensor, "B L"]
    ) -> Int64[Tensor, "B L"]:
        """See ``Draws``."""
        rising = torch.searchsorted(edges.flip(0), self.levels(where))
        return torch.where(where, len(edges) - rising, 0)

    def letters(
        self, log_probs: Float64[Tensor, "N K"], where: Bool[Tensor, "B L"], step: int
    ) -> Int64[Tensor, " N"]:
        """See ``Draws``."""
        return categorical(log_probs, self._uniform(where, _LETTER, step))

    def coins(
        self, probability: Float64[Tensor, "B L"], where: Bool[Tensor, "B L"], step: int
    ) -> Bool[Tensor, "B L"]:
        """See ``Draws``."""
        heads = torch.zeros_like(where)
        heads[where] = self._uniform(where, _COIN, step) < probability[where]
        return heads

    def normals(
        self, where: Bool[Tensor, "B L"], dim: int, step: int
    ) -> Float64[Tensor, "N {dim}"]:
        """See ``Draws``."""
        row, position = where.nonzero(as_tuple=True)
        place = (position + self.offset)[:, None] * dim + torch.arange(dim, device=where.device)
        seeds = self.seeds[row].repeat_interleave(dim)
        uniform = CounterNoise(_NORMALS).uniform_at(seeds, place.flatten(), stream=step)
        return standard_normal(uniform).view(-1, dim)

    def window(self, start: int) -> SeededDraws:
        """See ``Draws``."""
        return replace(self, offset=self.offset + start)

    def take(self, rows: Int64[Tensor, " b"]) -> SeededDraws:
        """See ``Draws``."""
        return replace(self, seeds=self.seeds[rows])

    def repeated(self, count: int) -> SeededDraws:
        """See ``Draws``."""
        return replace(self, seeds=self.seeds.repeat_interleave(count))

    def copies(self, count: int) -> SeededDraws:
        """See ``Draws``; a copy's seed is a function of the row's and of the copy's number."""
        owner = self.repeated(count).seeds
        number = torch.arange(count, device=owner.device).repeat(len(self.seeds))
        seeds = CounterNoise(_COPIES).uniform_at(owner, number, stream=0)
        return replace(self, seeds=(seeds * 2.0**53).long())


def row_seeds(count: int, generator: torch.Generator) -> Int64[Tensor, " {count}"]:
    """Draw a seed for each row: the first n of more rows are those of n rows.

    Args:
        count: Number of rows.
        generator: On any device; the seeds lie there.
    """
    seeds = torch.empty(count, dtype=torch.int64, device=generator.device)
    for row in seeds:
        row.random_(0, 2**63 - 1, generator=generator)
    return seeds
