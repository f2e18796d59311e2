"""95% intervals contain the truth 93% to 97% of the time, for the default estimators.

They are tested on four tables of arbitrary conditionals, one of them with long tails, and all their
sequences, with 10,000 rows each. If each of 40,000 intervals covers with 93.6% to 96.4%, fewer than
93% or more than 97% cover with a probability below 1e-6. Methods that cover 92.5% or less, such as
1.96 standard errors from few evaluations, fail with a power above 0.999.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import binom, t
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import (
    BernoulliTime,
    Estimator,
    ExactK,
    FixedOrder,
    ImportanceWeightedOrders,
    Likelihood,
    RandomOrderChain,
    StratifiedK,
    TimeIntegral,
    evaluate,
)
from seqdiff.likelihood.estimator import PassNoise
from seqdiff.likelihood.result import effective_degrees
from seqdiff.parameterization import LeaveOneOut, MaskColumn
from seqdiff.process import Absorbing, Hybrid, Uniform
from seqdiff.process.base import small_times
from seqdiff.schedules import Linear, LogLinear
from seqdiff.types import Batch
from tests.coverage_oracles import Table, order_nats
from tests.noise_worlds import TableBackbone

pytestmark = pytest.mark.slow

TABLES = (Table(3, 4, seed=7), Table(3, 4, seed=1), Table(4, 4, seed=2), Table(3, 4, 5, scale=3))
ROWS = 10_000
BAND = (0.93, 0.97)
# If all draws agree, the interval has no width, and both ends equal the truth up to rounding.
ROUNDING = 1e-9

DEFAULTS = [
    BernoulliTime(),
    BernoulliTime(convention="mdlm"),
    ExactK(),
    StratifiedK(),
    RandomOrderChain(),
    ImportanceWeightedOrders(),
]
FEW = [
    BernoulliTime(8),
    ExactK(8),
    StratifiedK(16),
    RandomOrderChain(2),
    ImportanceWeightedOrders(2, repeats=2),
]


@cache
def results(estimator: Estimator) -> list[tuple[Likelihood, np.ndarray]]:
    return [table.run(estimator, ROWS) for table in TABLES]


def shift(estimator: Estimator, truth: np.ndarray) -> np.ndarray:
    """The published convention omits less than 0.1%, much less than the width of an interval."""
    if isinstance(estimator, BernoulliTime) and estimator.convention == "mdlm":
        return truth * (1 - 5e-4)
    return truth


def covered(estimator: Estimator, *, normal: bool = False) -> float:
    """Fraction of intervals that contain the truth; ``normal`` uses 1.96 standard errors."""
    hits = []
    for result, truth in results(estimator):
        low, high = result.interval()
        if normal:
            low, high = (result.nats + sign * 1.96 * result.standard_error for sign in (-1, 1))
        aim = shift(estimator, truth)
        hits.append((low - ROUNDING <= aim) & (aim <= high + ROUNDING))
    return float(np.mean(hits))


@pytest.mark.parametrize("estimator", DEFAULTS, ids=str)
def test_95_percent_intervals_cover_the_truth_at_the_defaults(estimator: Estimator) -> None:
    share = covered(estimator)
    assert BAND[0] <= share <= BAND[1], share


@pytest.mark.parametrize("estimator", FEW, ids=str)
def test_as_many_standard_errors_of_few_evaluations_would_be_caught(estimator: Estimator) -> None:
    """Broken twin: the normal distribution instead of Student's t, which covers 65% to 91%."""
    assert covered(estimator, normal=True) < 0.925


@pytest.mark.parametrize("factor", [math.sqrt(2), math.sqrt(0.5)])
def test_a_wrong_standard_error_would_be_caught(factor: float) -> None:
    hits = [
        np.abs(r.nats - truth) <= t.isf(0.025, r.degrees) * factor * r.standard_error
        for r, truth in results(StratifiedK())
    ]
    assert not BAND[0] <= np.mean(hits) <= BAND[1]


def test_the_error_rates_written_above() -> None:
    rows = ROWS * len(TABLES)
    for true in (0.936, 0.964):
        low, high = binom.cdf(BAND[0] * rows - 1, rows, true), binom.sf(BAND[1] * rows, rows, true)
        assert low + high < 1e-6
    assert binom.sf(BAND[0] * rows - 1, rows, 0.925) < 1e-3


def test_an_importance_weighted_interval_is_not_about_infinitely_many_orders() -> None:
    """It covers the bound for its number of orders; the limit lies below, outside of
    the interval.
    """
    estimator, table = ImportanceWeightedOrders(2, repeats=64), TABLES[0]
    result, _ = table.run(estimator, 810)
    nats = order_nats(table)
    limit = -np.logaddexp.reduce(-nats, axis=0) + math.log(len(nats))
    low, _ = result.interval()
    assert np.mean(low > limit[np.arange(810) % 81]) > 0.5


