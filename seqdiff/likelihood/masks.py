"""Estimators that mask tokens at random: one network evaluation a draw.

All have the same target, the bound: the mean over k of the cross-entropy at k masked tokens, times
the length. It depends on the network alone, not on the noise schedule, and no end of the time
interval is dropped (Ou et al. 2024, arXiv:2406.03736, theorem 2). They differ in their variance.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.blocks import cut, join, num_blocks, spread
from seqdiff.denoiser import Needs
from seqdiff.likelihood.estimator import (
    Convention,
    PassNoise,
    Query,
    QueryEstimator,
    constant,
    mean_and_variance,
    require_at_least,
    require_pairs,
)
from seqdiff.process import Absorbing, Blockwise, Process, check_block_size, small_times
from seqdiff.types import Batch

# Both ends that published evaluations cut off: the least time, and what a schedule leaves visible.
_PUBLISHED_EPS = 1e-3
# The k of ``SmallK`` have a density like k^(1 / bend - 1) on 1..n.
_BEND = 2.5


@dataclass(frozen=True)
class _ByMasks(QueryEstimator):
    """Base of estimators that make a number of independent evaluations in a pass."""

    needs: ClassVar[Needs] = Needs((Absorbing,), any_order=True)
    evaluations: int = 32

    def __post_init__(self) -> None:
        """Check the number of evaluations.

        Raises:
            ValueError: If it is less than 2.
        """
        owner = f"{type(self).__name__}.evaluations"
        require_at_least(owner, self.evaluations, 2, "a standard error takes two: give 2")

    @property
    @override
    def degrees(self) -> int:
        return self.evaluations - 1

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(self.evaluations, num_tokens)

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return mean_and_variance(values)


@dataclass(frozen=True)
class BernoulliTime(_ByMasks):
    """A random time, each token masked on its own with probability 1 - alpha(t).

    In terms of the masked fraction m = 1 - alpha(t) the bound is an integral over m with the weight
    1/m, whatever the schedule. With m uniform its variance would be infinite: at a fraction m one
    of n tokens is masked with a probability like n m, at a weight of 1/m. So m is drawn with a
    density that is nearly flat above 2/n and grows like m^(-2/3) below. That makes the variance
    finite, and the third moment too, without which Student's t covers too little.

    The convention ``mdlm`` is the accounting of published numbers, which is not a bound: times in
    [1e-3, 1], a masked fraction of (1 - 1e-3) t and a weight of 1/t, so that a uniform predictor
    scores 0.999 log K a token. There a sequence gets one draw and times are spread over a batch;
    here draws are independent, and small times more frequent at a lower weight, with the same
    expectation. Which tokens count is for the loss mask to say. Source: Sahoo et al. 2024,
    arXiv:2406.07524, and the evaluation released with it.

    Attributes:
        evaluations: Draws of a pass.
        convention: ``exact`` or ``mdlm``.
    """

    name: ClassVar[str] = "bernoulli-time"
    evaluations: int = 64
    convention: Convention = "exact"

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If there are less than 2 evaluations, or there is no such convention.
        """
        super().__post_init__()
        if self.convention not in get_args(Convention):
            raise ValueError(
                f"BernoulliTime.convention must be one of {', '.join(get_args(Convention))}, "
                f"got {self.convention!r}; exact is a bound"
            )

    @property
    def quantity(self) -> str:
        """See ``Estimator``: what is published is close to the bound, but below it."""
        return "upper bound" if self.convention == "exact" else "as published, not a bound"

    @override
    def query(
        self,
        batch: Batch,
        evaluation: Int64[Tensor, " B"],
        *,
        noise: PassNoise,
        process: Process,
    ) -> Query:
        assert isinstance(process, Absorbing)  # by ``needs``
        place, slope = small_times(noise.scalar(batch, evaluation), 2 / batch.num_tokens.double())
        if self.convention == "mdlm":
            published_time = _PUBLISHED_EPS + (1 - _PUBLISHED_EPS) * place
            fraction, weight = (1 - _PUBLISHED_EPS) * published_time, slope / published_time
        else:
            fraction, weight = place, slope / place
        masked = noise.positions(batch, evaluation) < fraction[:, None]
        x_t = batch.tokens.masked_fill(masked & batch.loss_mask, process.unknown_id)
        return Query(x_t, process.schedule.inverse(1 - fraction), batch.loss_mask, weight)


@dataclass(frozen=True)
class ExactK(_ByMasks):
    """k uniform on 1..n, exactly k tokens masked, weight n/k.

    Source: Ou et al. 2024, arXiv:2406.03736, theorem 2.

    Attributes:
        evaluations: Draws of a pass.
    """

    name: ClassVar[str] = "exact-k"

    @override
    def query(
        self,
        batch: Batch,
        evaluation: Int64[Tensor, " B"],
        *,
        noise: PassNoise,
        process: Process,
    ) -> Query:
        assert isinstance(process, Absorbing)  # by ``needs``
        count = _count_at(noise.scalar(batch, evaluation), batch.num_tokens)
        return mask_exactly(batch, evaluation, count, noise, process)


