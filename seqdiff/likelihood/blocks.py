"""The bound of block diffusion: that of each block given the clean ones before it, added up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.blocks import cut, join, num_blocks, spread
from seqdiff.denoiser import Needs
from seqdiff.likelihood.estimator import Convention, PassNoise, Query, QueryEstimator, constant
from seqdiff.likelihood.masks import BernoulliTime, ExactK, StratifiedK
from seqdiff.process import Blockwise, Process, check_block_size
from seqdiff.types import Batch


@dataclass(frozen=True)
class BlockBound(QueryEstimator):
    """An estimator by masks applied to every block of a row, all blocks in one evaluation.

    The value of an evaluation is the sum over blocks of what the estimator says of each, with noise
    of its own: the bound of Arriola et al. 2025, arXiv:2503.09573, equation 8, whatever interval of
    masked fractions the model was trained in. With one token a block exactly that token is masked:
    the chain rule from left to right, in one evaluation.

    Attributes:
        block_size: L', the model's.
        by_masks: How to estimate the bound of a block.
        convention: That of ``by_masks``.
    """

    name: ClassVar[str] = "block-bound"
    needs: ClassVar[Needs] = Needs((Blockwise,))
    block_size: int
    by_masks: BernoulliTime | ExactK | StratifiedK = field(default_factory=StratifiedK)
    convention: Convention = field(init=False)

    def __post_init__(self) -> None:
        """Check the size.

        Raises:
            ValueError: If a block holds no token.
        """
        check_block_size("BlockBound", self.block_size)
        object.__setattr__(self, "convention", self.by_masks.convention)

    @property
    @override
    def exact(self) -> bool:
        return self.block_size == 1 and not isinstance(self.by_masks, BernoulliTime)

    @property
    @override
    def quantity(self) -> str:
        if self.exact:
            return "exact, left to right"
        return f"{self.by_masks.quantity}, blocks of {self.block_size}"

    @property
    @override
    def degrees(self) -> int:
        return 0 if self.exact else self.by_masks.degrees

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(1, num_tokens) if self.exact else self.by_masks.cost(num_tokens)

    @override
    def query(
        self,
        batch: Batch,
        evaluation: Int64[Tensor, " B"],
        *,
        noise: PassNoise,
        process: Process,
    ) -> Query:
        assert isinstance(process, Blockwise)  # by ``needs``
        size, (rows, length) = self.block_size, batch.tokens.shape
        count = num_blocks(length, size)
        index = batch.index[:, None] * count + torch.arange(count, device=batch.index.device)
        counted = cut(batch.loss_mask, size, fill=0)
        blocks = Batch(cut(batch.tokens, size, process.unknown_id), counted, index.flatten())
        draw = evaluation.repeat_interleave(count)
        query = self.by_masks.query(blocks, draw, noise=noise, process=process.process)
        weight = query.weight.where(counted.any(dim=-1), 0.0).view(rows, count)
        weights = spread(weight, size, length)
        return Query(join(query.x_t, length), None, batch.loss_mask, weights)

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return (float(values[0]), np.zeros(1)) if self.exact else self.by_masks.combine(values)