class FlatIntegral(TimeIntegral):
    """Broken: the density of noise fractions above 2/n is uniform, as in ``BernoulliTime``."""

    def integrand(
        self, denoiser: Denoiser, batch: Batch, u: Tensor, draw: Tensor, noise: PassNoise
    ) -> Tensor:
        place, slope = small_times(u, 2 / batch.num_tokens.double())
        return self.terms_at(denoiser, batch, place, slope, noise.positions(batch, draw))


def covered_by_times(estimator: TimeIntegral) -> float:
    """Coverage for three processes on rows of 64 independent tokens whose exact model is known."""
    rows, length, symbols = 600, 64, 4
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(length, symbols, generator=generator, dtype=torch.float64) / 2
    table = table.log_softmax(dim=-1)
    x = torch.multinomial(table.exp(), 1, generator=generator)
    truth = -float(table.gather(1, x).sum())
    every = torch.ones(rows, length, dtype=torch.bool)
    batch = Batch(x.T.expand(rows, -1), every, torch.arange(rows))
    never = torch.full((length, 1), -30.0, dtype=torch.float64)
    hits = []
    for process, parameterization, outputs in (
        (Uniform(symbols, Linear()), LeaveOneOut(), table),
        (Hybrid(symbols, 0.1), LeaveOneOut(), table),
        (Absorbing(symbols, LogLinear()), MaskColumn(), torch.cat((table, never), dim=1)),
    ):
        backbone = TableBackbone(lambda z, t, o=outputs: o.expand(len(z), -1, -1), outputs.shape[1])
        denoiser = Denoiser(backbone, process, parameterization).eval()
        low, high = evaluate(denoiser, [batch], estimator=estimator).interval()
        hits.append((low <= truth) & (truth <= high))
    return float(np.mean(hits))


def test_intervals_of_integrals_over_times_cover_too() -> None:
    """If 1,800 intervals cover with 0.945 to 0.96, fewer than 92% or over 98% cover with p < 1e-4.

    The measured coverage is 95.6%, and 88% for the broken twin, for which over 91% has p < 1e-4.
    """
    assert 0.92 <= covered_by_times(TimeIntegral()) <= 0.98
    assert covered_by_times(FlatIntegral()) < 0.91
    for true in (0.945, 0.96):
        assert binom.cdf(0.92 * 1_800 - 1, 1_800, true) + binom.sf(0.98 * 1_800, 1_800, true) < 1e-4
    assert binom.sf(0.91 * 1_800, 1_800, 0.88) < 1e-4


def test_levels_and_exact_estimates() -> None:
    (result, _), *_ = results(ExactK())
    for level in (0.5, 0.8, 0.99):
        low, high = result.interval(level)
        half = t.isf((1 - level) / 2, 31) * result.standard_error
        np.testing.assert_allclose(high - low, 2 * half, rtol=1e-9)
        np.testing.assert_allclose(high + low, 2 * result.nats, rtol=1e-12)
    exact, truth = TABLES[0].run(FixedOrder(), 81)
    low, high = exact.interval()
    assert (low == exact.nats).all() and (high == exact.nats).all()
    assert np.isinf(exact.degrees).all() and not np.allclose(truth, exact.nats)


def test_effective_degrees_of_normal_draws() -> None:
    """Satterthwaite's number, for variances with one degree of freedom each.

    10,000 sums of 16 squares, with equal and with very different variances. The median is 1.00 and
    1.64 of the value from the true variances; without the correction it is 0.40 and 0.77.
    """
    rng = np.random.default_rng(0)
    for variances, least, most in ((np.ones(16), 0.9, 1.0), (0.5 ** np.arange(16), 1.0, 1.8)):
        draws = variances * rng.standard_normal((10_000, 16)) ** 2
        exact = variances.sum() ** 2 / (variances**2).sum()
        found = np.array([effective_degrees(row, 1.0) for row in draws])
        assert 1 <= found.min() and found.max() <= 16
        assert least <= np.median(found) / exact <= most
        uncorrected = draws.sum(axis=1) ** 2 / (draws**2).sum(axis=1)
        assert np.median(uncorrected) / exact < 0.85, "must not pass"
    assert effective_degrees(np.array([2.0]), 31.0) == pytest.approx(31)
    assert effective_degrees(np.array([2.0, 2.0]), np.array([8.0, 8.0])) <= 16
    assert effective_degrees(np.zeros(4), 1.0) == 4
