"""Estimators that mask tokens at random, with one network evaluation per draw.

All estimate the same bound: the mean over k of the cross-entropy at k masked tokens, times the
length (Ou et al. 2024, arXiv:2406.03736, theorem 2). The bound depends on the network alone, not on
the noise schedule, and covers the whole time interval. The estimators differ in their variance.
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

# Published evaluations begin at this time, and leave this fraction visible at t = 1.
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
    """A random time, at which each token is masked independently with probability 1 - alpha(t).

    In terms of the masked fraction m = 1 - alpha(t) the bound is an integral over m with the weight
    1/m, for any schedule. With uniform m the variance would be infinite: one of n tokens is masked
    with a probability of about n m for small m, and has the weight 1/m. So m is drawn with a
    density that is nearly flat above 2/n and grows like m^(-2/3) below. That makes the variance
    and the third moment finite; otherwise intervals by Student's t would be too narrow.

    The convention ``mdlm`` gives numbers as they are published, which are no bound: times in
    [1e-3, 1], a masked fraction of (1 - 1e-3) t and a weight of 1/t, so that a uniform predictor
    scores 0.999 log K per token. The published code makes one draw per sequence and spreads times
    over a batch. Here draws are independent, and small times are more frequent at a lower weight,
    with the same expectation. The loss mask decides which tokens count. Source: Sahoo et al. 2024,
    arXiv:2406.07524, and the evaluation released with it.

    Attributes:
        evaluations: Draws per pass.
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
    @override
    def quantity(self) -> str:
        return "upper bound" if self.convention == "exact" else "as published, not a bound"

    @override
    def query(
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
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
    """Exactly k of n tokens masked, with k uniform on 1..n and the weight n/k.

    Source: Ou et al. 2024, arXiv:2406.03736, theorem 2.

    Attributes:
        evaluations: Draws per pass.
    """

    name: ClassVar[str] = "exact-k"

    @override
    def query(
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
    ) -> Query:
        assert isinstance(process, Absorbing)  # by ``needs``
        count = _count_at(noise.scalar(batch, evaluation), batch.num_tokens)
        return mask_exactly(batch, evaluation, count, noise, process)


@dataclass(frozen=True)
class StratifiedK(_ByMasks):
    """``ExactK`` with k spread over ``evaluations / 2`` equal strata of 1..n.

    Each stratum gets two independent draws, whose differences give an unbiased standard error.

    Attributes:
        evaluations: Draws per pass; even.
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
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
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
    """Mask exactly k of the n tokens that count, with the weight n/k.

    Args:
        batch: The rows.
        draw: For each row, the number of the draw within the pass.
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
    """Map a number in (0, 1) to a k in 1..n."""
    return (num_tokens * place).long().clamp_max(num_tokens - 1) + 1


@dataclass(frozen=True)
class SmallK(StratifiedK):
    """``StratifiedK`` with more draws of small k, for differences between rows.

    Two rows that are compared often differ at a few positions only. With k of n tokens masked, such
    a position is masked with probability k/n, and its cost has the weight n/k. With uniform k, rare
    draws of small k would make most of the variance, and the third moment would be so large that
    95% intervals by Student's t cover 80% to 90%. So the draws have more small k: stratum h of H
    ends at the first whole number above n (h / H)^2.5. Each k belongs to one stratum, and an empty
    stratum gives its draws to the one before. The expectation is that of ``StratifiedK``.

    Attributes:
        evaluations: Draws per pass; even.
    """

    name: ClassVar[str] = "small-k"

    @override
    def query(
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
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
    """Find the stratum of 1..n that each pair of draws falls into.

    Args:
        num_tokens: n of each row.
        number: Pairs of draws per pass.
        chosen: The pair of each row, in ``0..number - 1``.

    Returns:
        One less than the first k of the stratum, its last k, and how many pairs it has.
    """
    bends = torch.from_numpy((np.arange(number + 1) / number) ** _BEND).to(num_tokens.device)
    edges = (num_tokens[:, None] * bends).ceil().long()
    end = edges.gather(1, chosen[:, None] + 1)
    begin = torch.where(edges < end, edges, 0).amax(dim=1)
    return begin, end[:, 0], (edges == end).sum(dim=1)


@dataclass(frozen=True)
class BlockBound(QueryEstimator):
    """An estimator by masks applied to every block of a row, all blocks in one evaluation.

    The value of an evaluation is the sum over blocks, each with its own noise. It estimates the
    bound of Arriola et al. 2025, arXiv:2503.09573, equation 8, whatever interval of masked
    fractions the model was trained in. In blocks of one token exactly that token is masked, so the
    value is the chain rule from left to right.

    Attributes:
        block_size: L' of the model.
        by_masks: Estimator of the bound of a block.
        convention: Convention of ``by_masks``.
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
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
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
