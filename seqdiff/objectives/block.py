"""The bound of block diffusion: every block at a noise level of its own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from seqdiff.blocks import num_blocks, spread
from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import masked_terms
from seqdiff.objectives.base import Objective, position_noise
from seqdiff.objectives.time_sampling import TimeSampler, Uniform
from seqdiff.process import Blockwise
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class BlockNELBO(Objective):
    """The continuous-time bound with a random time for every block.

    The masked fraction 1 - alpha of a block is uniform on [beta, omega], and its masked tokens
    weigh one over that fraction, whatever the noise schedule. On all of [0, 1] that is the bound. A
    clipped interval has less variance and is no bound; runs are validated and evaluated by the
    bound all the same. Source: Arriola et al. 2025, arXiv:2503.09573, equations 8 and 9, section 5.

    Attributes:
        beta: Least masked fraction, in [0, omega).
        omega: Largest masked fraction, at most 1.
        time_sampler: Draws a block's place in the interval; blocks are numbered over the stream, so
            a group of it is a number of blocks.
        search_batches: After each validation, go on in the interval whose loss varies least over
            this many batches of the validation split, at one forward pass a batch and each of 36
            intervals, see ``ClippedScheduleSearch``; null stays with beta and omega.
    """

    needs: ClassVar[Needs] = Needs((Blockwise,))
    beta: float = 0.0
    omega: float = 1.0
    time_sampler: TimeSampler = field(default_factory=Uniform)
    search_batches: int | None = None

    def __post_init__(self) -> None:
        """Check the interval and the number of batches.

        Raises:
            ValueError: If the interval is none within [0, 1], or there are too few batches for a
                variance.
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

    def terms(self, denoiser: Denoiser, batch: Batch, noise: CounterNoise) -> Float[Tensor, "B L"]:
        """See ``Objective``; a row's sum is unbiased for its bound on the whole interval alone."""
        process = denoiser.process
        assert isinstance(process, Blockwise)  # by ``needs``
        place, inverse_density = self._places(batch, process.block_size, noise)
        fraction = self.beta + (self.omega - self.beta) * place
        t = process.process.schedule.inverse(1 - fraction)
        draws = position_noise(batch, noise)
        x_t = process.corrupt(batch.tokens, t, keep=~batch.loss_mask, noise=draws)
        weight = spread(inverse_density / fraction, process.block_size, batch.tokens.shape[1])
        return masked_terms(denoiser, batch, x_t, None, weight)

    def _places(
        self, batch: Batch, block_size: int, noise: CounterNoise
    ) -> tuple[Float64[Tensor, "B n"], Float64[Tensor, "B n"]]:
        """Each block's place in the interval, and one over its density."""
        count = num_blocks(batch.tokens.shape[1], block_size)
        number = torch.arange(count, device=batch.index.device)
        index = (batch.index[:, None] * count + number).flatten()
        place, inverse_density = self.time_sampler.sample(index, noise=noise)
        return place.view(-1, count), inverse_density.view(-1, count)
