"""Run an estimator over sequences until the errors are small enough or a budget is spent.

The number of passes is chosen in stages, so that stopping does not bias the estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.denoiser import Denoiser
from seqdiff.likelihood.choice import fit, usual_estimator
from seqdiff.likelihood.estimator import (
    Estimator,
    PassNoise,
    require_at_least,
    require_known,
    run_pass,
)
from seqdiff.likelihood.result import Likelihood, effective_degrees
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch

# With fewer degrees of freedom, the estimated variance is often too small by chance, and then the
# second stage is too short.
_LEAST_DEGREES = 15
# Smaller estimates of the degrees of freedom are raised to this one, which doubles the planned
# variance.
_TRUSTED_DEGREES = 4


def check_budget(
    estimator: Estimator,
    *,
    num_tokens: int,
    target_se: float | None,
    max_nfe: int | None,
    per_call: int = 1,
    owner: str = "evaluate",
) -> None:
    """Check, before slow work, that ``evaluate`` can keep a budget.

    Args:
        estimator: The estimator.
        num_tokens: Counted tokens of the longest sequence; 1 if that is not known yet.
        target_se: See ``evaluate``.
        max_nfe: See ``evaluate``.
        per_call: See ``Denoiser.evaluations_per_call``.
        owner: Function that was given the budget, for the messages.

    Raises:
        ValueError: If ``target_se`` is not positive and finite, or one pass takes more than
            ``max_nfe``.
    """
    if target_se is not None and not 0 < target_se < math.inf:
        raise ValueError(
            f"{owner}.target_se must be above 0 nats and finite, got {target_se}; leave it out for "
            "a fixed number of passes"
        )
    cost = int(estimator.cost(torch.tensor([num_tokens]))) * per_call
    if max_nfe is not None and max_nfe < cost:
        raise ValueError(
            f"{owner}.max_nfe must be at least {cost}, what one pass of {estimator} takes for "
            f"{num_tokens} {'token' if num_tokens == 1 else 'tokens'}, got {max_nfe}; raise it or "
            "choose a cheaper estimator"
        )


def check_additive(owner: str, estimator: Estimator) -> None:
    """Check that the value of an estimator is a sum over positions.

    Args:
        owner: Function that was given the estimator, for the message.
        estimator: The estimator.

    Raises:
        ValueError: If it is not.
    """
    if not estimator.additive:
        raise ValueError(
            f"{owner}.estimator must add up terms of positions to give values by position, got "
            f"{estimator.name}, which averages under a logarithm; choose another estimator"
        )


@dataclass
class Passes:
    """Results of the passes of one stage over a row."""

    values: list[float] = field(default_factory=list)
    components: list[Float64[np.ndarray, " components"]] = field(default_factory=list)
    terms: list[Float64[np.ndarray, " L"]] = field(default_factory=list)

    def add(self, value: float, components: Float64[np.ndarray, " components"]) -> None:
        """Add a pass, from ``Estimator.combine``."""
        self.values.append(value)
        self.components.append(components)

    @property
    def mean(self) -> float:
        """Mean of the values."""
        return math.fsum(self.values) / len(self.values)

    @property
    def mean_terms(self) -> Float64[np.ndarray, " L"] | None:
        """Mean of the terms by position; ``None`` if they were not kept."""
        return np.mean(self.terms, axis=0) if self.terms else None

    @property
    def variance(self) -> float:
        """Unbiased estimate of the variance of one pass."""
        return math.fsum(map(math.fsum, self.components)) / len(self.components)

    def __add__(self, other: Passes) -> Passes:
        """Join these and the passes of another stage over the same row."""
        return Passes(
            self.values + other.values,
            self.components + other.components,
            self.terms + other.terms,
        )

    def degrees(self, estimator: Estimator) -> float:
        """Effective degrees of freedom of ``variance``; infinite if there is no randomness."""
        if estimator.exact:
            return math.inf
        components = np.sum(self.components, axis=0)
        each = len(self.components) * estimator.degrees / len(components)
        return effective_degrees(components, each)


class Outcome(NamedTuple):
    """The result of both stages for a row: see the attributes of ``Likelihood``."""

    nats: float
    standard_error: float
    degrees: float
    terms: Float64[np.ndarray, " L"] | None


@dataclass(frozen=True)
class Budget:
    """Number of passes over each row, in two stages if there is a target.

    The first stage measures the variance, which determines the length of the second. The estimate
    is w times the first mean plus 1 - w times the second. The weight w is the length of the first
    stage over the number of passes that ``max_nfe`` allows, or 0 without a limit. Since w is fixed
    in advance, the estimate is unbiased for any length of the second stage. If the whole budget is
    spent, the estimate is the plain mean of all passes, as with ``max_nfe`` alone. A weight that
    depended on the length of the second stage would depend on the first variance, and so, in a
    skewed distribution, on the first mean. Stopping as soon as the error looks small would be
    biased likewise: in a skewed distribution, values that happen to be close are small values.

    A variance that is too small by chance makes the second stage too short, and variances that are
    too large do not make up for that: with d degrees of freedom the mean of 1 / variance is
    d / (d - 2) times that of the true variance (chi-square). The second stage is planned for a
    variance larger by this factor. The root mean square of the errors is then about the target, and
    up to a third above it if a few rare masks make most of the variance. The reported standard
    error is that of the second stage. Its square is unbiased given the length, and it may be above
    or below the target. The standard error of the first stage would always be below, and too small
    by a quarter or more if a few rare masks make most of the variance.

    Source: Stein 1945, "A two-sample test for a linear hypothesis whose power is independent of the
    variance"; there the mean is over both stages, which is unbiased for normal distributions only,
    and the error is that of the first stage.

    Attributes:
        estimator: The estimator.
        target_se: See ``evaluate``.
        max_nfe: See ``evaluate``.
        per_call: See ``Denoiser.evaluations_per_call``.
    """

    estimator: Estimator
    target_se: float | None
    max_nfe: int | None
    per_call: int = 1

    def __post_init__(self) -> None:
        """Check what can be checked without data."""
        self.check(1)

    def check(self, num_tokens: int) -> None:
        """Check that the budget allows one pass over so many tokens; see ``check_budget``."""
        check_budget(
            self.estimator,
            num_tokens=num_tokens,
            target_se=self.target_se,
            max_nfe=self.max_nfe,
            per_call=self.per_call,
        )

    def first(self, cost: int) -> int:
        """Number of passes of the first stage."""
        most = math.inf if self.max_nfe is None else self.max_nfe // cost
        if self.estimator.exact or (self.target_se is None and self.max_nfe is None):
            return 1
        if self.target_se is None:
            return int(most)
        return int(min(most, math.ceil(_LEAST_DEGREES / self.estimator.degrees)))

    def second(self, first: Passes, cost: int) -> int:
        """Number of passes of the second stage; 0 without a target or if the budget is spent.

        Args:
            first: The first stage.
            cost: Network evaluations of a pass.
        """
        if self.estimator.exact or self.target_se is None:
            return 0
        passes = len(first.values)
        most = math.inf if self.max_nfe is None else self.max_nfe // cost - passes
        degrees = max(first.degrees(self.estimator), _TRUSTED_DEGREES)
        variance = first.variance * degrees / (degrees - 2)
        weight = self._weight(first, cost)
        left = self.target_se**2 - weight**2 * variance / passes
        if left <= 0:
            return int(most)
        # No shorter than the first, for the error to have as many degrees of freedom.
        needed = math.ceil((1 - weight) ** 2 * variance / left)
        return int(min(most, max(passes, needed)))

    def combine(self, first: Passes, second: Passes, cost: int) -> Outcome:
        """Combine the stages.

        Args:
            first: The first stage.
            second: The second stage; may be empty.
            cost: Network evaluations of a pass.
        """
        passes = first + second
        spent = self.max_nfe is not None and len(passes.values) == self.max_nfe // cost
        if spent or not second.values:
            error = math.sqrt(passes.variance / len(passes.values))
            return Outcome(passes.mean, error, passes.degrees(self.estimator), passes.mean_terms)
        weight = self._weight(first, cost)
        mean = weight * first.mean + (1 - weight) * second.mean
        per_pass = weight**2 / len(first.values) + (1 - weight) ** 2 / len(second.values)
        error = math.sqrt(second.variance * per_pass)
        terms = None
        if first.mean_terms is not None and second.mean_terms is not None:
            terms = weight * first.mean_terms + (1 - weight) * second.mean_terms
        return Outcome(mean, error, second.degrees(self.estimator), terms)

    def _weight(self, first: Passes, cost: int) -> float:
        """Length of the first stage over the number of passes that are allowed."""
        return 0.0 if self.max_nfe is None else len(first.values) / (self.max_nfe // cost)


@torch.no_grad()
def evaluate(
    denoiser: Denoiser,
    batches: Iterable[Batch],
    *,
    estimator: Estimator | None = None,
    evaluations: int | None = None,
    target_se: float | None = None,
    max_nfe: int | None = None,
    rows_per_call: int | None = None,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
    by_position: list[np.ndarray] | None = None,
) -> Likelihood:
    """Estimate the negative log-likelihood of every sequence, or a bound on it.

    The estimator makes one pass over each sequence, or as many as fit into ``max_nfe``, or as many
    as ``target_se`` requires, see ``Budget``. Positions outside ``loss_mask`` are context and not
    counted. Sequences without a counted position are left out. A sequence with a label is scored
    given its label. The result of a sequence is a function of its tokens, label, ``index``,
    ``mirrored`` and the seed; it does not depend on the batches. Sequences with the same ``index``
    have the same noise.

    Args:
        denoiser: The model in eval mode, on the device of the batches.
        batches: Rows to evaluate.
        estimator: By default ``usual_estimator`` of the model. For a chain of T steps this is the
            bound of continuous time; give ``DiscreteSteps(num_steps=T)`` for the bound of the
            chain. For block diffusion an estimator by masks is applied to each block, see
            ``BlockBound``.
        evaluations: Evaluations per pass of the default estimator.
        target_se: Standard error to aim at, in nats per sequence: about the root mean square of the
            errors. The reported error may be above or below it, see ``Budget``.
        max_nfe: Maximum number of network evaluations per sequence; takes precedence over
            ``target_se``.
        rows_per_call: Rows per network call, which may be evaluations of the same sequence; by
            default as many as the batch has sequences.
        seed: Seed of the draws, in [0, 2^32).
        progress: Called after each network call with the number of sequences done so far, a
            fraction for those in progress.
        by_position: A list to which the terms of each sequence of the result are added, ``[L]``:
            what each position contributes to its ``nats``, which they sum to, and 0 where nothing
            counts.

    Raises:
        ValueError: If an argument is out of range, the estimator does not fit the model, or does
            not add up terms of positions,
            ``max_nfe`` does not allow one pass, an unknown symbol counts, or no position counts. If
            ``batches`` is a sequence, ``max_nfe`` is checked before the first network call.
    """
    if estimator is None:
        estimator = usual_estimator(denoiser, evaluations=evaluations)
    elif evaluations is not None:
        raise ValueError(
            f"evaluate.evaluations must be left out if an estimator is given, got {evaluations} "
            f"and {estimator}; set it in the estimator"
        )
    else:
        estimator = fit(estimator, denoiser)
    if by_position is not None:
        check_additive("evaluate", estimator)
    budget = Budget(estimator, target_se, max_nfe, denoiser.evaluations_per_call)
    if rows_per_call is not None:
        require_at_least("evaluate.rows_per_call", rows_per_call, 1, "None is the batch's rows")
    if isinstance(batches, Sequence):  # else only known as they come
        budget.check(max([1, *(n for b in batches for n in b.loss_mask.sum(dim=-1).tolist())]))
    noise, done, parts = CounterNoise(seed), 0, []
    for batch in batches:
        rows, size = _counted_rows(batch, denoiser), len(batch.tokens)
        if len(rows.tokens):
            calls = size if rows_per_call is None else rows_per_call
            work = _Work(denoiser, budget, noise, calls, _teller(progress, done, size), by_position)
            parts.append(_evaluate_rows(work, rows))
        done += size
        if progress is not None:
            progress(done)
    if not parts:
        raise ValueError(
            "evaluate.batches must hold at least one position with loss_mask True, got none; "
            "check the split and that the sequences are not all unknown symbols"
        )
    return Likelihood(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _counted_rows(batch: Batch, denoiser: Denoiser) -> Batch:
    """Return the rows of a batch that have a counted position."""
    require_known("evaluate.batches", batch, denoiser)
    return batch.take(batch.loss_mask.any(dim=-1).nonzero().squeeze(-1))


def _teller(
    progress: Callable[[float], None] | None, done: int, size: int
) -> Callable[[float], None]:
    """Return a callback that reports a fraction of a batch as a number of sequences."""
    if progress is None:
        return lambda fraction: None
    return lambda fraction: progress(done + size * fraction)


@dataclass
class _Work:
    """Arguments of ``evaluate`` that every network call needs."""

    denoiser: Denoiser
    budget: Budget
    noise: CounterNoise
    rows_per_call: int
    tell: Callable[[float], None]
    by_position: list[np.ndarray] | None


def _evaluate_rows(work: _Work, rows: Batch) -> tuple[np.ndarray, ...]:
    """Return the columns of ``Likelihood`` for some rows."""
    budget, num_tokens = work.budget, rows.num_tokens
    budget.check(int(num_tokens.max()))
    costs = (budget.estimator.cost(num_tokens) * budget.per_call).tolist()
    calls = budget.estimator.calls(num_tokens).cpu()
    plan = [budget.first(c) for c in costs]
    half = 0.5 if budget.target_se is not None and not budget.estimator.exact else 1.0
    first = _stage(work, rows, calls, plan, begins=0, told=(0.0, half))
    more = [budget.second(passes, c) for passes, c in zip(first, costs, strict=True)]
    # All rows with a second stage had the longest first stage, so its noise is the same in any
    # batch.
    second = _stage(work, rows, calls, more, begins=max(plan), told=(half, 1.0))
    found = [budget.combine(*stages) for stages in zip(first, second, costs, strict=True)]
    nats, error, degrees = np.array([outcome[:3] for outcome in found]).T
    if work.by_position is not None:
        work.by_position += [outcome.terms for outcome in found if outcome.terms is not None]
    nfe = (np.array(plan) + np.array(more)) * np.array(costs)
    return nats, num_tokens.cpu().numpy(), error, nfe, degrees


def _stage(
    work: _Work,
    rows: Batch,
    calls: Int64[Tensor, " B"],
    plan: list[int],
    *,
    begins: int,
    told: tuple[float, float],
) -> list[Passes]:
    """Make the planned passes over each row.

    Args:
        work: Arguments of ``evaluate``.
        rows: The rows.
        calls: Calls of the estimator in one pass over each row.
        plan: Passes over each row.
        begins: Number of the first pass.
        told: Fractions of all work that are done before the stage and after it.
    """
    estimator, result = work.budget.estimator, [Passes() for _ in plan]
    total, spent = int((calls * torch.tensor(plan)).sum()), 0
    for number in range(max(plan)):
        active = [row for row, passes in enumerate(plan) if passes > number]
        chosen = torch.tensor(active)
        found: list[np.ndarray] = []
        added = _Added(estimator, calls[chosen].tolist(), rows.tokens.shape[1])
        for part in run_pass(
            estimator,
            work.denoiser,
            rows.take(chosen.to(rows.tokens.device)),
            calls=calls[chosen],
            noise=PassNoise(replace(work.noise, branch=begins + number)),
            rows_per_call=work.rows_per_call,
            by_position=work.by_position is not None,
        ):
            if work.by_position is not None:
                added.add(part)
            found.append(part if part.ndim == 1 else part.sum(axis=1))
            spent += len(part)
            work.tell(told[0] + (told[1] - told[0]) * spent / total)
        ends = calls[chosen].cumsum(dim=0)[:-1].numpy()
        for place, values in enumerate(np.split(np.concatenate(found), ends)):
            result[active[place]].add(*estimator.combine(values))
            if work.by_position is not None:
                result[active[place]].terms.append(added.terms[place])
    return result


class _Added:
    """Terms of one pass, added up over the calls of each row."""

    def __init__(self, estimator: Estimator, calls: list[int], length: int) -> None:
        self.terms = np.zeros((len(calls), length))
        self._row = np.repeat(np.arange(len(calls)), calls)
        self._factor = np.concatenate([estimator.coefficients(count) for count in calls])
        self._done = 0

    def add(self, terms: Float64[np.ndarray, "n L"]) -> None:
        """Add the terms of the next calls."""
        chosen = slice(self._done, self._done + len(terms))
        np.add.at(self.terms, self._row[chosen], self._factor[chosen, None] * terms)
        self._done += len(terms)
