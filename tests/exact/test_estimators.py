"""The expectation of every likelihood estimator, enumerated over its randomness.

The denoiser is a table of arbitrary conditionals, so each order of revealing has its own
likelihood. The target of estimators by masks or by random orders is the bound, which
``enumerated_nelbo`` computes by quadrature over time and mask patterns. Several orders under one
logarithm give a smaller bound, down to -log of the mean over orders.
"""

import itertools
import math
from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import (
    BernoulliTime,
    DiscreteSteps,
    Estimator,
    ExactK,
    FixedOrder,
    GaussianIntegral,
    ImportanceWeightedOrders,
    Likelihood,
    RandomOrderChain,
    StratifiedK,
    TimeEstimator,
    TimeIntegral,
    evaluate,
    masks,
    orders,
)
from seqdiff.likelihood.estimator import Query
from seqdiff.process import Absorbing
from seqdiff.schedules import Cosine, Linear, NoiseSchedule
from seqdiff.types import Batch, Inputs
from tests.estimator_oracles import (
    ORDERS,
    X0,
    K,
    L,
    expectation_by_k,
    expectation_by_time,
    expectation_over_orders,
    order_nats,
    table,
)
from tests.oracles import (
    Joint,
    OracleBackbone,
    UniformBackbone,
    all_masks,
    copies,
    enumerated_nelbo,
    mask_distribution,
    masked_model,
    unit_quadrature,
)


def run(estimator: Estimator, denoiser: Denoiser, rows: int = 1, **budget) -> Likelihood:
    return evaluate(denoiser, [copies(X0, rows)], estimator=estimator, rows_per_call=4096, **budget)


def bound() -> float:
    return enumerated_nelbo(table(), X0)


def test_the_orders_of_the_table_disagree_and_their_mean_is_the_bound() -> None:
    """If the orders agreed, every estimator by orders would be trivially right."""
    nats = order_nats(table())
    assert float(nats.std()) > 0.5
    assert float(nats.mean()) == pytest.approx(bound(), abs=1e-9)


@pytest.mark.parametrize("schedule", [Linear(), Cosine()])
@pytest.mark.parametrize("estimator", [ExactK(2), StratifiedK(2), StratifiedK(6), StratifiedK(10)])
def test_masking_k_tokens_estimates_the_bound(
    estimator: Estimator, schedule: NoiseSchedule
) -> None:
    assert expectation_by_k(estimator, table(schedule)) == pytest.approx(bound(), abs=1e-9)


@pytest.mark.parametrize("schedule", [Linear(), Cosine()])
def test_masking_by_time_estimates_the_bound(schedule: NoiseSchedule) -> None:
    assert expectation_by_time(BernoulliTime(), table(schedule)) == pytest.approx(bound(), abs=1e-9)


def test_the_published_convention_leaves_both_ends_out() -> None:
    """Times from eps on, a fraction of (1 - eps) t with weight 1/t, computed by hand."""
    patterns, denoiser, eps, total = all_masks(L), table(), 1e-3, 0.0
    x_t = X0.expand(len(patterns), -1).masked_fill(patterns, K)
    crosses = -denoiser(Inputs(x_t)).gather(-1, X0.expand(len(patterns), -1)[..., None])[..., 0]
    crosses = (crosses * patterns).sum(dim=-1)
    for u, weight in zip(*unit_quadrature(), strict=True):
        t = eps + (1 - eps) * float(u)
        total += float(weight * (mask_distribution(patterns, 1 - (1 - eps) * t) @ crosses) / t)
    published = expectation_by_time(BernoulliTime(convention="mdlm"))
    assert published == pytest.approx(total, abs=1e-9)
    assert 1e-4 < bound() - published < 1e-2, "the exact convention must not pass for it"


@pytest.mark.parametrize(("convention", "fraction"), [("mdlm", 0.999), ("exact", 1.0)])
def test_a_uniform_predictor_scores_what_is_published(
    convention: Literal["exact", "mdlm"], fraction: float
) -> None:
    uniform = masked_model(UniformBackbone(K))
    nats = expectation_by_time(BernoulliTime(convention=convention), uniform)
    assert nats == pytest.approx(fraction * L * math.log(K), abs=1e-9)


def test_random_orders_estimate_the_bound() -> None:
    assert expectation_over_orders(RandomOrderChain(2), 2) == pytest.approx(bound(), abs=1e-9)


def test_more_orders_under_the_logarithm_tighten_the_bound_to_the_mixture() -> None:
    """Burda et al. 2016, theorem 1: bound 1 >= bound 2 >= ... -> -log mean p_o."""
    nats = order_nats(table())
    mixture = math.log(len(ORDERS)) - float(torch.logsumexp(-nats, dim=0))
    bounds = []
    for num_orders in (1, 2, 3):
        estimator = ImportanceWeightedOrders(num_orders)
        bounds.append(expectation_over_orders(estimator, num_orders))
        tuples = torch.tensor(list(itertools.product(nats.tolist(), repeat=num_orders)))
        by_hand = float((math.log(num_orders) - torch.logsumexp(-tuples.double(), -1)).mean())
        assert bounds[-1] == pytest.approx(by_hand, abs=1e-6)
    assert bounds[0] == pytest.approx(bound(), abs=1e-9)
    assert bounds[0] > bounds[1] + 1e-2 > bounds[2] + 1e-2 > mixture + 1e-2
    many = run(ImportanceWeightedOrders(20_000), table())
    assert many.nats[0] == pytest.approx(mixture, abs=0.05)
    assert many.nats[0] < bounds[2] - 0.1, "three orders must not pass for many"


