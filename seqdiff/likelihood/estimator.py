"""What every estimator promises: which network evaluations to make, and what they come to.

An estimator works in *passes*. A pass is a fixed number of network evaluations of a row that
together give an unbiased value and an unbiased estimate of that value's variance. More passes make
the standard error smaller; between passes a row may stop.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int, Int64
from torch import Tensor

from seqdiff.process import MaskedDiffusion
from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise

Convention = Literal["exact", "mdlm"]

# Streams of one pass; more than there are names for, so that passes never share noise.
_STREAMS_PER_PASS = 16


@dataclass(frozen=True)
class Rows:
    """Rows to evaluate; a row may occur more than once, for several of its evaluations.

    Attributes:
        x0: Clean ids in ``0..K``.
        counted: Positions whose likelihood is asked for, at least one a row; others are given.
        index: The row's place in the data; all its noise follows from it.
        label: Class of each row, of which the likelihood is conditional; ``None`` without classes.
    """

    x0: Int[Tensor, "B L"]
    counted: Bool[Tensor, "B L"]
    index: Int[Tensor, " B"]
    label: Int[Tensor, " B"] | None = None

    def take(self, rows: Int64[Tensor, " I"]) -> Rows:
        """Choose rows, in any order and number."""
        label = None if self.label is None else self.label[rows]
        return Rows(self.x0[rows], self.counted[rows], self.index[rows], label)

    @property
    def num_tokens(self) -> Int64[Tensor, " B"]:
        """Counted positions of each row."""
        return self.counted.sum(dim=-1)


class Query(NamedTuple):
    """One network evaluation of each row, worth ``weight * sum over scored of -log p(x0 | x_t)``.

    Attributes:
        x_t: Ids to show to the network.
        t: Time in [0, 1] at which the process has masked about as many tokens.
        scored: Positions whose cross-entropy is taken; masked ones, unless the model is causal.
        weight: Factor of a row's sum.
    """

    x_t: Int64[Tensor, "B L"]
    t: Float64[Tensor, " B"]
    scored: Bool[Tensor, "B L"]
    weight: Float64[Tensor, " B"]


@dataclass(frozen=True)
class PassNoise:
    """Uniform noise of one pass, a function of (seed, pass, index) alone.

    Attributes:
        noise: The seed's noise.
        number: Of the pass, from 0.
    """

    noise: CounterNoise
    number: int

    def scalar(self, index: Int[Tensor, " B"]) -> Float64[Tensor, " B"]:
        """One draw a row."""
        stream = TIME_STREAM + _STREAMS_PER_PASS * self.number
        return self.noise.uniform(index, 1, stream=stream)[:, 0]

    def positions(self, index: Int[Tensor, " B"], length: int) -> Float64[Tensor, "B {length}"]:
        """One draw a position."""
        stream = MASK_STREAM + _STREAMS_PER_PASS * self.number
        return self.noise.uniform(index, length, stream=stream)


class Estimator(ABC):
    """Estimates the negative log-likelihood of a row, or a bound on it, in nats.

    Attributes:
        name: On the command line.
        convention: Whose accounting it follows.
        exact: Whether a pass has no randomness, so that a second one would tell nothing.
        causal: Whether it is for autoregressive models, not for masked diffusion.
    """

    name: ClassVar[str]
    convention: Convention = "exact"
    exact: ClassVar[bool] = False
    causal: ClassVar[bool] = False

    @property
    def quantity(self) -> str:
        """What is estimated, for a table."""
        return "upper bound"

    @abstractmethod
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Network evaluations of one pass over rows with that many counted tokens."""

    @property
    @abstractmethod
    def degrees(self) -> int:
        """Degrees of freedom of the variance that one pass gives; 0 if ``exact``."""

    @abstractmethod
    def query(
        self,
        rows: Rows,
        evaluation: Int64[Tensor, " B"],
        *,
        noise: PassNoise,
        process: MaskedDiffusion,
    ) -> Query:
        """Prepare one network evaluation of each row.

        Args:
            rows: The rows.
            evaluation: Which evaluation of the pass, in ``0..cost - 1``, for each row.
            noise: The pass's noise.
            process: Supplies the mask and the schedule.

        Raises:
            ValueError: If the estimator does not fit the rows.
        """

    @abstractmethod
    def combine(self, values: Float64[np.ndarray, " cost"]) -> tuple[float, float]:
        """Turn the worths of one row's evaluations into the pass's value and its variance.

        Args:
            values: Of the queries, by the number of the evaluation.
        """


def mean_and_variance(values: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """Mean of independent draws of one law, and the unbiased estimate of that mean's variance."""
    return float(values.mean()), float(values.var(ddof=1) / len(values))


def require_at_least(owner: str, value: int, least: int, why: str) -> None:
    """Refuse a count that is too small.

    Raises:
        ValueError: If it is.
    """
    if value < least:
        raise ValueError(f"{owner} must be at least {least}, got {value}; {why}")


def constant(value: int, like: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """The same number for every row."""
    return torch.full_like(like, value)
