"""Stopping at a target: honoured, without any bias, and with intervals that still cover.

Means: a false alarm has probability 1e-6 (4.9 standard errors); the named broken twin, which stops
as soon as the error so far looks small, is off by 10 standard errors and so is caught with a power
above 0.999.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import norm

from seqdiff.likelihood import (
    BernoulliTime,
    Estimator,
    ExactK,
    ImportanceWeightedOrders,
    RandomOrderChain,
    StratifiedK,
    stages,
)
from seqdiff.likelihood.stages import Budget, Outcome, Passes
from tests.coverage_oracles import Table

TABLE, SKEWED = Table(3, 4, seed=7), Table(3, 4, seed=5, scale=3)
SIGMAS = float(norm.isf(0.5e-6))
ROWS = 81 * 25

CASES = [
    (BernoulliTime(16), 0.4),
    (BernoulliTime(16, convention="mdlm"), 0.4),
    (ExactK(16), 0.4),
    (StratifiedK(16), 0.4),
    (StratifiedK(2), 0.4),
    (RandomOrderChain(2), 0.2),
    (ImportanceWeightedOrders(2, repeats=2), 0.15),
]


def cost(estimator: Estimator) -> int:
    """Evaluations of a pass over four tokens."""
    return int(estimator.cost(torch.tensor([4])))


def bias(errors: np.ndarray) -> float:
    """In standard errors."""
    return float(errors.mean() / errors.std() * math.sqrt(len(errors)))


@pytest.mark.parametrize("table", [TABLE, SKEWED], ids=["plain", "skewed"])
@pytest.mark.parametrize(("estimator", "target"), CASES, ids=str)
def test_a_target_is_honoured_without_bias(
    estimator: Estimator, target: float, table: Table
) -> None:
    """The spread is a little above the target, as the first stage's variance is uncertain.

    Measured on 20,000 sequences it is 1.15 targets at most; 2,025 add 0.08 at 1e-6.
    """
    target *= table.scale
    result, truth = table.run(estimator, ROWS, target_se=target)
    errors = result.nats - truth
    assert (result.standard_error <= target).all()
    assert abs(bias(errors)) < SIGMAS
    assert np.sqrt((errors**2).mean()) < target * (1.15 + SIGMAS / math.sqrt(2 * ROWS))
    assert len(set(result.nfe.tolist())) > 1, "sequences stop one by one"


def stop_when_small(estimator: BernoulliTime, target: float, passes: int) -> np.ndarray:
    """Errors of the twin: go on until the error of all draws so far is no more than the target."""
    runs = [TABLE.run(estimator, 2 * ROWS, seed=number) for number in range(passes)]
    values = np.stack([run.nats for run, _ in runs])
    variances = np.stack([run.standard_error**2 for run, _ in runs])
    count = np.arange(1, passes + 1)[:, None]
    error = np.sqrt(variances.cumsum(axis=0)) / count
    small = (error <= target) & (count * estimator.degrees >= 15)
    small[-1] = True
    mean = (values.cumsum(axis=0) / count)[small.argmax(axis=0), np.arange(2 * ROWS)]
    return mean - runs[0][1]


def test_stopping_when_the_error_looks_small_would_be_caught() -> None:
    estimator = BernoulliTime(8)
    assert bias(stop_when_small(estimator, 0.8, 20)) < -2 * SIGMAS
    result, truth = TABLE.run(estimator, 2 * ROWS, target_se=0.8)
    assert abs(bias(result.nats - truth)) < SIGMAS


def test_a_short_first_stage_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken twin: trusting a variance of two draws."""
    monkeypatch.setattr(stages, "_LEAST_DEGREES", 1)
    result, truth = TABLE.run(StratifiedK(2), ROWS, target_se=0.4)
    assert (result.standard_error <= 0.4).all()
    assert np.sqrt(((result.nats - truth) ** 2).mean()) > 2 * 0.4


@pytest.mark.parametrize(
    ("estimator", "target"),
    [(ExactK(), 0.4), (StratifiedK(), 0.4), (RandomOrderChain(), 0.2)],
    ids=str,
)
@pytest.mark.parametrize("limited", [False, True], ids=["free", "limited"])
def test_intervals_after_stopping_cover(estimator: Estimator, target: float, limited: bool) -> None:
    """12,000 rows: 94.3% to 95.7% leave the band of 93% to 97% with probability below 1e-6."""
    passes = 3 * math.ceil(15 / estimator.degrees)  # three times the first stage
    budget = passes * cost(estimator) if limited else None
    result, truth = TABLE.run(estimator, 12_000, target_se=target, max_nfe=budget)
    if budget is not None:
        assert 0.01 < np.mean(result.nfe == budget) < 0.99, "some rows meet the limit"
    low, high = result.interval()
    share = np.mean((low <= truth) & (truth <= high))
    assert 0.93 <= share <= 0.97, share
    narrow = np.mean(np.abs(result.nats - truth) <= 1.4 * result.standard_error)
    assert narrow < 0.93, "an error too small by sqrt 2 must not pass"


def test_a_budget_comes_before_the_target() -> None:
    """Enough for the first stage alone, then for part of the second."""
    for budget, spent in ((40, 32), (70, 64), (10**6, None)):
        result, truth = TABLE.run(ExactK(), ROWS, target_se=0.05, max_nfe=budget)
        assert abs(bias(result.nats - truth)) < SIGMAS
        if spent is None:
            assert (result.standard_error <= 0.05).all() and (result.nfe <= budget).all()
        else:
            assert (result.nfe == spent).all() and (result.standard_error > 0.05).any()


@pytest.mark.parametrize("table", [TABLE, SKEWED], ids=["plain", "skewed"])
@pytest.mark.parametrize("estimator", [ExactK(16), RandomOrderChain(2)], ids=str)
@pytest.mark.parametrize("passes", [1, 5, 20])
def test_a_target_out_of_reach_wastes_nothing(
    estimator: Estimator, table: Table, passes: int
) -> None:
    """Row by row what the budget alone gives, whether or not the first stage uses all of it."""
    budget = passes * cost(estimator)
    bound, _ = table.run(estimator, 81, target_se=1e-6, max_nfe=budget)
    alone, _ = table.run(estimator, 81, max_nfe=budget)
    for column in ("nats", "standard_error", "nfe", "degrees"):
        assert getattr(bound, column).tolist() == getattr(alone, column).tolist(), column


def mean_of_all(self: Budget, first: Passes, second: Passes, cost: int) -> Outcome:
    """The broken twin: weights that follow the length of the second stage."""
    passes = first + second
    error = math.sqrt(passes.variance / len(passes.values))
    return Outcome(passes.mean, error, passes.degrees(self.estimator))


def test_a_budget_that_some_rows_meet_does_not_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured, the twin is off by 12 standard errors here: caught with a power above 0.999."""
    rows, estimator, arguments = 81 * 600, ExactK(16), {"target_se": 1.2, "max_nfe": 64}
    result, truth = SKEWED.run(estimator, rows, **arguments)
    met = result.nfe == 64
    assert 0.1 < met.mean() < 0.9
    assert (result.standard_error[~met] <= 1.2).all() and met[result.standard_error > 1.2].all()
    assert abs(bias(result.nats - truth)) < SIGMAS
    monkeypatch.setattr(Budget, "combine", mean_of_all)
    result, truth = SKEWED.run(estimator, rows, **arguments)
    assert bias(result.nats - truth) < -1.5 * SIGMAS
