"""The likelihood estimators with real noise: unbiased, with honest errors and few evaluations.

The false-alarm rate of each mean is 1e-6 (4.9 standard errors). The expectation of each named wrong
estimator is at least 10 standard errors away, so it fails with a power above 0.999.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

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
    evaluate,
)
from seqdiff.schedules import Cosine
from seqdiff.types import Batch, Inputs
from tests.oracles import LookupBackbone, all_sequences, masked_model

K, L = 3, 4
SEQUENCES = all_sequences(K, L)
ORDERS = list(itertools.permutations(range(L)))
SIGMAS = float(norm.isf(0.5e-6))


def table() -> Denoiser:
    return masked_model(LookupBackbone(K, L, seed=7), Cosine())


def order_nats() -> np.ndarray:
    """-log p_o of every order (rows) and every sequence (columns)."""
    denoiser, nats = table(), np.zeros((len(ORDERS), len(SEQUENCES)))
    for row, order in enumerate(ORDERS):
        x_t = torch.full_like(SEQUENCES, K)
        for place in order:
            at_x0 = denoiser(Inputs(x_t))[:, place].gather(-1, SEQUENCES[:, place, None])[:, 0]
            nats[row] -= at_x0.numpy()
            x_t[:, place] = SEQUENCES[:, place]
    return nats


def truth(estimator: Estimator) -> np.ndarray:
    """The expected estimate for each sequence."""
    nats = order_nats()
    if isinstance(estimator, ImportanceWeightedOrders):
        assert estimator.orders == 2
        pairs = np.logaddexp(-nats[:, None], -nats[None]) - math.log(2)
        return -pairs.mean(axis=(0, 1))
    if isinstance(estimator, FixedOrder):
        return nats[ORDERS.index(tuple(range(L)))]
    return nats.mean(axis=0)


def batch(rows: int, first: int = 0) -> Batch:
    index = torch.arange(first, first + rows)
    return Batch(SEQUENCES[index % len(SEQUENCES)], torch.ones(rows, L, dtype=torch.bool), index)


def run(estimator: Estimator, rows: int, **budget) -> tuple[Likelihood, np.ndarray]:
    """The result, and the error of each sequence."""
    result = evaluate(table(), [batch(rows)], estimator=estimator, **budget)
    return result, result.nats - truth(estimator)[np.arange(rows) % len(SEQUENCES)]


FEW = [
    BernoulliTime(8),
    ExactK(8),
    StratifiedK(8),
    RandomOrderChain(2),
    ImportanceWeightedOrders(2, repeats=2),
]


def name(estimator: Estimator) -> str:
    return estimator.name


@pytest.mark.parametrize("estimator", FEW, ids=name)
def test_each_is_unbiased_with_an_unbiased_squared_error(estimator: Estimator) -> None:
    rows = 81 * 100
    result, errors = run(estimator, rows)
    assert abs(errors.mean()) < SIGMAS * errors.std() / math.sqrt(rows)
    claimed, seen = result.standard_error**2, errors**2
    noise = math.sqrt((claimed.var() + seen.var()) / rows)
    assert abs(claimed.mean() - seen.mean()) < SIGMAS * noise
    assert abs(claimed.mean() / 2 - seen.mean()) > SIGMAS * noise, "off by sqrt 2 must not pass"


@pytest.mark.slow
def test_the_order_bounds_are_told_apart() -> None:
    """Broken twins: each estimator is compared with the target of another one."""
    rows = 81 * 100
    for estimator, other in ((FEW[3], FEW[4]), (FEW[4], FEW[3]), (FEW[1], FixedOrder())):
        result, _ = run(estimator, rows)
        errors = result.nats - truth(other)[np.arange(rows) % len(SEQUENCES)]
        assert abs(errors.mean()) > 10 * errors.std() / math.sqrt(rows)


@pytest.mark.parametrize("estimator", [*FEW, FixedOrder()], ids=name)
@pytest.mark.parametrize(("target", "budget"), [(None, 64), (0.5, 100), (1e-9, 100)])
def test_the_budget_is_used_and_never_exceeded(
    estimator: Estimator, target: float | None, budget: int
) -> None:
    denoiser = table()
    cost = int(estimator.cost(torch.tensor([L])))
    result = evaluate(
        denoiser,
        [batch(81), batch(19, first=81)],
        estimator=estimator,
        target_se=target,
        max_nfe=budget,
    )
    assert (result.nfe <= budget).all() and (result.nfe % cost == 0).all()
    spent = result.nfe + cost > budget
    assert estimator.exact or target == 0.5 or spent.all(), "nothing is left if nothing is enough"
    assert sum(denoiser.backbone.rows_seen) == result.nfe.sum(), "only unfinished rows are run"


def test_one_pass_without_a_target_or_budget() -> None:
    for estimator in FEW:
        result, _ = run(estimator, 5)
        assert (result.nfe == int(estimator.cost(torch.tensor([L])))).all()


def pieces(size: int, *, forget: bool = False) -> list[Batch]:
    """The same 30 sequences in batches of a given size; in some a token is missing."""
    whole = batch(30)
    whole.loss_mask[::3, 1] = False
    cuts = range(0, 30, size)
    parts = [
        Batch(*(part[i : i + size] for part in (whole.tokens, whole.loss_mask, whole.index)))
        for i in cuts
    ]
    if forget:
        parts = [replace(part, index=torch.arange(len(part.tokens))) for part in parts]
    return parts


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [*FEW, FixedOrder([3, 1, 0, 2])], ids=name)
@pytest.mark.parametrize("budget", [{}, {"target_se": 0.8}, {"max_nfe": 50}], ids=str)
def test_results_do_not_depend_on_batches_bit_for_bit(estimator: Estimator, budget) -> None:
    def score(parts: list[Batch], rows_per_call: int | None = None) -> list[np.ndarray]:
        result = evaluate(
            table(),
            parts,
            estimator=estimator,
            rows_per_call=rows_per_call,
            **budget,
        )
        return [result.nats, result.standard_error, result.num_tokens, result.nfe]

    whole = score(pieces(30))
    for parts in (score(pieces(7)), score(pieces(30), 13), score(pieces(30), 1000)):
        for a, b in zip(whole, parts, strict=True):
            np.testing.assert_array_equal(a, b)
    if not estimator.exact:
        forgetful = score(pieces(7, forget=True))
        assert (whole[0] != forgetful[0]).any(), "noise by place in the batch must not pass"


@pytest.mark.slow
def test_passes_and_seeds_and_sequences_have_noise_of_their_own() -> None:
    """With shared noise two of them would agree everywhere, and the error of more passes would be
    wrong.
    """
    one, other = (run(ExactK(8), 162, seed=seed)[0].nats for seed in (0, 1))
    assert (one != other).mean() > 0.9 and (one[:81] != one[81:]).mean() > 0.9
    rows = 81 * 100
    result, errors = run(ExactK(8), rows, max_nfe=64)
    claimed, seen = result.standard_error**2, errors**2
    noise = math.sqrt((claimed.var() + seen.var()) / rows)
    assert abs(claimed.mean() - seen.mean()) < SIGMAS * noise
    assert abs(claimed.mean() - 2 * seen.mean()) > SIGMAS * noise
