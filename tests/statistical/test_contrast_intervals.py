"""95% intervals of differences contain the truth, in each of twelve worlds.

Each world is a joint distribution over five bases. The ratio of two rows that differ in the middle
is estimated 4,000 times, as the mean of two directions with independent draws. If a world's
intervals cover at least 94%, fewer than 92% of them contain the truth with a probability below
1e-6. The broken twin, ``StratifiedK``, covers 82% in the worst world; it reaches 92% with a
probability far below 1e-3.
"""

import math
from dataclasses import fields
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import Estimator, Likelihood, SmallK, StratifiedK, contrast, usual_contrast
from seqdiff.types import Batch, Inputs
from tests.oracles import Joint, LookupBackbone, OracleBackbone, all_sequences, masked_model

pytestmark = pytest.mark.slow

WORLDS = range(20, 32)
WORST = 28
REPEATS = 4000
LEAST = 0.92
K = 4
FIRST, SECOND = torch.tensor([2, 3, 3, 2, 1]), torch.tensor([2, 3, 2, 2, 1])
Z = norm.isf(0.5e-6)


def tabulated(joint: Joint) -> Denoiser:
    """The exact conditionals, from a table."""
    network = LookupBackbone(K, joint.length, seed=0)
    network.table = OracleBackbone(joint)(Inputs(all_sequences(K + 1, joint.length)))
    return masked_model(network)


def there(row: torch.Tensor) -> torch.Tensor:
    """The reverse complement of a row."""
    return 3 - row.flip(0)


@cache
def errors(world: int, estimator: Estimator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each estimate minus the truth, whether its interval contains the truth, and its error."""
    joint = Joint.random(K, len(FIRST), seed=world)

    def batch(row: torch.Tensor) -> Batch:
        rows = torch.stack((row, there(row))).repeat(REPEATS, 1)
        return Batch(rows, torch.ones_like(rows, dtype=torch.bool), torch.arange(len(rows)))

    def log_prob(row: torch.Tensor) -> float:
        return float(joint.probs[(joint.sequences == row).all(dim=-1)].log())

    found = contrast(
        tabulated(joint),
        batch(FIRST),
        batch(SECOND),
        estimator=estimator,
        rows_per_call=1 << 16,
    )
    truth = sum(log_prob(turn(SECOND)) - log_prob(turn(FIRST)) for turn in (there, torch.clone)) / 2
    means = [found.mean_of([2 * i, 2 * i + 1]) for i in range(REPEATS)]
    columns = [[getattr(mean, field.name) for mean in means] for field in fields(Likelihood)]
    mean = Likelihood(*(np.concatenate(column) for column in columns))
    low, high = mean.interval()
    return mean.nats - truth, (low <= truth) & (truth <= high), mean.standard_error


def test_the_usual_estimator_of_differences() -> None:
    assert usual_contrast(tabulated(Joint.random(K, 5, seed=0))) == SmallK(32)


@pytest.mark.parametrize("world", WORLDS)
def test_it_covers_the_truth_and_is_unbiased(world: int) -> None:
    gap, held, error = errors(world, SmallK())
    assert held.mean() >= LEAST
    assert abs(gap.mean()) < Z * gap.std() / math.sqrt(REPEATS)
    excess = error**2 - gap**2
    assert abs(excess.mean()) < Z * excess.std() / math.sqrt(REPEATS)


def test_with_k_uniform_the_worst_world_would_be_caught() -> None:
    gap, held, _ = errors(WORST, StratifiedK())
    assert held.mean() < 0.9
    assert gap.var() > 1.5 * errors(WORST, SmallK())[0].var(), "and it varies more"


def test_the_error_rates_written_above() -> None:
    below = LEAST * REPEATS - 1
    assert binom.cdf(below, REPEATS, 0.94) < 1e-6
    assert binom.sf(below, REPEATS, 0.85) < 1e-3
