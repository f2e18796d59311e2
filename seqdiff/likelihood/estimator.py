"""Base classes of estimators, and the network evaluations of a pass.

An estimator works in *passes*. A pass is a fixed number of network evaluations of a row that
together give an unbiased value and an unbiased estimate of that value's variance. More passes make
the standard error smaller.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Denoiser, Needs
from seqdiff.losses import weighted
from seqdiff.process import Process
from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise, standard_normal
from seqdiff.types import Batch

Convention = Literal["exact", "mdlm"]

# Random streams reserved for one draw, more than it uses, so that draws never share noise.
_STREAMS_PER_DRAW = 16


class Query(NamedTuple):
    """One network evaluation of each row: ``weight * sum over scored of -log p(x0 | x_t)``.

    Attributes:
        x_t: Ids that the network is given.
        t: Time in [0, 1] at which the process masks about as many tokens; ``None`` for models
            without a single time per row.
        scored: Positions whose cross-entropy is taken.
        weight: Factor of a row's sum, or of each token.
    """

    x_t: Int64[Tensor, "B L"]
    t: Float64[Tensor, " B"] | None
    scored: Bool[Tensor, "B L"]
    weight: Float64[Tensor, " B"] | Float64[Tensor, "B L"]


@dataclass(frozen=True)
class PassNoise:
    """Noise of one pass, a function of (seed, pass, index, draw) alone.

    Attributes:
        noise: Noise of the seed; its branch is the number of the pass.
    """

    noise: CounterNoise

    def scalar(self, batch: Batch, draw: Int64[Tensor, " B"]) -> Float64[Tensor, " B"]:
        """Draw one uniform per row.

        Args:
            batch: The rows.
            draw: For each row, the number of the draw within the pass.
        """
        return self._uniform(batch, 1, TIME_STREAM, draw)[:, 0]

    def positions(self, batch: Batch, draw: Int64[Tensor, " B"]) -> Float64[Tensor, "B L"]:
        """Draw one uniform per position, in reverse order where a row is mirrored.

        Args:
            batch: The rows.
            draw: For each row, the number of the draw within the pass.
        """
        uniform = self._uniform(batch, batch.tokens.shape[1], MASK_STREAM, draw)
        if batch.mirrored is None:
            return uniform
        return torch.where(batch.mirrored[:, None], uniform.flip(-1), uniform)

    def normals(
        self, batch: Batch, draw: Int64[Tensor, " B"], dim: int
    ) -> Float64[Tensor, "B L dim"]:
        """Draw ``dim`` standard normals per position, in reverse order where a row is mirrored.

        Args:
            batch: The rows.
            draw: See ``positions``.
            dim: Normals per position.
        """
        length = batch.tokens.shape[1]
        uniform = self._uniform(batch, length * dim, MASK_STREAM, draw)
        normals = standard_normal(uniform).unflatten(-1, (length, dim))
        if batch.mirrored is None:
            return normals
        return torch.where(batch.mirrored[:, None, None], normals.flip(1), normals)

    def _uniform(self, batch: Batch, length: int, stream: int, draw: Tensor) -> Tensor:
        return self.noise.uniform(batch.index, length, stream=stream + _STREAMS_PER_DRAW * draw)


class Estimator(ABC):
    """Estimates the negative log-likelihood of a row, or a bound on it, in nats.

    Attributes:
        name: Name on the command line.
        convention: Convention by which tokens are weighted.
        needs: The models that it is for.
        additive: Whether the value of a pass is a sum of terms at positions, see ``coefficients``.
    """

    name: ClassVar[str]
    convention: Convention = "exact"
    needs: ClassVar[Needs]
    additive: ClassVar[bool] = True

    @property
    def quantity(self) -> str:
        """The estimated quantity in words, for tables."""
        return "upper bound"

    @property
    def exact(self) -> bool:
        """Whether a pass has no randomness, so that one pass is enough."""
        return False

    @abstractmethod
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Network evaluations of one pass over rows with that many counted tokens."""

    def calls(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        """Calls of ``value`` in one pass: one per evaluation, unless a call makes several."""
        return self.cost(num_tokens)

    @property
    @abstractmethod
    def degrees(self) -> int:
        """Degrees of freedom of one pass's variance, if its components are of equal size."""

    def value(
        self, denoiser: Denoiser, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise
    ) -> Float64[Tensor, " B"]:
        """Return the sum of ``terms`` of each row, in nats."""
        terms = self.terms(denoiser, batch, evaluation, noise=noise)
        return terms.sum(dim=-1, dtype=torch.float64)

    @abstractmethod
    def terms(
        self, denoiser: Denoiser, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise
    ) -> Float[Tensor, "B L"]:
        """Make one network evaluation of each row, or those of one call, in nats by position.

        Args:
            denoiser: The model, in eval mode, on the device of the batch.
            batch: The rows; a row may occur more than once, for several of its evaluations.
            evaluation: For each row, the number of the call in the pass, in ``0..calls - 1``.
            noise: The pass's noise.

        Raises:
            ValueError: If the estimator does not fit the rows.
        """

    def coefficients(self, calls: int) -> Float64[np.ndarray, " {calls}"]:
        """Factors of the values of a row's calls in the value of the pass, if it is additive.

        Args:
            calls: Number of calls of the row in the pass.
        """
        return np.full(calls, 1 / calls)

    @abstractmethod
    def combine(
        self, values: Float64[np.ndarray, " calls"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        """Turn the values of one row's calls into the pass's value and its variance.

        Args:
            values: Values of the calls, in order.

        Returns:
            The value, and the components of its variance: independent unbiased estimates that add
            up to it, with ``degrees / components`` degrees of freedom each.
        """


class QueryEstimator(Estimator):
    """An estimator whose evaluations are weighted cross-entropies of some tokens."""

    @abstractmethod
    def query(
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
    ) -> Query:
        """Prepare one network evaluation of each row.

        Args:
            batch: The rows.
            evaluation: See ``value``.
            noise: The pass's noise.
            process: The model's process.

        Raises:
            ValueError: If the estimator does not fit the rows.
        """

    @override
    def terms(
        self, denoiser: Denoiser, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise
    ) -> Float[Tensor, "B L"]:
        query = self.query(batch, evaluation, noise=noise, process=denoiser.process)
        where = query.scored
        if denoiser.context != "prefix":  # a visible token costs nothing
            where = where & (query.x_t == denoiser.process.unknown_id)
        return weighted(denoiser, batch, query.x_t, query.t, where, query.weight)


def mean_and_variance(
    values: Float64[np.ndarray, " n"],
) -> tuple[float, Float64[np.ndarray, " 1"]]:
    """Mean of independent draws of one random variable, and the unbiased variance of that mean."""
    return float(values.mean()), values.var(ddof=1, keepdims=True) / len(values)


def require_at_least(owner: str, value: int, least: int, why: str) -> None:
    """Raise ``ValueError`` if a count is too small."""
    if value < least:
        raise ValueError(f"{owner} must be at least {least}, got {value}; {why}")


def require_pairs(estimator: Estimator, evaluations: int) -> None:
    """Raise ``ValueError`` if the evaluations of a pass cannot be paired in strata."""
    if evaluations < 2 or evaluations % 2:
        raise ValueError(
            f"{type(estimator).__name__}.evaluations must be even and at least 2, got "
            f"{evaluations}; every stratum takes two for its standard error: "
            f"give {max(2, evaluations + 1)}"
        )


def require_known(owner: str, batch: Batch, denoiser: Denoiser) -> None:
    """Raise ``ValueError`` if an unknown symbol counts."""
    unknown = denoiser.process.unknown_id
    if bool((batch.loss_mask & (batch.tokens >= unknown)).any()):
        raise ValueError(
            f"{owner} must hold ids below {unknown} where loss_mask is True, got "
            "an unknown one, which would cost nothing; set loss_mask False there"
        )


def run_pass(
    estimator: Estimator,
    denoiser: Denoiser,
    rows: Batch,
    *,
    calls: Int64[Tensor, " B"],
    noise: PassNoise,
    rows_per_call: int,
    by_position: bool = False,
) -> Iterator[Float64[np.ndarray, "n ..."]]:
    """Yield the values of one pass, batch by batch: all of the first row, and so on.

    With ``by_position`` they are the terms that add up to the values.
    """
    call = estimator.terms if by_position else estimator.value
    owner = torch.arange(len(calls)).repeat_interleave(calls)
    first = (calls.cumsum(dim=0) - calls).repeat_interleave(calls)
    number, device = torch.arange(len(owner)) - first, rows.tokens.device
    for items, numbers in zip(
        owner.to(device).split(rows_per_call), number.to(device).split(rows_per_call), strict=True
    ):
        found = call(denoiser, rows.take(items), numbers, noise=noise)
        yield found.double().cpu().numpy()


def constant(value: int, like: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
    """Return the same number for every row."""
    return torch.full_like(like, value)
