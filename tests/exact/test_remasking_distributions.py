"""Distributions of the remasking samplers, at a mask rate of 1 - alpha_s."""

import itertools
import math
from dataclasses import dataclass

import pytest
import torch

from seqdiff.samplers import (
    AncestralSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    RemaskConfSampler,
    RemaskLoopSampler,
    RemaskRescaleSampler,
    Sampler,
)
from seqdiff.schedules import CosineSquared, Linear, NoiseSchedule
from tests import distributions
from tests.enumeration import Distribution, Outcomes, Tokens, distance, joint_distribution, outcomes
from tests.oracles import Joint, LookupBackbone, OracleBackbone, masked_model

K, L, STEPS = 2, 2, 4
EXACT = 1e-10
NETWORK = LookupBackbone(K, L, seed=3)
TABLE = distributions.table(masked_model(NETWORK), K, L)
START = (K,) * L


def run(sampler: Sampler, schedule: NoiseSchedule | None = None, x: Tokens = START) -> Outcomes:
    return outcomes(sampler, masked_model(NETWORK, schedule), torch.tensor(x))


def grid(steps: int) -> list[tuple[float, float]]:
    """Pairs (alpha_t, alpha_s) of the linear schedule."""
    return [(i / steps, (i + 1) / steps) for i in range(steps)]


def remask_distribution(
    alphas: list[tuple[float, float]], sigma, *, compensate: bool = True
) -> Distribution:
    distribution: Distribution = {START: 1.0}
    for alpha_t, alpha_s in alphas:
        hide = sigma(alpha_t, alpha_s)
        more = hide if compensate else 0.0
        reveal = (alpha_s - (1 - more) * alpha_t) / (1 - alpha_t)
        distribution = distributions.push(
            distribution, distributions.step(TABLE, K, reveal, hide=hide)
        )
    return distribution


def largest(alpha_t: float, alpha_s: float) -> float:
    return min(1.0, (1 - alpha_s) / alpha_t) if alpha_t else 1.0


@pytest.mark.parametrize(
    ("sampler", "sigma"),
    [
        (RemaskCapSampler(STEPS, eta=0.3), lambda t, s: min(0.3, largest(t, s))),
        (RemaskCapSampler(STEPS, eta=1.0), largest),
        (RemaskRescaleSampler(STEPS, eta=0.3), lambda t, s: 0.3 * largest(t, s)),
        (RemaskRescaleSampler(STEPS, eta=0.0), lambda t, s: 0.0),
    ],
    ids=["cap", "largest", "rescale", "none"],
)
def test_cap_and_rescale(sampler: Sampler, sigma) -> None:
    found = run(sampler).distribution
    assert distance(found, remask_distribution(grid(STEPS), sigma)) < EXACT
    if sigma(0.5, 0.75):
        plain = remask_distribution(grid(STEPS), lambda t, s: 0.0)
        assert distance(found, plain) > 1e-3, "the twin that never hides"


def test_no_strength_is_ancestral() -> None:
    assert (
        distance(
            run(RemaskRescaleSampler(3, eta=0.0)).distribution,
            run(AncestralSampler(3)).distribution,
        )
        < EXACT
    )


def loop_grid() -> list[tuple[float, float]]:
    """Grid 1, 3/4, 1/2, 1/4, 0; the loop stays between 1/2 and 1/4 at alpha = 0.8."""
    before = 0.8 * (1 - (0.75 - 0.6) / (1 - 0.6))
    return [(0.0, before), (before, 0.8), (0.8, 0.8), (0.8, 1.0)]


def loop_sigma(alpha_t: float, alpha_s: float) -> float:
    return min(0.5, largest(alpha_t, alpha_s)) if alpha_t == alpha_s else 0.0


LOOP = RemaskLoopSampler(STEPS, eta=0.5, t_on=0.6, t_off=0.1, alpha_on=0.8)


def test_loop() -> None:
    found = run(LOOP).distribution
    assert distance(found, remask_distribution(loop_grid(), loop_sigma)) < EXACT
    elsewhere = remask_distribution(loop_grid(), lambda t, s: min(0.5, largest(t, s)))
    assert distance(found, elsewhere) > 1e-4, "the twin that also hides outside of the loop"


def conf_distribution(alphas: list[tuple[float, float]], eta: float) -> Distribution:
    """The state includes the confidence with which each visible token was drawn."""
    states: dict = {(START, (0.0,) * L): 1.0}
    for alpha_t, alpha_s in alphas:
        sigma = min(eta * largest(alpha_t, alpha_s), math.exp(-1))
        reveal = (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t)
        after: dict = {}
        for (x, confidence), chance in states.items():
            weights = [0.0 if x[i] == K else math.exp(-confidence[i]) for i in range(L)]
            shown, total = sum(token != K for token in x), sum(weights)
            parts = []
            for i, token in enumerate(x):
                if token == K:
                    drawn = [((k, p), reveal * p) for k, p in enumerate(TABLE[x][i])]
                    parts.append([*drawn, ((K, 0.0), 1 - reveal)])
                else:
                    hide = sigma * weights[i] * shown / total
                    parts.append([((token, confidence[i]), 1 - hide), ((K, 0.0), hide)])
            for chosen in itertools.product(*parts):
                key = (tuple(c[0][0] for c in chosen), tuple(c[0][1] for c in chosen))
                after[key] = after.get(key, 0.0) + chance * math.prod(c[1] for c in chosen)
        states = after
    distribution: Distribution = {}
    for (x, _), chance in states.items():
        distribution[x] = distribution.get(x, 0.0) + chance
    return distribution


