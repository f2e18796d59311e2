"""Estimators by the chain rule, which reveal one token after another.

Each order o of positions defines a model with an exact likelihood p_o. Unless the conditionals of
the network are those of one joint distribution, p_o differs between orders. The mean of -log p_o
over orders is the bound that the estimators by masks have too (Ou et al. 2024, arXiv:2406.03736,
theorem 2). The likelihood under a random order is the mean of p_o, whose -log is smaller (Jensen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import Needs
from seqdiff.likelihood.estimator import (
    PassNoise,
    Query,
    QueryEstimator,
    constant,
    mean_and_variance,
    require_at_least,
)
from seqdiff.process import Absorbing, LeftToRight, Process
from seqdiff.rng import permutation_rank
from seqdiff.types import Batch

_BY_ORDERS = Needs((Absorbing,), any_order=True)
_TWO = "a standard error takes two: give 2"


class _RandomOrders(QueryEstimator):
    """Base of estimators that reveal tokens in random orders."""

    needs: ClassVar[Needs] = _BY_ORDERS

    @override
    def query(
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
    ) -> Query:
        assert isinstance(process, Absorbing)  # by ``needs``
        num_tokens = batch.num_tokens
        ranks = permutation_rank(noise.positions(batch, evaluation // num_tokens), batch.loss_mask)
        return _query(batch, ranks, evaluation % num_tokens, process)


class _Exact(QueryEstimator):
    """Base of estimators without randomness, whose evaluations add up."""

    @property
    @override
    def exact(self) -> bool:
        return True

    @property
    @override
    def degrees(self) -> int:
        return 0

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return float(values.sum()), np.zeros(1)


@dataclass(frozen=True)
class RandomOrderChain(_RandomOrders):
    """The mean of -log p_o over random orders: the same bound as by masks.

    An order takes n evaluations. The variance is 0 if the conditionals are those of one joint
    distribution.

    Attributes:
        orders: Independent orders per pass.
    """

    name: ClassVar[str] = "random-order-chain"
    orders: int = 8

    def __post_init__(self) -> None:
        """Check the number of orders.

        Raises:
            ValueError: If it is less than 2.
        """
        require_at_least("RandomOrderChain.orders", self.orders, 2, _TWO)

    @property
    @override
    def degrees(self) -> int:
        return self.orders - 1

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return self.orders * num_tokens

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return mean_and_variance(values.reshape(self.orders, -1).sum(axis=-1))


@dataclass(frozen=True)
class FixedOrder(_Exact):
    """-log p_o of one given order: exact, with n evaluations.

    Attributes:
        order: All positions in the order in which they are revealed; those that do not count are
            skipped. ``None`` is left to right, on mirrored rows too, so that the two strands of DNA
            differ for any network.
    """

    name: ClassVar[str] = "fixed-order"
    needs: ClassVar[Needs] = _BY_ORDERS
    order: Sequence[int] | None = None

    def __post_init__(self) -> None:
        """Check the order.

        Raises:
            ValueError: If it does not hold every position once.
        """
        if self.order is not None and sorted(self.order) != list(range(len(self.order))):
            raise ValueError(
                f"FixedOrder.order must hold each of 0..{len(self.order) - 1} once, got "
                f"{list(self.order)[:8]}...; None is left to right"
            )

    @property
    @override
    def quantity(self) -> str:
        return "exact, left to right" if self.order is None else "exact, in the given order"

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return num_tokens.clone()

    def query(
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
    ) -> Query:
        """Prepare one network evaluation of each row.

        Raises:
            ValueError: If the order is for another length.
        """
        assert isinstance(process, Absorbing)  # by ``needs``
        del noise
        length, device = batch.tokens.shape[1], batch.tokens.device
        if self.order is not None and len(self.order) != length:
            raise ValueError(
                f"FixedOrder.order must be as long as the sequences ({length}), got "
                f"{len(self.order)} positions; evaluate other lengths apart"
            )
        revealed = range(length) if self.order is None else self.order
        when = (
            torch.tensor(list(revealed), device=device).argsort().double().expand_as(batch.tokens)
        )
        return _query(batch, permutation_rank(when, batch.loss_mask), evaluation, process)


@dataclass(frozen=True)
class ChainRule(_Exact):
    """The exact -log p of an autoregressive model, in one evaluation.

    Positions that do not count are context for those after them.
    """

    name: ClassVar[str] = "chain-rule"
    needs: ClassVar[Needs] = Needs((LeftToRight,))

    @property
    @override
    def quantity(self) -> str:
        return "exact, left to right"

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(1, num_tokens)

    @override
    def query(
        self, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise, process: Process
    ) -> Query:
        del evaluation, noise, process
        ones = torch.ones(len(batch.tokens), dtype=torch.float64, device=batch.tokens.device)
        return Query(batch.tokens.long(), None, batch.loss_mask, ones)


@dataclass(frozen=True)
class ImportanceWeightedOrders(_RandomOrders):
    """-log of the mean of p_o over some random orders: a bound that falls with their number.

    With one order it is the bound of ``RandomOrderChain``. With more orders it tends from above to
    -log of the mean of p_o over all orders. Source: Burda et al. 2016, arXiv:1509.00519, with the
    order as the latent variable.

    The standard error and the interval are for the bound with this number of orders, which the
    repeats estimate without bias. They do not include its distance to the limit, which falls with
    more orders, not with more repeats.

    Attributes:
        orders: Orders that are averaged under one logarithm.
        repeats: Independent averages per pass.
    """

    name: ClassVar[str] = "importance-weighted-orders"
    orders: int = 4
    repeats: int = 12

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: If there is no order or less than 2 repeats.
        """
        require_at_least("ImportanceWeightedOrders.orders", self.orders, 1, "4 is usual")
        require_at_least("ImportanceWeightedOrders.repeats", self.repeats, 2, _TWO)

    @property
    @override
    def quantity(self) -> str:
        return f"upper bound, {self.orders} orders"

    @property
    @override
    def degrees(self) -> int:
        return self.repeats - 1

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return self.orders * self.repeats * num_tokens

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        chains = values.reshape(self.repeats, self.orders, -1).sum(axis=-1)
        bounds = np.log(self.orders) - np.logaddexp.reduce(-chains, axis=-1)
        return mean_and_variance(bounds)


def _query(batch: Batch, ranks: Tensor, step: Tensor, process: Absorbing) -> Query:
    """Show the tokens revealed before a step, and score those that the step reveals."""
    hidden = batch.loss_mask & (ranks >= step[:, None])
    scored = batch.loss_mask & (ranks == step[:, None])
    alpha = step.double() / batch.num_tokens
    x_t = batch.tokens.masked_fill(hidden, process.unknown_id)
    return Query(x_t, process.schedule.inverse(alpha), scored, torch.ones_like(alpha))
