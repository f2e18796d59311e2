"""Objectives and layers that ``benchmarks.recipes`` races and that seqdiff itself does not have."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn
from typing_extensions import override

from seqdiff.backbones import Transformer
from seqdiff.backbones.transformer.layers import AdaptiveBlock, Rotary, rotate
from seqdiff.backbones.transformer.packing import Mixing
from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import masked_terms
from seqdiff.objectives import ContinuousNELBO, Objective, TimeSampler
from seqdiff.objectives.time_sampling import Sobol
from seqdiff.process import Absorbing
from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise, permutation_rank
from seqdiff.types import Batch

_MASKED = Needs((Absorbing,), any_order=True)
_BINS = 16


def _terms(
    denoiser: Denoiser, batch: Batch, where: Tensor, weight: Float64[Tensor, " B"]
) -> Float[Tensor, "B L"]:
    """Terms of rows in which some positions are masked."""
    process = denoiser.process
    assert isinstance(process, Absorbing)  # by ``needs``
    x_t = batch.tokens.masked_fill(where, process.unknown_id)
    alpha = 1 - where.sum(dim=-1).double() / batch.loss_mask.sum(dim=-1).clamp_min(1)
    return masked_terms(denoiser, batch, x_t, process.schedule.inverse(alpha), weight)


def _ranks(batch: Batch, noise: CounterNoise) -> Int[Tensor, "B L"]:
    draws = noise.uniform(batch.index, batch.tokens.shape[1], stream=MASK_STREAM)
    return permutation_rank(draws, batch.loss_mask)


@dataclass(frozen=True)
class ComplementaryMasks(Objective):
    """The bound at k masked tokens and at the n - k others, of the same row."""

    needs: ClassVar[Needs] = _MASKED

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        total = batch.loss_mask.sum(dim=-1)
        u, _ = Sobol().sample(batch.index, noise=noise)
        count = (u * total).long() + 1
        rank = _ranks(batch, noise)
        found = torch.zeros(())
        for where, size in (
            (batch.loss_mask & (rank < count[:, None]), count),
            (batch.loss_mask & (rank >= count[:, None]), total - count),
        ):
            weight = total.double() / size.clamp_min(1)
            found = found + _terms(denoiser, batch, where, weight) / 2
        return found


@dataclass(frozen=True)
class SeveralMasks(Objective):
    """The mean of the bound over several masks of the same row, at times spread evenly.

    Attributes:
        masks: Masks of each row.
    """

    needs: ClassVar[Needs] = _MASKED
    masks: int = 2

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        total = batch.loss_mask.sum(dim=-1)
        u, _ = Sobol().sample(batch.index, noise=noise)
        found = torch.zeros(())
        for number in range(self.masks):
            count = ((u + number / self.masks) % 1 * total).long() + 1
            part = replace(batch, index=batch.index * self.masks + number)
            where = batch.loss_mask & (_ranks(part, noise) < count[:, None])
            weight = total.double() / count
            found = found + _terms(denoiser, batch, where, weight) / self.masks
        return found


@dataclass(frozen=True)
class PairedTimes(TimeSampler):
    """Times t and 1 - t for each pair of consecutive examples."""

    @override
    def sample(
        self, index: Int[Tensor, " B"], *, noise: CounterNoise
    ) -> tuple[Float64[Tensor, " B"], Float64[Tensor, " B"]]:
        t = noise.uniform(index // 2, 1, stream=TIME_STREAM)[:, 0]
        return torch.where(index % 2 == 0, t, 1 - t), torch.ones_like(t)


@dataclass(frozen=True)
class Antithetic(ContinuousNELBO):
    """``ContinuousNELBO`` at paired times."""

    time_sampler: TimeSampler = field(default_factory=PairedTimes)


@dataclass(frozen=True)
class OnlineImportance(Objective):
    """The bound at times drawn in proportion to the root mean square of the loss seen there.

    The squares are averaged over training, in bins of the masked fraction. They are not saved, so
    that a run of this objective cannot be resumed.
    """

    needs: ClassVar[Needs] = _MASKED
    squares: list[float] = field(default_factory=lambda: [1.0] * _BINS)

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        density = torch.tensor(self.squares, dtype=torch.float64).sqrt()
        density = 0.9 * density / density.sum() + 0.1 / _BINS
        u, _ = Sobol().sample(batch.index, noise=noise)
        bins = torch.searchsorted(density.cumsum(0), u).clamp_max(_BINS - 1)
        place = (u - (density.cumsum(0) - density)[bins]) / density[bins]
        fraction = (bins + place.clamp(0, 1)) / _BINS
        total = batch.loss_mask.sum(dim=-1)
        count = (fraction * total).long().clamp_max(total - 1) + 1
        where = batch.loss_mask & (_ranks(batch, noise) < count[:, None])
        bound = _terms(denoiser, batch, where, total.double() / count)
        seen = (bound.detach().sum(dim=-1) / total).square().tolist()
        for number, square in zip(bins.tolist(), seen, strict=True):
            self.squares[number] += 0.02 * (square - self.squares[number])
        return bound / (density[bins] * _BINS)[:, None].to(bound.dtype)


class _NormedBlock(AdaptiveBlock):
    """Normalises queries and keys, see ``QKNorm``."""

    scale: nn.Parameter

    @override
    def attend(
        self, h: Float[Tensor, "b l D"], rotary: Rotary, layout: Mixing
    ) -> Float[Tensor, "b l D"]:
        heads = self.attn_qkv(h).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        q, k = (F.rms_norm(part, part.shape[-1:]) for part in (q, k))
        mixed = layout.mix(rotate(q * self.scale, rotary), rotate(k, rotary), v)
        return self.dropout(self.attn_out(mixed.transpose(1, 2).flatten(2)))


class QKNorm(Transformer):
    """A transformer whose queries and keys are normalised, with a learned scale for each layer.

    Source: Henry et al. 2020, arXiv:2010.04245.
    """

    def __init__(self, d_model: int, n_layer: int, n_heads: int, **sizes: Any) -> None:
        super().__init__(d_model, n_layer, n_heads, **sizes)
        for block in self.blocks:
            block.__class__ = _NormedBlock
            assert isinstance(block, _NormedBlock)
            block.scale = nn.Parameter(torch.ones(()))


class _ValueBlock(AdaptiveBlock):
    """Adds the values of the first layer, see ``ValueResidual``."""

    mix: nn.Parameter | None
    shared: dict[str, Tensor]

    @override
    def attend(
        self, h: Float[Tensor, "b l D"], rotary: Rotary, layout: Mixing
    ) -> Float[Tensor, "b l D"]:
        heads = self.attn_qkv(h).unflatten(-1, (3, self.n_heads, -1))
        q, k, v = (part.transpose(1, 2) for part in heads.unbind(2))
        if self.mix is None:
            self.shared["first"] = v
        else:
            v = self.mix * v + (1 - self.mix) * self.shared["first"]
        mixed = layout.mix(rotate(q, rotary), rotate(k, rotary), v)
        return self.dropout(self.attn_out(mixed.transpose(1, 2).flatten(2)))


class ValueResidual(Transformer):
    """A transformer whose layers mix their values with those of the first layer.

    Source: Zhou et al. 2024, arXiv:2410.17897.
    """

    def __init__(self, d_model: int, n_layer: int, n_heads: int, **sizes: Any) -> None:
        super().__init__(d_model, n_layer, n_heads, **sizes)
        shared: dict[str, Tensor] = {}
        for number, block in enumerate(self.blocks):
            block.__class__ = _ValueBlock
            assert isinstance(block, _ValueBlock)
            block.shared = shared
            block.mix = nn.Parameter(torch.full((), 0.5)) if number else None