@pytest.mark.parametrize("order", [None, *itertools.islice(ORDERS.tolist(), 0, 24, 5)])
def test_a_fixed_order_is_exact(order: list[int] | None) -> None:
    result = run(FixedOrder(order), table(), target_se=1e-9, max_nfe=100)
    place = 0 if order is None else ORDERS.tolist().index(order)
    assert result.nats[0] == pytest.approx(float(order_nats(table())[place]), abs=1e-9)
    assert (result.standard_error[0], result.nfe[0]) == (0, L)


def _always_two(place: Tensor, num_tokens: Tensor) -> Tensor:
    """A collater that never masks exactly one token."""
    return RIGHT_COUNT(place, num_tokens).clamp_min(2)


def _shows_too_much(batch: Batch, ranks: Tensor, step: Tensor, process: Absorbing) -> Query:
    """Reveals by a later order than the one that is scored."""
    query = RIGHT_QUERY(batch, ranks, step, process)
    hidden = batch.loss_mask & (ranks.flip(-1) >= step[:, None]) | query.scored
    return query._replace(x_t=batch.tokens.masked_fill(hidden, process.mask_id))


RIGHT_COUNT, RIGHT_QUERY = masks._count_at, orders._query


@pytest.mark.parametrize(
    ("module", "name", "broken", "expectation"),
    [
        (masks, "_count_at", _always_two, lambda: expectation_by_k(ExactK(2))),
        (masks, "_count_at", _always_two, lambda: expectation_by_k(StratifiedK(6))),
        (
            orders,
            "_query",
            _shows_too_much,
            lambda: expectation_over_orders(RandomOrderChain(), 2),
        ),
    ],
)
def test_broken_estimators_miss_the_bound(
    module, name: str, broken, expectation: Callable[[], float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)
    assert abs(expectation() - bound()) > 1e-2


def test_a_uniform_time_without_its_density_misses_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Broken twin: times from a density, with the weights of uniform times."""
    right = BernoulliTime.query

    def broken(self, *args, **kwargs) -> Query:
        query = right(self, *args, **kwargs)
        return query._replace(weight=1 / query.t)

    monkeypatch.setattr(BernoulliTime, "query", broken)
    assert abs(expectation_by_time(BernoulliTime()) - bound()) > 1e-2


def test_orders_have_no_variance_where_conditionals_fit_together() -> None:
    joint = Joint.random(K, L, seed=4)
    oracle = masked_model(OracleBackbone(joint))
    code = int((X0 * K ** torch.arange(L - 1, -1, -1)).sum())
    for estimator in (RandomOrderChain(3), FixedOrder([3, 1, 0, 2]), ImportanceWeightedOrders(2)):
        result = run(estimator, oracle)
        assert result.nats[0] == pytest.approx(-math.log(joint.probs[code]), abs=1e-9)
        assert result.standard_error[0] == pytest.approx(0, abs=1e-9)
    assert run(RandomOrderChain(3), table()).standard_error[0] > 0.05


@pytest.mark.parametrize("estimator", [RandomOrderChain(2), FixedOrder([2, 3, 0, 1])])
def test_context_and_unknown_symbols_are_given(estimator: Estimator) -> None:
    """-log p(x4, x2 | x1), with x3 unknown and summed out, for any order."""
    joint = Joint.random(K, L, seed=4)
    x0, counted = torch.tensor([[2, 0, K, 1]]), torch.tensor([[False, True, False, True]])
    distribution = joint.probs.view(K, K, K, K)[2].sum(dim=1)
    exact = -math.log(distribution[0, 1] / distribution.sum())
    batch = Batch(x0, counted, torch.tensor([5]))
    oracle = masked_model(OracleBackbone(joint))
    result = evaluate(oracle, [batch], estimator=estimator)
    assert result.nats[0] == pytest.approx(exact, abs=1e-9)
    assert result.num_tokens[0] == 2
    everything = Batch(x0, x0 != K, torch.tensor([5]))
    wrong = evaluate(oracle, [everything], estimator=estimator)
    assert abs(wrong.nats[0] - exact) > 0.1


@pytest.mark.parametrize("cls", [TimeIntegral, DiscreteSteps, GaussianIntegral])
@pytest.mark.parametrize("evaluations", [2, 6])
def test_variances_of_times_and_ends_are_unbiased(
    cls: type[TimeEstimator], evaluations: int
) -> None:
    """Two equally likely outcomes per draw, the same for both of a stratum: all are enumerated.

    The twins weight the component of the ends by another factor.
    """
    estimator = cls(evaluations)
    strata = [(0.3, 0.9), (-1.0, 1.5), (2.0, 2.2)][: evaluations // 2]
    strata.append((4.0, 7.0))  # the ends
    outcomes = [draw for pair in strata for draw in (pair, pair)]
    results = [estimator.combine(np.array(values)) for values in itertools.product(*outcomes)]
    totals = np.array([total for total, _ in results])
    components = np.array([parts for _, parts in results])
    means = [np.mean(pair) for pair in strata]
    assert totals.mean() == pytest.approx(np.mean(means[:-1]) + means[-1])
    assert components.mean(axis=0).sum() == pytest.approx(totals.var())
    share = np.array([2 / evaluations] * (evaluations // 2) + [1.0])
    each = share**2 * np.array([np.var(pair) for pair in strata]) / 2
    assert components.mean(axis=0) == pytest.approx(each)
    assert estimator.degrees == len(each), "one for each pair of draws"