@dataclass(frozen=True)
class StratifiedK(_ByMasks):
    """``ExactK`` with k spread over ``evaluations / 2`` equal strata of 1..n.

    Each stratum gets two independent draws, whose differences give an unbiased standard error.

    Attributes:
        evaluations: Draws of a pass; even.
    """

    name: ClassVar[str] = "stratified-k"

    def __post_init__(self) -> None:
        """Check the number of evaluations.

        Raises:
            ValueError: If it is odd or less than 2.
        """
        require_pairs(self, self.evaluations)

    @property
    @override
    def degrees(self) -> int:
        return self.evaluations // 2

    @override
    def query(
        self,
        batch: Batch,
        evaluation: Int64[Tensor, " B"],
        *,
        noise: PassNoise,
        process: Process,
    ) -> Query:
        assert isinstance(process, Absorbing)  # by ``needs``
        place = (evaluation // 2 + noise.scalar(batch, evaluation)) / (self.evaluations // 2)
        count = _count_at(place, batch.num_tokens)
        return mask_exactly(batch, evaluation, count, noise, process)

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        differences = values[0::2] - values[1::2]
        return float(values.mean()), (differences / len(values)) ** 2


def mask_exactly(
    batch: Batch,
    draw: Int64[Tensor, " B"],
    count: Int64[Tensor, " B"],
    noise: PassNoise,
    process: Absorbing,
) -> Query:
    """Mask so many of the n tokens that count, weighted by n/k.

    Args:
        batch: The rows.
        draw: Which of the pass's independent draws, for each row.
        count: k of each row, in 1..n.
        noise: The pass's noise.
        process: Supplies the mask and the schedule.
    """
    draws = noise.positions(batch, draw)
    x_t = process.corrupt_exactly(batch.tokens, count, keep=~batch.loss_mask, noise=draws)
    fraction = count.double() / batch.num_tokens
    t = process.schedule.inverse(1 - fraction)
    return Query(x_t, t, batch.loss_mask, 1 / fraction)


def _count_at(place: Tensor, num_tokens: Tensor) -> Tensor:
    """Turn a place in (0, 1) into a k in 1..n."""
    return (num_tokens * place).long().clamp_max(num_tokens - 1) + 1


@dataclass(frozen=True)
class SmallK(StratifiedK):
    """``StratifiedK`` with more draws of small k, in strata of whole numbers k.

    At k masked tokens of n a row is worth n/k times the cost of those: of all tokens alike about
    the same at every k. The difference of two rows is that of a few positions, which a mask holds
    with a fraction of k/n and then at a weight of n/k. With k uniform, rare draws of small k would
    make most of its variance, and a third moment at which Student's t covers too little: 80% to
    90% where a stratum's draws fall on either side of a step in k. So the strata end at the whole
    numbers above n (h / H)^2.5, each k belongs to one, and a stratum that would be empty gives its
    draws to the one before. The target is that of ``StratifiedK``, whatever the strata.

    Attributes:
        evaluations: Draws of a pass; even.
    """

    name: ClassVar[str] = "small-k"

    @override
    def query(
        self,
        batch: Batch,
        evaluation: Int64[Tensor, " B"],
        *,
        noise: PassNoise,
        process: Process,
    ) -> Query:
        assert isinstance(process, Absorbing)  # by ``needs``
        begin, end, pairs = strata(batch.num_tokens, self.evaluations // 2, evaluation // 2)
        size = end - begin
        step = (noise.scalar(batch, evaluation) * size).long()
        query = mask_exactly(
            batch, evaluation, begin + step.clamp_max(size - 1) + 1, noise, process
        )
        factor = size * (self.evaluations // 2) / (batch.num_tokens * pairs).double()
        return query._replace(weight=query.weight * factor)


def strata(
    num_tokens: Int64[Tensor, " B"], number: int, chosen: Int64[Tensor, " B"]
) -> tuple[Int64[Tensor, " B"], Int64[Tensor, " B"], Int64[Tensor, " B"]]:
    """Give the stratum of 1..n that each pair of draws falls into.

    Args:
        num_tokens: n of each row.
        number: Pairs of draws of a pass.
        chosen: Which pair, in ``0..number - 1``.

    Returns:
        The k before its first, its last k, and how many pairs share it.
    """
    bends = torch.from_numpy((np.arange(number + 1) / number) ** _BEND).to(num_tokens.device)
    edges = (num_tokens[:, None] * bends).ceil().long()
    end = edges.gather(1, chosen[:, None] + 1)
    begin = torch.where(edges < end, edges, 0).amax(dim=1)
    return begin, end[:, 0], (edges == end).sum(dim=1)


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
