"""Gaussian diffusion with its own draws: the estimator, the objective and the sampler."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from seqdiff import losses
from seqdiff.likelihood import GaussianIntegral, contrast, evaluate
from seqdiff.objectives import GaussianVLB
from seqdiff.objectives.time_sampling import Importance, Sobol, TimeSampler
from seqdiff.rng import CounterNoise
from seqdiff.samplers import GaussianSampler
from tests.exact.test_gaussian_sampler import exact_distribution
from tests.gaussian_worlds import bound, coin_world, planar_world, rows_of
from tests.statistics import FALSE_ALARM, pearson, power

P = (0.6, 0.3, 0.1)
ROWS = 2000
IMPORTANCE = Importance((3.0, 1.0), Sobol())
# |mean - truth| exceeds this many standard errors with probability FALSE_ALARM.
LIMIT = float(norm.isf(FALSE_ALARM / 2))


@pytest.fixture(scope="module")
def truth() -> float:
    return sum(bound(planar_world(P, ends=(-2.0, 3.0)), (1,), points=81, times=32))


def _deviation(truth: float) -> tuple[float, float]:
    """Distance of the mean estimate from the truth in standard errors, and that error."""
    world = planar_world(P, ends=(-2.0, 3.0))
    found = evaluate(world, [rows_of((1,), ROWS)], estimator=GaussianIntegral(evaluations=4))
    error = float(found.nats.std(ddof=1)) / math.sqrt(ROWS)
    claimed = float((found.standard_error**2).mean() ** 0.5) / math.sqrt(ROWS)
    assert claimed == pytest.approx(error, rel=0.15), "standard errors are honest"
    return abs(float(found.nats.mean()) - truth) / error, error


def test_estimator_is_unbiased(truth: float):
    """False-alarm rate 1e-6. A density without its factor 1/2 is off by 1 nat, 40 errors."""
    deviation, error = _deviation(truth)
    assert deviation < LIMIT
    assert error < 0.03


def test_estimator_of_a_broken_density_is_caught(truth: float, monkeypatch: pytest.MonkeyPatch):
    original = losses.gaussian_nelbo
    monkeypatch.setattr(losses, "gaussian_nelbo", lambda *args: 2 * original(*args))
    assert _deviation(truth)[0] > 2 * LIMIT


def _objective(times: TimeSampler) -> tuple[float, float]:
    """Mean of the objective over many rows, and an upper bound of its error, since times are
    spread.
    """
    world, rows = planar_world(P, ends=(-2.0, 3.0)), 20_000
    with torch.no_grad():
        nats = GaussianVLB(times).terms(world, rows_of((1,), rows), CounterNoise(1)).sum(dim=-1)
    return float(nats.mean()), float(nats.std()) / math.sqrt(rows)


class WithoutDensity(TimeSampler):
    """Broken twin: importance times without the inverse density."""

    def sample(self, index: Tensor, *, noise: CounterNoise) -> tuple[Tensor, Tensor]:
        t, _ = IMPORTANCE.sample(index, noise=noise)
        return t, torch.ones_like(t)


@pytest.mark.parametrize("times", [Sobol(), IMPORTANCE], ids=["sobol", "importance"])
def test_objective_is_unbiased(times: TimeSampler, truth: float):
    """The objective, with reconstruction on an eighth of the rows; false-alarm rate 1e-6.

    An objective without the reconstruction term is off by its .15 nats, 7 errors; the power is
    above .95.
    """
    mean, error = _objective(times)
    assert abs(mean - truth) < LIMIT * error
    world = planar_world(P, ends=(-2.0, 3.0))
    forgotten = bound(world, (1,), points=81, times=32)[0]
    assert norm.sf(LIMIT - forgotten / error) > 0.95


def test_objective_without_the_density_of_its_times_is_caught(truth: float):
    mean, error = _objective(WithoutDensity())
    assert abs(mean - truth) > 2 * LIMIT * error


def test_sampler_draws_the_written_distribution():
    """False-alarm rate 1e-6. An ancestral step without the prior p is caught with power .99."""
    steps, count = 8, 6000
    world = coin_world(ends=(-3.0, 10.0))
    drawn = GaussianSampler(num_steps=steps).sample(
        world, world.process.blank((count, 1)), seeds=torch.arange(count)
    )
    counts = torch.bincount(drawn.tokens.flatten(), minlength=2).double()
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    gammas = world.schedule(times).gamma.detach()
    distribution = exact_distribution((0.8, 0.2), gammas)
    statistic, limit = pearson(counts, distribution)
    assert statistic < limit
    assert power(exact_distribution((0.5, 0.5), gammas), distribution, count) > 0.99
    # p itself, the limit of many steps, differs from the distribution of 8 steps
    assert abs(float(distribution[0]) - 0.8) > 0.005


def test_samples_tend_to_the_data_as_steps_grow():
    """64 steps against p itself: this sample cannot tell them apart; it can for 4 steps."""
    p, count = torch.tensor([0.8, 0.2], dtype=torch.float64), 6000
    world = coin_world(ends=(-3.0, 10.0))

    def statistic(steps: int) -> tuple[float, float]:
        drawn = GaussianSampler(num_steps=steps).sample(
            world, world.process.blank((count, 1)), seeds=torch.arange(count)
        )
        return pearson(torch.bincount(drawn.tokens.flatten(), minlength=2).double(), p)

    many, limit = statistic(64)
    assert many < limit
    few, limit = statistic(2)
    assert few > limit


def test_contrast_of_two_rows_shares_their_noise(truth: float):
    world = planar_world(P, ends=(-2.0, 3.0))
    first, second = rows_of((1,), 400), rows_of((0,), 400)
    found = contrast(world, first, second, estimator=GaussianIntegral(evaluations=8))
    other = sum(bound(world, (0,), points=81, times=32))
    error = float(found.nats.std(ddof=1)) / 20
    assert abs(float(found.nats.mean()) - (truth - other)) < LIMIT * error
