"""Differences of likelihoods with shared masks, against enumeration and against ``evaluate``."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import (
    ChainRule,
    FixedOrder,
    ImportanceWeightedOrders,
    Likelihood,
    StratifiedK,
    contrast,
    evaluate,
)
from seqdiff.process import LeftToRight
from seqdiff.types import Batch
from tests.causal_worlds import CausalLookup
from tests.oracles import Joint, LookupBackbone, OracleBackbone, masked_model

K, L = 3, 5


def near_sighted() -> Joint:
    """A joint distribution whose ends depend little on the middle, like distant bases
    of a variant.
    """
    generator = torch.Generator().manual_seed(0)
    strong = torch.randn(2, K, K, dtype=torch.float64, generator=generator).mul(2).exp()
    weak = torch.randn(K, K, K, dtype=torch.float64, generator=generator).mul(0.5).exp()
    probs = torch.einsum("ab,bcd,de->abcde", strong[0], weak, strong[1]).flatten()
    return Joint(K, L, probs / probs.sum())


JOINT = near_sighted()
ORACLE = masked_model(OracleBackbone(JOINT))
FIRST, SECOND = torch.tensor([2, 0, 1, 1, 2]), torch.tensor([2, 0, 2, 1, 2])
Z = norm.isf(0.5e-6)


def batch(row: torch.Tensor, index: torch.Tensor) -> Batch:
    rows = row.expand(len(index), -1)
    return Batch(rows, torch.ones_like(rows, dtype=torch.bool), index)


def log_prob(row: torch.Tensor) -> float:
    return float(JOINT.probs[(JOINT.sequences == row).all(dim=-1)].log())


def twice(estimator, index: torch.Tensor, seeds: tuple[int, int]) -> list[Likelihood]:
    return [
        evaluate(ORACLE, [batch(row, index)], estimator=estimator, seed=seed)
        for row, seed in zip((FIRST, SECOND), seeds, strict=True)
    ]


@pytest.mark.parametrize("estimator", [StratifiedK(8), FixedOrder()])
@pytest.mark.parametrize("rows_per_call", [None, 1, 7])
def test_it_is_the_difference_of_two_evaluations(estimator, rows_per_call) -> None:
    index = torch.arange(5)
    found = contrast(
        ORACLE,
        batch(FIRST, index),
        batch(SECOND, index),
        estimator=estimator,
        rows_per_call=rows_per_call,
        seed=4,
    )
    ours, theirs = twice(estimator, index, (4, 4))
    np.testing.assert_allclose(found.nats, ours.nats - theirs.nats, rtol=0, atol=1e-12)
    np.testing.assert_array_equal(found.nfe, ours.nfe + theirs.nfe)


def test_the_chain_of_a_joint_distribution_gives_its_ratio() -> None:
    index = torch.arange(1)
    estimator = FixedOrder()
    found = contrast(ORACLE, batch(FIRST, index), batch(SECOND, index), estimator=estimator)
    assert abs(found.nats[0] - (log_prob(SECOND) - log_prob(FIRST))) < 1e-12
    backwards = contrast(ORACLE, batch(SECOND, index), batch(FIRST, index), estimator=estimator)
    assert abs(backwards.nats[0] - found.nats[0]) > 0.1, "the twin with the sign lost"


def test_an_autoregressive_model_is_exact() -> None:
    network = CausalLookup(K, L, seed=1)
    distribution, index = network.distribution().log(), torch.arange(1)
    model = Denoiser(network, LeftToRight(K))
    found = contrast(model, batch(FIRST, index), batch(SECOND, index))
    places = [int((JOINT.sequences == row).all(dim=-1).nonzero()) for row in (FIRST, SECOND)]
    assert abs(found.nats[0] - float(distribution[places[1]] - distribution[places[0]])) < 1e-12
    assert found.standard_error[0] == 0 and math.isinf(found.degrees[0]) and found.nfe[0] == 2


@pytest.mark.slow
def test_masks_share_the_truth_and_the_error_is_honest() -> None:
    """4,000 pairs of 8 evaluations; the false-alarm rate of each assertion is 1e-6.

    The mean of the squared errors agrees with the variance. The broken twin adds the errors, as for
    independent estimates, and is caught with a power above 0.999, by 3.1 standard deviations.
    """
    index = torch.arange(4000)
    found = contrast(
        ORACLE,
        batch(FIRST, index),
        batch(SECOND, index),
        estimator=StratifiedK(8),
    )
    truth = log_prob(SECOND) - log_prob(FIRST)
    error = found.nats - truth
    assert abs(error.mean()) < Z * error.std() / math.sqrt(len(error))
    assert abs(truth) > 10 * Z * error.std() / math.sqrt(len(error)), "power against a lost sign"

    def excess(squares: np.ndarray) -> float:
        gap = squares - error**2
        return abs(gap.mean()) / (gap.std() / math.sqrt(len(gap)))

    assert excess(found.standard_error**2) < Z
    ours, theirs = twice(StratifiedK(8), index, (0, 0))
    assert excess(ours.standard_error**2 + theirs.standard_error**2) > Z + 3.1


@pytest.mark.slow
def test_shared_masks_reduce_the_variance() -> None:
    """Broken twin: independent masks for both rows, whose variance is twenty times as large.

    With 4,000 draws the ratio of the variances is known to about 5%.
    """
    index = torch.arange(4000)
    estimator = StratifiedK(8)
    pairs = batch(FIRST, index), batch(SECOND, index)
    shared = contrast(ORACLE, *pairs, estimator=estimator).nats
    ours, theirs = twice(estimator, index, (0, 1))
    assert (ours.nats - theirs.nats).var() > 10 * shared.var()


def reversed_noise(row: torch.Tensor) -> Batch:
    return replace(batch(row, torch.arange(1)), mirrored=torch.ones(1, dtype=torch.bool))


@pytest.mark.parametrize(
    ("second", "estimator", "message"),
    [
        (reversed_noise(SECOND), None, "contrast.second must have the mirrored of first"),
        (batch(SECOND, torch.arange(1) + 1), None, "contrast.second must have the index of first"),
        (batch(SECOND[:-1], torch.arange(1)), None, "contrast.second must have the shape of first"),
        (batch(SECOND, torch.arange(1)), ImportanceWeightedOrders(), "must be linear"),
        (
            batch(SECOND, torch.arange(1)),
            ChainRule(),
            "must be .* got chain-rule; leave",
        ),
    ],
)
def test_refusals(second, estimator, message) -> None:
    with pytest.raises(ValueError, match=message):
        first = batch(FIRST, torch.arange(1))
        contrast(ORACLE, first, second, estimator=estimator)


def test_both_may_be_mirrored_but_not_one_way_each() -> None:
    good = reversed_noise(FIRST)
    found = contrast(ORACLE, good, reversed_noise(SECOND))
    assert found.nats.shape == (1,)
    assert good.mirrored is not None
    other = replace(reversed_noise(SECOND), mirrored=~good.mirrored)
    with pytest.raises(ValueError, match=r"contrast.second must have the mirrored of first"):
        contrast(ORACLE, good, other)


def test_rows_that_are_alike_are_shown_once_and_only_those() -> None:
    """Rows differ if anything differs that determines noise or context."""
    network = LookupBackbone(K, L, seed=0)
    rows = torch.stack((FIRST, FIRST, FIRST, FIRST, FIRST, SECOND))
    counted = torch.ones_like(rows, dtype=torch.bool)
    counted[2, 0] = False
    index = torch.tensor([0, 0, 0, 1, 0, 0])
    mirrored = torch.tensor([False, False, False, False, True, False])
    first = Batch(rows, counted, index, mirrored=mirrored)
    second = replace(first, tokens=SECOND.expand(6, -1))
    arguments = {"estimator": StratifiedK(4), "rows_per_call": 5}
    found = contrast(masked_model(network), first, second, **arguments)
    assert sum(network.rows_seen) == 4 * (4 + 4)
    for row in range(6):
        pair = [
            Batch(
                *(part[row : row + 1] for part in (b.tokens, counted, index)),
                mirrored=mirrored[row : row + 1],
            )
            for b in (first, second)
        ]
        alone = contrast(masked_model(network), *pair, **arguments)
        assert alone.nats[0] == found.nats[row]
        assert alone.standard_error[0] == found.standard_error[row]
    assert found.nfe.tolist() == [8] * 6


def test_rows_that_count_nothing_known() -> None:
    good, index = batch(FIRST, torch.arange(1)), torch.arange(1)
    blank = Batch(FIRST[None], torch.zeros(1, L, dtype=torch.bool), index)
    with pytest.raises(ValueError, match=r"contrast.second must count at least one position"):
        contrast(ORACLE, good, blank)
    unknown = batch(torch.tensor([0, 1, 2, K, 0]), index)
    with pytest.raises(ValueError, match=r"contrast.first must hold ids below 3"):
        contrast(ORACLE, unknown, good)
    fewer = Batch(FIRST[None], torch.ones(1, L, dtype=torch.bool), index)
    fewer.loss_mask[0, 0] = False
    with pytest.raises(ValueError, match="as many evaluations of a row as of its partner"):
        contrast(ORACLE, good, fewer, estimator=FixedOrder())