def test_conf() -> None:
    found = run(RemaskConfSampler(STEPS, eta=0.9)).distribution
    assert distance(found, conf_distribution(grid(STEPS), 0.9)) < EXACT
    evenly = remask_distribution(grid(STEPS), lambda t, s: min(0.9 * largest(t, s), math.exp(-1)))
    assert distance(found, evenly) > 1e-4, "the twin that ignores confidence"


@dataclass(frozen=True)
class PublishedWeights(RemaskConfSampler):
    """Broken twin: weights that sum to 1 mask fewer tokens, without compensation."""

    def spread(self, sigma, shown, confidence):
        return super().spread(sigma, shown, confidence) / shown.sum(-1, keepdim=True).clamp_min(1)


KEEPS = [
    RemaskCapSampler(STEPS, eta=0.3),
    RemaskRescaleSampler(STEPS, eta=0.7),
    RemaskConfSampler(STEPS, eta=0.9),
    PredictorCorrectorSampler(2, renoise=0.4),
    AncestralSampler(STEPS),
]


def mask_rates(found: Outcomes, steps: int) -> list[float]:
    return [found.mean_after(n, lambda x: (x == K).double().mean()) for n in range(1, steps + 1)]


@pytest.mark.parametrize("sampler", KEEPS, ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("schedule", [Linear(), CosineSquared()], ids=repr)
def test_the_mask_rate_stays(sampler, schedule) -> None:
    steps = sampler.num_steps
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)[1:]
    rates = mask_rates(run(sampler, schedule), steps)
    assert rates == pytest.approx((1 - schedule.alpha(times)).tolist(), abs=EXACT)


def test_the_loop_holds_its_mask_rate() -> None:
    expected = [1 - alpha_s for _, alpha_s in loop_grid()]
    assert mask_rates(run(LOOP), STEPS) == pytest.approx(expected, abs=EXACT)


def test_broken_twins_lose_the_mask_rate() -> None:
    published = mask_rates(run(PublishedWeights(STEPS, eta=0.9)), STEPS)
    assert abs(published[2] - 0.25) > 1e-3
    distribution: Distribution = {START: 1.0}
    for alpha_t, alpha_s in grid(STEPS)[:3]:
        reveal = (alpha_s - alpha_t) / (1 - alpha_t)
        distribution = distributions.push(
            distribution,
            distributions.step(TABLE, K, reveal, hide=min(0.3, largest(alpha_t, alpha_s))),
        )
    assert abs(distributions.mask_rate(distribution, K) - 0.25) > 1e-2, (
        "hiding without revealing the more"
    )


@pytest.mark.parametrize(("steps", "corrector_steps"), [(2, 1), (2, 2), (3, 1)])
def test_predictor_corrector(steps: int, corrector_steps: int) -> None:
    """Every step but the last, which ends at s = 0, is followed by corrector steps."""
    renoise = 0.3
    sampler = PredictorCorrectorSampler(steps, corrector_steps=corrector_steps, renoise=renoise)
    distribution: Distribution = {START: 1.0}
    broken: Distribution = {START: 1.0}
    last: Distribution = {START: 1.0}
    for alpha_t, alpha_s in grid(steps):
        alpha_r = (1 - renoise) * alpha_s
        predict = distributions.step(TABLE, K, (alpha_s - alpha_t) / (1 - alpha_t))
        noise = distributions.step(TABLE, K, 0.0, hide=renoise)
        back = distributions.step(TABLE, K, (alpha_s - alpha_r) / (1 - alpha_r))
        distribution, broken, last = (
            distributions.push(x, predict) for x in (distribution, broken, last)
        )
        both = distributions.step(TABLE, K, (alpha_s - alpha_r) / (1 - alpha_r), hide=renoise)
        for _ in range(corrector_steps):
            last = distributions.push(distributions.push(last, noise), back)
            if alpha_s < 1:
                distribution = distributions.push(distributions.push(distribution, noise), back)
                broken = distributions.push(broken, both)
    found = run(sampler)
    assert distance(found.distribution, distribution) < EXACT
    assert distance(found.distribution, broken) > 1e-3, "the twin that hides and reveals at once"
    assert distance(found.distribution, last) > 1e-3, "the twin that also corrects at s = 0"


def test_the_corrector_brings_samples_closer_to_the_model() -> None:
    joint = Joint.random(K, L, seed=5)
    oracle = masked_model(OracleBackbone(joint))
    target = joint_distribution(joint.probs, K, L)

    def gap(sampler: Sampler) -> float:
        return distance(outcomes(sampler, oracle, torch.tensor(START)).distribution, target)

    plain = gap(AncestralSampler(2))
    once, twice = (
        gap(PredictorCorrectorSampler(2, corrector_steps=n, renoise=0.3)) for n in (1, 2)
    )
    print(plain, once, twice)
    assert twice < once < plain


@pytest.mark.parametrize("sampler", [*KEEPS, LOOP], ids=lambda s: type(s).__name__)
def test_given_tokens_are_never_hidden(sampler: Sampler) -> None:
    found = run(sampler, x=(1, K))
    assert all(int(x[0]) == 1 for steps in found.history for x in steps)
    assert all(K not in x for x in found.distribution)
