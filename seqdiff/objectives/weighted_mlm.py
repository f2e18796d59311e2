"""The bound of masked diffusion with an exact number of masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from seqdiff.blocks import cut, num_blocks, spread
from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import masked_terms
from seqdiff.objectives.base import Objective, position_noise
from seqdiff.process import Absorbing, Blockwise
from seqdiff.rng import TIME_STREAM, CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class WeightedMLM(Objective):
    """Masks exactly k of the n positions that count, k uniform on 1..n, with weight n / k.

    The same bound as ``ContinuousNELBO`` with less variance, since the number of masked tokens is
    not random given k. In block diffusion every block has a k of its own; with one token a block it
    is the exact negative log-likelihood from left to right. Source: Ou et al. 2024,
    arXiv:2406.03736, theorem 2.
    """

    needs: ClassVar[Needs] = Needs((Absorbing, Blockwise), any_order=True)

    @override
    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        process = denoiser.process
        draws = position_noise(batch, noise)
        if isinstance(process, Blockwise):
            size, length = process.block_size, batch.tokens.shape[1]
            blocks = num_blocks(length, size)
            total = cut(batch.loss_mask, size).sum(dim=-1).view(-1, blocks)
            u = noise.uniform(batch.index, blocks, stream=TIME_STREAM)
            count = ((u * total).long() + 1).minimum(total)
            x_t = process.corrupt_exactly(batch.tokens, count, keep=~batch.loss_mask, noise=draws)
            weight = spread(total.double() / count.clamp_min(1), size, length)
            return masked_terms(denoiser, batch, x_t, None, weight)
        assert isinstance(process, Absorbing)  # by ``needs``
        total = batch.loss_mask.sum(dim=-1)
        u = noise.uniform(batch.index, 1, stream=TIME_STREAM)[:, 0]
        count = (u * total).long().clamp_max(total - 1) + 1
        x_t = process.corrupt_exactly(batch.tokens, count, keep=~batch.loss_mask, noise=draws)
        fraction = count.double() / total.clamp_min(1)
        t = process.schedule.inverse(1 - fraction)
        return masked_terms(denoiser, batch, x_t, t, 1 / fraction)
