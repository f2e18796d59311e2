"""The code of every sampler, run for every outcome, against independent enumeration."""

import itertools
import math

import pytest
import torch

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.samplers import (
    AncestralSampler,
    CachedAncestralSampler,
    ConfidenceSampler,
    FirstHittingSampler,
    Sampler,
    SemiAutoregressiveSampler,
)
from seqdiff.schedules import CosineSquared, Linear, NoiseSchedule
from seqdiff.types import Inputs
from tests import distributions
from tests.enumeration import Distribution, Tokens, distance, joint_distribution, outcomes
from tests.oracles import Joint, LookupBackbone, OracleBackbone, TableBackbone, masked_model

EXACT = 1e-10


def lookup(
    vocab_size: int, length: int, seed: int = 3, schedule: NoiseSchedule | None = None
) -> Denoiser:
    return masked_model(LookupBackbone(vocab_size, length, seed=seed), schedule)


def blank(vocab_size: int, length: int) -> torch.Tensor:
    return torch.full((length,), vocab_size)


def ancestral_distribution(
    denoiser: Denoiser, x_init: torch.Tensor, times: list[float], schedule: NoiseSchedule, k: int
) -> Distribution:
    table = distributions.table(denoiser, k, len(x_init))
    distribution: Distribution = {distributions.as_tokens(x_init): 1.0}
    alphas = schedule.alpha(torch.tensor(times, dtype=torch.float64)).tolist()
    for alpha_t, alpha_s in itertools.pairwise(alphas):
        distribution = distributions.push(
            distribution, distributions.step(table, k, (alpha_s - alpha_t) / (1 - alpha_t))
        )
    return distribution


def grid(steps: int) -> list[float]:
    return [1 - i / steps for i in range(steps)] + [0.0]


@pytest.mark.parametrize("schedule", [Linear(), CosineSquared()], ids=repr)
@pytest.mark.parametrize("cls", [AncestralSampler, CachedAncestralSampler])
@pytest.mark.parametrize(("k", "length", "steps"), [(2, 3, 1), (2, 3, 3), (3, 2, 4), (2, 4, 2)])
def test_ancestral_has_the_distribution_of_its_steps(cls, schedule, k, length, steps) -> None:
    denoiser = lookup(k, length, schedule=schedule)
    found = outcomes(cls(steps), denoiser, blank(k, length))
    right = ancestral_distribution(denoiser, blank(k, length), grid(steps), schedule, k)
    assert distance(found.distribution, right) < EXACT
    for broken in (grid(steps + 1), [1.0, 0.8, 0.0]):
        wrong = ancestral_distribution(denoiser, blank(k, length), broken, schedule, k)
        assert distance(found.distribution, wrong) > 1e-3, "the twins with other times"


@pytest.mark.parametrize("schedule", [Linear(), CosineSquared()], ids=repr)
def test_one_step_of_ancestral_is_the_posterior(schedule: NoiseSchedule) -> None:
    """The kernel of every step from every state, given by the process."""
    k, length, steps = 2, 3, 3
    process = Absorbing(k, schedule)
    denoiser = lookup(k, length, schedule=schedule)
    found = outcomes(AncestralSampler(steps), denoiser, blank(k, length))
    times = torch.linspace(1, 0, steps + 1, dtype=torch.float64)
    before: Distribution = {distributions.as_tokens(blank(k, length)): 1.0}
    for number, (t, s) in enumerate(itertools.pairwise(times), start=1):
        joint: dict = {}
        for chance, history in zip(found.probability.tolist(), found.history, strict=True):
            x_t = blank(k, length) if number == 1 else history[number - 2]
            key = (distributions.as_tokens(x_t), distributions.as_tokens(history[number - 1]))
            joint[key] = joint.get(key, 0.0) + chance
        after: Distribution = {}
        for x_t, mass in before.items():
            state = torch.tensor([x_t])
            ends = s.expand(state.shape), t.expand(state.shape)
            distribution = process.log_posterior(denoiser(Inputs(state)), state, *ends).exp()[0]
            for x_s in itertools.product(range(k + 1), repeat=length):
                chance = math.prod(float(distribution[i, token]) for i, token in enumerate(x_s))
                assert joint.get((x_t, x_s), 0.0) == pytest.approx(mass * chance, abs=EXACT)
                after[x_s] = after.get(x_s, 0.0) + mass * chance
        before = {x: mass for x, mass in after.items() if mass > 0}


def test_distance_of_ancestral_falls_like_one_over_steps() -> None:
    """Total variation distance to the joint at 8, 16 and 32 steps; the fitted order is 1."""
    k, length = 2, 2
    joint = Joint.random(k, length, seed=5)
    denoiser = masked_model(OracleBackbone(joint))
    target = joint_distribution(joint.probs, k, length)
    counts = [8, 16, 32]
    gaps = [
        distance(outcomes(AncestralSampler(n), denoiser, blank(k, length)).distribution, target)
        for n in counts
    ]
    xs, ys = [math.log(n) for n in counts], [math.log(gap) for gap in gaps]
    mean = sum(xs) / 3
    slope = sum((x - mean) * y for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mean) ** 2 for x in xs
    )
    assert slope == pytest.approx(-1, abs=0.05)
    one_shot = outcomes(AncestralSampler(1), denoiser, blank(k, length))
    assert distance(one_shot.distribution, target) > 4 * gaps[0], "the twin that never steps"


