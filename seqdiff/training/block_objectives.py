"""The bound of block diffusion: every block at a noise of its own, given the clean ones before."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from seqdiff.backbones import Backbone
from seqdiff.block_denoiser import BlockDenoiser
from seqdiff.blocks import cut, num_blocks, spread
from seqdiff.parameterization import Denoiser
from seqdiff.process import BlockDiffusion, MaskedDiffusion, check_block_size
from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise
from seqdiff.schedules import NoiseSchedule
from seqdiff.time_sampling import TimeSampler, Uniform
from seqdiff.training.objectives import Objective, bound
from seqdiff.types import Batch


@dataclass(frozen=True)
class _BlockObjective(Objective):
    """What objectives of block diffusion have in common.

    Attributes:
        block_size: L', tokens of a block; the last of a row may be shorter.
    """

    block_size: int

    def __post_init__(self) -> None:
        """Check the size.

        Raises:
            ValueError: If a block holds no token.
        """
        check_block_size(type(self).__name__, self.block_size)

    def process(self, vocab_size: int, schedule: NoiseSchedule) -> BlockDiffusion:
        """See ``Objective``."""
        return BlockDiffusion(vocab_size, schedule, self.block_size)

    def denoiser(self, backbone: Backbone, process: MaskedDiffusion) -> Denoiser:
        """See ``Objective``.

        Raises:
            ValueError: If the backbone cannot score blocks.
        """
        return BlockDenoiser(backbone, process.vocab_size, self.block_size)

    def validation(self) -> Objective:
        """See ``Objective``: the bound itself, whatever interval is trained on."""
        return BlockWeightedMLM(self.block_size)

    def _check(self, denoiser: Denoiser, process: MaskedDiffusion) -> BlockDiffusion:
        """Refuse a model or a process that is not of these blocks.

        Raises:
            ValueError: If one is not.
        """
        for name, got in (("denoiser", denoiser), ("process", process)):
            if getattr(got, "block_size", None) != self.block_size:
                raise ValueError(
                    f"{type(self).__name__}.{name} must be of blocks of {self.block_size}, got "
                    f"{type(got).__name__} of {getattr(got, 'block_size', 'none')}; make it by "
                    f"the objective's own {name}(...)"
                )
        assert isinstance(process, BlockDiffusion)
        return process


@dataclass(frozen=True)
class BlockNELBO(_BlockObjective):
    """The continuous-time bound with a random time for every block.

    The masked share 1 - alpha of a block is uniform on [beta, omega], and its masked tokens weigh
    one over that share, whatever the noise schedule. On all of [0, 1] that is the bound. A clipped
    interval has less variance and is no bound; runs are validated and evaluated by the bound all
    the same. Source: Arriola et al. 2025, arXiv:2503.09573, equations 8 and 9, section 5.

    Attributes:
        beta: Least masked share, in [0, omega).
        omega: Largest masked share, at most 1.
        time_sampler: Draws a block's place in the interval; blocks are numbered over the stream, so
            a group of it is a number of blocks.
        search_batches: After each validation, go on in the interval whose loss varies least over
            this many batches of the validation split, at one forward pass a batch and each of 36
            intervals, see ``ClippedScheduleSearch``; null stays with beta and omega.
    """

    beta: float = 0.0
    omega: float = 1.0
    time_sampler: TimeSampler = field(default_factory=Uniform)
    search_batches: int | None = None

    def __post_init__(self) -> None:
        """Check the size, the interval and the number of batches.

        Raises:
            ValueError: If a block holds no token, the interval is none within [0, 1], or there are
                too few batches for a variance.
        """
        super().__post_init__()
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

    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """See ``Objective``; a row's sum is unbiased for its bound on the whole interval alone.

        Raises:
            ValueError: If the model or the process is not of these blocks.
        """
        process = self._check(denoiser, process)
        length = batch.tokens.shape[1]
        place, inverse_density = self._places(batch, noise)
        share = self.beta + (self.omega - self.beta) * place
        t = process.schedule.inverse(1 - share)
        draws = noise.uniform(batch.index, length, stream=MASK_STREAM)
        x_t = process.corrupt_blocks(batch.tokens, t, keep=~batch.loss_mask, noise=draws)
        weight = spread(inverse_density / share, self.block_size, length)
        return bound(denoiser, process, batch, x_t, t[:, 0], weight)

    def _places(
        self, batch: Batch, noise: CounterNoise
    ) -> tuple[Float64[Tensor, "B n"], Float64[Tensor, "B n"]]:
        """Each block's place in the interval, and one over its density."""
        count = num_blocks(batch.tokens.shape[1], self.block_size)
        number = torch.arange(count, device=batch.index.device)
        index = (batch.index[:, None] * count + number).flatten()
        place, inverse_density = self.time_sampler.sample(index, noise=noise)
        return place.view(-1, count), inverse_density.view(-1, count)


@dataclass(frozen=True)
class BlockWeightedMLM(_BlockObjective):
    """Masks exactly k of a block's n positions that count, k uniform on 1..n, with weight n / k.

    The same bound as ``BlockNELBO`` on the whole interval with less variance; see ``WeightedMLM``.
    With one token a block it is the exact negative log-likelihood from left to right.
    """

    def terms(
        self, denoiser: Denoiser, process: MaskedDiffusion, batch: Batch, noise: CounterNoise
    ) -> Float[Tensor, "B L"]:
        """See ``Objective``.

        Raises:
            ValueError: If the model or the process is not of these blocks.
        """
        process = self._check(denoiser, process)
        length = batch.tokens.shape[1]
        count = num_blocks(length, self.block_size)
        total = cut(batch.loss_mask, self.block_size).sum(dim=-1).view(-1, count)
        u = noise.uniform(batch.index, count, stream=TIME_STREAM)
        hidden = ((u * total).long() + 1).minimum(total)
        draws = noise.uniform(batch.index, length, stream=MASK_STREAM)
        x_t = process.corrupt_blocks_exactly(
            batch.tokens, hidden, keep=~batch.loss_mask, noise=draws
        )
        weight = spread(total.double() / hidden.clamp_min(1), self.block_size, length)
        t = torch.ones(len(x_t), dtype=torch.float64, device=x_t.device)
        return bound(denoiser, process, batch, x_t, t, weight)
