"""Estimators that mask tokens at random: one network evaluation a draw.

All have the same target, the bound: the mean over k of the cross-entropy at k masked tokens, times
the length. It depends on the network alone, not on the noise schedule, and no end of the time
interval is dropped (Ou et al. 2024, arXiv:2406.03736, theorem 2). They differ in their variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, get_args

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Needs
from seqdiff.likelihood.estimator import (
    Convention,
    PassNoise,
    Query,
    QueryEstimator,
    constant,
    mean_and_variance,
    require_at_least,
)
from seqdiff.process import Absorbing, Process, small_times
from seqdiff.types import Batch

# Both ends that published evaluations cut off: the least time, and what a schedule leaves visible.
_PUBLISHED_EPS = 1e-3

BY_MASKS = Needs((Absorbing,), any_order=True)
_TWO = "a standard error takes two: give 2"


@dataclass(frozen=True)
class BernoulliTime(QueryEstimator):
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
    needs: ClassVar[Needs] = BY_MASKS
    evaluations: int = 64
    convention: Convention = "exact"

    def __post_init__(self) -> None:
        """Check the arguments.

        Raises:
            ValueError: If there are less than 2 draws, or there is no such convention.
        """
        require_at_least("BernoulliTime.evaluations", self.evaluations, 2, _TWO)
        if self.convention not in get_args(Convention):
            raise ValueError(
                f"BernoulliTime.convention must be one of {', '.join(get_args(Convention))}, "
                f"got {self.convention!r}; exact is a bound"
            )

    @property
    def quantity(self) -> str:
        """See ``Estimator``: what is published is close to the bound, but below it."""
        return "upper bound" if self.convention == "exact" else "as published, not a bound"

    @property
    @override
    def degrees(self) -> int:
        return self.evaluations - 1

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(self.evaluations, num_tokens)

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

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return mean_and_variance(values)


@dataclass(frozen=True)
class ExactK(QueryEstimator):
    """k uniform on 1..n, exactly k tokens masked, weight n/k.

    Source: Ou et al. 2024, arXiv:2406.03736, theorem 2.

    Attributes:
        evaluations: Draws of a pass.
    """

    name: ClassVar[str] = "exact-k"
    needs: ClassVar[Needs] = BY_MASKS
    evaluations: int = 32

    def __post_init__(self) -> None:
        """Check the number of draws.

        Raises:
            ValueError: If it is less than 2.
        """
        require_at_least("ExactK.evaluations", self.evaluations, 2, _TWO)

    @property
    @override
    def degrees(self) -> int:
        return self.evaluations - 1

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(self.evaluations, num_tokens)

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

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return mean_and_variance(values)


@dataclass(frozen=True)
class StratifiedK(QueryEstimator):
    """``ExactK`` with k spread over ``evaluations / 2`` equal strata of 1..n.

    Each stratum gets two independent draws, whose differences give an unbiased standard error.

    Attributes:
        evaluations: Draws of a pass; even.
    """

    name: ClassVar[str] = "stratified-k"
    needs: ClassVar[Needs] = BY_MASKS
    evaluations: int = 32

    def __post_init__(self) -> None:
        """Check the number of draws.

        Raises:
            ValueError: If it is odd or less than 2.
        """
        if self.evaluations < 2 or self.evaluations % 2:
            raise ValueError(
                f"{type(self).__name__}.evaluations must be even and at least 2, got "
                f"{self.evaluations}; "
                "every stratum takes two for its standard error: "
                f"give {max(2, self.evaluations + 1)}"
            )

    @property
    @override
    def degrees(self) -> int:
        return self.evaluations // 2

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(self.evaluations, num_tokens)

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


# Of k, in 1..n: the draws have a density like k^(1/bend - 1).
_BEND = 2.5


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
        evaluation: Int64[torch.Tensor, " B"],
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
    num_tokens: Int64[torch.Tensor, " B"], number: int, chosen: Int64[torch.Tensor, " B"]
) -> tuple[Int64[torch.Tensor, " B"], Int64[torch.Tensor, " B"], Int64[torch.Tensor, " B"]]:
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
