"""Samplers that use the network's confidence, against their rule written independently."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch

from seqdiff.samplers import (
    ConfidenceSampler,
    EntropyBudgetSampler,
    EntropySampler,
    MarginSampler,
    ThresholdSampler,
)
from tests import distributions
from tests.enumeration import distance, outcomes
from tests.exact.test_sampler_distributions import EXACT, blank, lookup
from tests.oracles import TableBackbone, masked_model

Measure = Callable[[list[float]], float]


def confidence(distribution: list[float]) -> float:
    return max(distribution)


def margin(distribution: list[float]) -> float:
    best, second = sorted(distribution)[:-3:-1]
    return best - second


def negentropy(distribution: list[float]) -> float:
    return sum(p * math.log(p) for p in distribution if p > 0)


def reversed_order(measure: Measure) -> Measure:
    """Broken twin of every order."""
    return lambda distribution: -measure(distribution)


def order_rule(measure: Measure, sizes: list[int], length: int):
    """Reveal the most confident positions; their number depends on how many are revealed."""
    done = list(itertools.accumulate(sizes, initial=0))

    def rule(hidden: list[int], table: list[list[float]]) -> list[int]:
        size = sizes[done.index(length - len(hidden))]
        return sorted(hidden, key=lambda i: -measure(table[i]))[:size]

    return rule


@pytest.mark.parametrize("sizes", [[1, 1, 1], [2, 1]], ids=str)
@pytest.mark.parametrize(
    ("cls", "measure"),
    [(ConfidenceSampler, confidence), (MarginSampler, margin), (EntropySampler, negentropy)],
)
def test_certainty_orders(cls, measure, sizes: list[int]) -> None:
    k, length = 3, 3
    denoiser = lookup(k, length, seed=2)
    table, start = (
        distributions.table(denoiser, k, length),
        distributions.as_tokens(blank(k, length)),
    )
    steps = None if len(sizes) == length else len(sizes)
    found = outcomes(cls(num_steps=steps), denoiser, blank(k, length))
    right = distributions.chosen_order(start, table, k, order_rule(measure, sizes, length))
    assert distance(found.distribution, right) < EXACT
    assert (found.nfe == len(sizes)).all()
    wrong = distributions.chosen_order(
        start, table, k, order_rule(reversed_order(measure), sizes, length)
    )
    assert distance(found.distribution, wrong) > 1e-2


def test_the_three_orders_differ() -> None:
    k, length = 3, 3
    denoiser = lookup(k, length, seed=2)
    found = [
        outcomes(cls(), denoiser, blank(k, length)).distribution
        for cls in (ConfidenceSampler, MarginSampler, EntropySampler)
    ]
    for first, second in itertools.combinations(found, 2):
        assert distance(first, second) > 1e-3


@pytest.mark.parametrize("cls", [ConfidenceSampler, MarginSampler, EntropySampler])
def test_steps_are_as_equal_as_possible(cls) -> None:
    """Position r of n falls into step floor(r steps / n), as in first-hitting sampling."""
    start, certainty = torch.arange(41), torch.zeros(41, 40, dtype=torch.float64)
    for num_steps in range(1, 45):
        steps = start.clamp(1, num_steps)
        counts = [cls(num_steps).count(certainty, start, s) for s in range(num_steps)]
        for n in start.tolist():
            places = [r * int(steps[n]) // n for r in range(n)]
            wanted = [places.count(step) for step in range(int(steps[n]))]
            assert [int(count[n]) for count in counts[: steps[n]]] == wanted
            assert sum(wanted) == n and max(wanted) - min(wanted) <= 1 and wanted[0] == max(wanted)
    for step in (0, 3):
        assert cls().count(certainty, start, step).tolist() == [0] + [1] * 40


def threshold_rule(threshold: float):
    def rule(hidden: list[int], table: list[list[float]]) -> list[int]:
        sure = [i for i in hidden if max(table[i]) >= threshold]
        return sure or [max(hidden, key=lambda i: max(table[i]))]

    return rule


@pytest.mark.parametrize("threshold", [0.3, 0.6, 1.0])
def test_threshold(threshold: float) -> None:
    k, length = 3, 3
    denoiser = lookup(k, length, seed=2)
    table, start = (
        distributions.table(denoiser, k, length),
        distributions.as_tokens(blank(k, length)),
    )
    found = outcomes(ThresholdSampler(threshold=threshold), denoiser, blank(k, length))
    right = distributions.chosen_order(start, table, k, threshold_rule(threshold))
    assert distance(found.distribution, right) < EXACT
    other = distributions.chosen_order(start, table, k, threshold_rule(1.3 - threshold))
    assert distance(found.distribution, other) > 1e-3
    mean = float(found.probability @ found.nfe.double())
    assert mean == {0.3: pytest.approx(1), 1.0: pytest.approx(3)}.get(threshold, mean)
    assert 1 <= mean <= 3 and (threshold != 0.6 or 1 < mean < 3)


def budget_rule(budget: float, *, with_largest: bool = False):
    def rule(hidden: list[int], table: list[list[float]]) -> list[int]:
        ordered = sorted(hidden, key=lambda i: -negentropy(table[i]))
        for size in range(len(ordered), 1, -1):
            entropies = [-negentropy(table[i]) for i in ordered[:size]]
            if sum(entropies) - (0 if with_largest else max(entropies)) <= budget:
                return ordered[:size]
        return ordered[:1]

    return rule


@pytest.mark.parametrize("budget", [0.0, 0.8, 1.5, 9.0])
def test_entropy_budget(budget: float) -> None:
    k, length = 3, 3
    denoiser = lookup(k, length, seed=2)
    table, start = (
        distributions.table(denoiser, k, length),
        distributions.as_tokens(blank(k, length)),
    )
    found = outcomes(EntropyBudgetSampler(budget=budget), denoiser, blank(k, length))
    assert (
        distance(
            found.distribution, distributions.chosen_order(start, table, k, budget_rule(budget))
        )
        < EXACT
    )
    if 0 < budget < 2:
        wrong = distributions.chosen_order(start, table, k, budget_rule(budget, with_largest=True))
        assert distance(found.distribution, wrong) > 1e-3, "the twin that counts the largest too"


class Strict(EntropyBudgetSampler):
    """Broken twin: a set must stay below its budget, excluding equality."""

    def count(self, certainty, start, step):
        others = (-certainty).cumsum(dim=-1).roll(1, dims=-1)
        others[:, 0] = 0.0
        return ((others < self.budget) & (certainty > -math.inf)).sum(dim=-1).clamp_min(1)


def test_a_budget_of_nothing_reveals_what_is_certain_at_once() -> None:
    """Two certain positions and an uncertain one: without the largest, their entropies are 0."""

    class Certain(TableBackbone):
        def logits(self, inputs):
            logits = torch.full((3, 3), -math.inf, dtype=torch.float64)
            logits[0, 1] = logits[2, 0] = 0.0
            logits[1] = 0.0
            return logits.expand(len(inputs.tokens), 3, 3)

    denoiser = masked_model(Certain(3))
    for cls, evaluations in ((EntropyBudgetSampler, 1), (Strict, 3)):
        found = outcomes(cls(budget=0.0), denoiser, blank(3, 3))
        assert set(found.nfe.tolist()) == {evaluations}
