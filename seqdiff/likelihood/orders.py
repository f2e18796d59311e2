"""Estimators by the chain rule, which reveal one token after another.

Each order o of positions defines a model with an exact likelihood p_o, and so does a rule that
chooses the next position from the tokens that are already visible. Unless the conditionals of
the network are those of one joint distribution, p_o differs between orders. The mean of -log p_o
over orders is the bound that the estimators by masks have too (Ou et al. 2024, arXiv:2406.03736,
theorem 2). The likelihood under a random order is the mean of p_o, whose -log is smaller (Jensen).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from typing_extensions import override

from seqdiff.denoiser import (
    Denoiser,
    Needs,
    confidence,
    even_count,
    margin,
    negative_entropy,
    rank_by_certainty,
)
from seqdiff.likelihood.estimator import (
    Estimator,
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
_CERTAINTIES = {"confidence": confidence, "margin": margin, "entropy": negative_entropy}


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


class _Exact(Estimator):
    """Base of estimators without randomness, whose values add up."""

    @property
    @override
    def exact(self) -> bool:
        return True

    @property
    @override
    def degrees(self) -> int:
        return 0

    @override
    def coefficients(self, calls: int) -> Float64[np.ndarray, " {calls}"]:
        return np.ones(calls)

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
    def coefficients(self, calls: int) -> Float64[np.ndarray, " {calls}"]:
        return np.full(calls, 1 / self.orders)

    @override
    def combine(
        self, values: Float64[np.ndarray, " cost"]
    ) -> tuple[float, Float64[np.ndarray, " components"]]:
        return mean_and_variance(values.reshape(self.orders, -1).sum(axis=-1))


@dataclass(frozen=True)
class FixedOrder(_Exact, QueryEstimator):
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
class ConfidentOrder(_Exact):
    """-log p of the samples that are unmasked where the model is most certain: exact.

    The model's certainty at each masked position follows from the visible tokens alone, so it
    determines one order for every row, and a sample equals the row only if it was unmasked in this
    order. The product of the conditionals is therefore the probability of the row under the sampler
    of the same name (``ConfidenceSampler``, ``MarginSampler`` or ``EntropySampler``, at temperature
    1 and without ``top_k`` and ``top_p``), for any network. Tokens of one step are independent
    given those before, as the sampler draws them. Source: arXiv:2603.01367 (DUEL).

    The evaluations of a row are sequential: n of them, or one for every ``tokens_per_step``.
    Rounding in the network may decide between positions that are almost equally certain.

    Attributes:
        certainty: What is unmasked first: the position with the most likely symbol, with the
            largest gap between the two most likely symbols, or with the lowest entropy; the
            leftmost of equally certain ones.
        tokens_per_step: Most tokens that are unmasked in a step. The sizes of steps differ by at
            most one, as those of a sampler with ``num_steps`` = ceil(n / tokens_per_step).
    """

    name: ClassVar[str] = "confident-order"
    needs: ClassVar[Needs] = _BY_ORDERS
    certainty: Literal["confidence", "margin", "entropy"] = "confidence"
    tokens_per_step: int = 1

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: If there is no such certainty, or a step unmasks nothing.
        """
        if self.certainty not in _CERTAINTIES:
            raise ValueError(
                f"ConfidentOrder.certainty must be one of {', '.join(_CERTAINTIES)}, got "
                f"{self.certainty!r}; choose that of the sampler"
            )
        require_at_least("ConfidentOrder.tokens_per_step", self.tokens_per_step, 1, "1 is usual")

    @property
    @override
    def quantity(self) -> str:
        steps = "" if self.tokens_per_step == 1 else f", {self.tokens_per_step} tokens a step"
        return f"exact, by {self.certainty}{steps}"

    @override
    def cost(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return -(-num_tokens // self.tokens_per_step)

    @override
    def calls(self, num_tokens: Int64[Tensor, " B"]) -> Int64[Tensor, " B"]:
        return constant(1, num_tokens)

    @override
    def terms(
        self, denoiser: Denoiser, batch: Batch, evaluation: Int64[Tensor, " B"], *, noise: PassNoise
    ) -> Float[Tensor, "B L"]:
        del evaluation, noise
        num_steps, left = self.cost(batch.num_tokens), batch.loss_mask
        nats = torch.zeros(left.shape, dtype=torch.float64, device=left.device)
        for step in range(int(num_steps.max())):
            rows = (num_steps > step).nonzero().squeeze(-1)
            part, masked = batch.take(rows), left[rows]
            log_probs = _predict(denoiser, part, masked)
            rank = rank_by_certainty(masked, _CERTAINTIES[self.certainty](log_probs))[1]
            count = even_count(part.num_tokens, num_steps[rows], step)
            where = masked & (rank < count[:, None])
            chosen = log_probs[where[masked]]
            terms = torch.zeros(where.shape, dtype=torch.float64, device=where.device)
            terms[where] = -chosen.gather(-1, part.tokens[where].long()[:, None])[:, 0]
            nats[rows] += terms
            left = left.index_copy(0, rows, masked & ~where)
        return nats


def _predict(denoiser: Denoiser, batch: Batch, masked: Tensor) -> Float64[Tensor, "N K"]:
    """Predict masked tokens from the others as ``Canvas.log_probs`` does, to the last bit."""
    process = denoiser.process
    assert isinstance(process, Absorbing)  # by ``needs``
    real = masked.shape[1] if batch.padding is None else (~batch.padding).sum(dim=-1)
    t = process.schedule.inverse(1 - masked.sum(dim=-1).double() / real)
    x_t = batch.tokens.long().masked_fill(masked, process.unknown_id)
    log_probs = denoiser.log_probs(batch.inputs(x_t, t), masked).double()
    return log_probs - log_probs.logsumexp(dim=-1, keepdim=True)


@dataclass(frozen=True)
class ChainRule(_Exact, QueryEstimator):
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
    additive: ClassVar[bool] = False
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
