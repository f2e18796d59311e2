"""What every estimator promises: which network evaluations to make, and what they come to.

An estimator works in *passes*. A pass is a fixed number of network evaluations of a row that
together give an unbiased value and an unbiased estimate of that value's variance. More passes make
the standard error smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float64, Int, Int64
from torch import Tensor

from seqdiff.parameterization import Kind
from seqdiff.process import MaskedDiffusion
from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise

Convention = Literal["exact", "mdlm"]

# Streams of one draw; more than there are names for, so that draws never share noise.
_STREAMS_PER_DRAW = 16


@dataclass(frozen=True)
class Rows:
    """Rows to evaluate; a row may occur more than once, for several of its evaluations.

    Attributes:
        x0: Clean ids in ``0..K``.
        counted: Positions whose likelihood is asked for, at least one a row; others are given.
        index: All of the row's noise follows from it; rows that share it share their noise.
        label: Class of each row, of which the likelihood is conditional; ``None`` without classes.
        mirrored: Rows whose noise over positions is read backwards; ``None`` if there are none.
        padding: Positions that hold nothing; ``None`` without any.
    """

    x0: Int[Tensor, "B L"]
    counted: Bool[Tensor, "B L"]
    index: Int[Tensor, " B"]
    label: Int[Tensor, " B"] | None = None
    mirrored: Bool[Tensor, " B"] | None = None
    padding: Bool[Tensor, "B L"] | None = None

    def take(self, rows: Int64[Tensor, " I"]) -> Rows:
        """Choose rows, in any order and number."""
        label = None if self.label is None else self.label[rows]
        mirrored = None if self.mirrored is None else self.mirrored[rows]
        padding = None if self.padding is None else self.padding[rows]
        return Rows(self.x0[rows], self.counted[rows], self.index[rows], label, mirrored, padding)

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
        weight: Factor of a row's sum, or of each token.
    """

    x_t: Int64[Tensor, "B L"]
    t: Float64[Tensor, " B"]
    scored: Bool[Tensor, "B L"]
    weight: Float64[Tensor, " B"] | Float64[Tensor, "B L"]


@dataclass(frozen=True)
class PassNoise:
    """Uniform noise of one pass, a function of (seed, pass, index, draw) alone.

    Attributes:
        noise: The seed's, in the branch that has the pass's number.
    """

    noise: CounterNoise

    def scalar(self, rows: Rows, draw: Int64[Tensor, " B"]) -> Float64[Tensor, " B"]:
        """One uniform a row.

        Args:
            rows: The rows.
            draw: Which of the pass's independent draws, for each row.
        """
        return self._uniform(rows, 1, TIME_STREAM, draw)[:, 0]

    def positions(self, rows: Rows, draw: Int64[Tensor, " B"]) -> Float64[Tensor, "B L"]:
        """One uniform a position, from the other end where a row is mirrored.

        Args:
            rows: The rows.
            draw: Which of the pass's independent draws, for each row.
        """
        uniform = self._uniform(rows, rows.x0.shape[1], MASK_STREAM, draw)
        if rows.mirrored is None:
            return uniform
        return torch.where(rows.mirrored[:, None], uniform.flip(-1), uniform)

    def _uniform(self, rows: Rows, length: int, stream: int, draw: Tensor) -> Tensor:
        return self.noise.uniform(rows.index, length, stream=stream + _STREAMS_PER_DRAW * draw)


class Estimator(ABC):
    """Estimates the negative log-likelihood of a row, or a bound on it, in nats.

    Attributes:
        name: On the command line.
        convention: Whose accounting it follows.
        kind: Of the models that it is for.
    """

    name: ClassVar[str]
    convention: Convention = "exact"
    kind: ClassVar[Kind] = "masked"

    @property
    def quantity(self) -> str:
        """What is estimated, for a table."""
        return "upper bound"

    @property
    def exact(self) -> bool:
        """Whether a pass has no randomness, so that a second one would tell nothing."""
        return False

    @abstractmethod
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Network evaluations of one pass over rows with that many counted tokens."""

    @property
    @abstractmethod
    def degrees(self) -> int:
        """Degrees of freedom of the variance that one pass gives, if its components are alike."""

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
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        """Turn the worths of one row's evaluations into the pass's value and its variance.

        Args:
            values: Of the queries, by the number of the evaluation.

        Returns:
            The value, and independent unbiased estimates of what adds up to its variance, with
            ``degrees / components`` degrees of freedom each.
        """


def mean_and_variance(
    values: Float64[np.ndarray, " n"],
) -> tuple[float, Float64[np.ndarray, " 1"]]:
    """Mean of independent draws of one law, and the unbiased estimate of that mean's variance."""
    return float(values.mean()), values.var(ddof=1, keepdims=True) / len(values)


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