@pytest.mark.parametrize(("k", "length"), [(2, 4), (3, 3), (4, 2), (2, 5)])
def test_first_hitting_draws_a_consistent_model_exactly(k: int, length: int) -> None:
    joint = Joint.random(k, length, seed=7)
    denoiser = masked_model(OracleBackbone(joint))
    target = joint_distribution(joint.probs, k, length)
    found = outcomes(FirstHittingSampler(), denoiser, blank(k, length))
    assert distance(found.distribution, target) < EXACT
    assert (found.nfe == length).all()
    parallel = outcomes(FirstHittingSampler(length - 1), denoiser, blank(k, length))
    assert distance(parallel.distribution, target) > 1e-3, (
        "the twin that reveals two from one prediction"
    )


@pytest.mark.parametrize(("k", "length"), [(2, 4), (3, 3)])
def test_first_hitting_averages_an_inconsistent_model_over_orders(k: int, length: int) -> None:
    denoiser = lookup(k, length)
    table, start = (
        distributions.table(denoiser, k, length),
        distributions.as_tokens(blank(k, length)),
    )
    found = outcomes(FirstHittingSampler(), denoiser, blank(k, length)).distribution
    assert distance(found, distributions.random_order(start, table, k)) < EXACT
    left_to_right = distributions.chosen_order(start, table, k, lambda hidden, _: hidden[:1])
    assert distance(found, left_to_right) > 1e-2, "the twin without a permutation"


@pytest.mark.parametrize(("length", "steps", "sizes"), [(3, 2, [2, 1]), (4, 3, [2, 1, 1])])
def test_first_hitting_in_fewer_steps(length: int, steps: int, sizes: list[int]) -> None:
    k, denoiser = 2, lookup(2, length)
    table, start = (
        distributions.table(denoiser, k, length),
        distributions.as_tokens(blank(k, length)),
    )
    found = outcomes(FirstHittingSampler(num_steps=steps), denoiser, blank(k, length))
    assert distance(found.distribution, distributions.random_order(start, table, k, sizes)) < EXACT
    assert (
        distance(found.distribution, distributions.random_order(start, table, k, sizes[::-1]))
        > 1e-3
    )
    assert (found.nfe == steps).all()


def fill(x: Tokens, table: distributions.Table, k: int, sampler: Sampler) -> Distribution:
    if isinstance(sampler, FirstHittingSampler):
        return distributions.random_order(x, table, k)
    return distributions.chosen_order(
        x, table, k, lambda hidden, distribution: [max(hidden, key=lambda i: max(distribution[i]))]
    )


class LookupOfAnyLength(TableBackbone):
    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.tables = torch.nn.ModuleList(LookupBackbone(k, n, seed=4) for n in range(4))

    def logits(self, inputs):
        return self.tables[inputs.tokens.shape[1]](inputs)


def slide(
    windows: list[range], denoiser: Denoiser, k: int, inner: Sampler, *, keep: bool
) -> Distribution:
    """Fill one window after the other; the broken twin does not ``keep`` what it has drawn."""
    length = windows[-1].stop
    distribution: Distribution = {(k,) * length: 1.0}
    for window in windows:
        table = distributions.table(denoiser, k, len(window))

        def kernel(
            x: Tokens, window: range = window, table: distributions.Table = table
        ) -> Distribution:
            seen = tuple(x[i] if keep else k for i in window)
            drawn = fill(seen, table, k, inner)
            rows = (
                (
                    tuple(
                        y[i - window.start] if i in window and x[i] == k else x[i]
                        for i in range(length)
                    ),
                    chance,
                )
                for y, chance in drawn.items()
            )
            total: Distribution = {}
            for row, chance in rows:
                total[row] = total.get(row, 0.0) + chance
            return total

        distribution = distributions.push(distribution, kernel)
    return distribution


@pytest.mark.parametrize("inner", [FirstHittingSampler(), ConfidenceSampler()], ids=repr)
@pytest.mark.parametrize(
    ("window", "stride", "windows"),
    [
        (3, 1, [range(3), range(1, 4)]),
        (3, 3, [range(3), range(3, 4)]),
        (2, 1, [range(2), range(1, 3), range(2, 4)]),
        (3, 2, [range(3), range(2, 5)]),
        (3, 2, [range(3), range(2, 4)]),
        (3, 2, [range(2)]),
    ],
)
def test_semi_autoregressive_slides_a_window(window, stride, windows, inner) -> None:
    """Each window sees its overlap with the previous one; the last is cut at the end of the row."""
    k, denoiser = 2, masked_model(LookupOfAnyLength(2))
    sampler = SemiAutoregressiveSampler(window, stride, inner)
    found = outcomes(sampler, denoiser, blank(k, windows[-1].stop)).distribution
    assert distance(found, slide(windows, denoiser, k, inner, keep=True)) < EXACT
    if len(windows) > 1 and stride < window:
        assert distance(found, slide(windows, denoiser, k, inner, keep=False)) > 1e-3


@pytest.mark.parametrize(
    "sampler",
    [AncestralSampler(3), FirstHittingSampler(), ConfidenceSampler()],
    ids=lambda s: type(s).__name__,
)
def test_visible_tokens_condition_the_distribution(sampler: Sampler) -> None:
    """A row with a given token in the middle has the conditional distribution of the rest."""
    k, x_init = 3, (3, 1, 3)
    denoiser = lookup(k, 3, seed=8)
    if isinstance(sampler, AncestralSampler):
        right = ancestral_distribution(denoiser, torch.tensor(x_init), grid(3), Linear(), k)
    else:
        right = fill(x_init, distributions.table(denoiser, k, 3), k, sampler)
    found = outcomes(sampler, denoiser, torch.tensor(x_init)).distribution
    assert distance(found, right) < EXACT
    assert all(x[1] == 1 for x in found)
