"""The library's noise: every kind of draw has its distribution and is independent of the others.

The exact tests replace the noise, so these draw it. Samplers that use every kind of noise are
compared with their enumerated distributions, for masks that are revealed once and for noise that
may change at every step. The false-alarm rate of an assertion is 1e-6. Twins that reuse noise are
tested on their own draws, with a power above 0.999 computed from their distribution.
"""

from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.parameterization import LeaveOneOut, MaskColumn, Parameterization, Score
from seqdiff.process import Absorbing, DiscreteProcess, Hybrid
from seqdiff.process import Uniform as UniformNoise
from seqdiff.samplers import (
    AncestralSampler,
    CachedAncestralSampler,
    EntropyBudgetSampler,
    FirstHittingSampler,
    GibbsSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    RemaskConfSampler,
    RemaskLoopSampler,
    RemaskRescaleSampler,
    Sampler,
    SemiAutoregressiveSampler,
    TauLeapingSampler,
    TweedieSampler,
)
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.draws import SeededDraws
from seqdiff.schedules import Geometric, Linear
from tests.enumeration import outcomes
from tests.noisy_worlds import Joint, exact
from tests.oracles import LookupBackbone, TableBackbone, all_sequences, masked_model
from tests.statistics import pearson, power

K, L, DRAWS = 2, 2, 60_000
PROCESS = Absorbing(K, Linear())
DENOISER = masked_model(LookupBackbone(K, L, seed=3))
WHERE = torch.ones(3, 5, dtype=torch.bool)


def distribution(sampler: Sampler, denoiser: Denoiser = DENOISER) -> Tensor:
    found = outcomes(sampler, denoiser, PROCESS.blank((1, L))[0]).distribution
    return torch.tensor([found.get(tuple(x), 0.0) for x in all_sequences(K, L).tolist()])


def counts(
    sampler: Sampler, cls: type[SeededDraws] = SeededDraws, denoiser: Denoiser = DENOISER
) -> Tensor:
    x_t = PROCESS.blank((DRAWS, L))
    canvas = Canvas(
        denoiser,
        cls(torch.arange(DRAWS)),
        x_t,
        x_t == K,
        torch.zeros(DRAWS, dtype=torch.int64),
    )
    with torch.no_grad():
        sampler.fill(canvas)
    codes = canvas.x_t @ torch.tensor([K, 1])
    return codes.bincount(minlength=K**L).double()


SAMPLERS = [
    CachedAncestralSampler(3),
    FirstHittingSampler(),
    EntropyBudgetSampler(budget=0.5),
    RemaskCapSampler(4, eta=0.6),
    RemaskConfSampler(4, eta=0.9),
    PredictorCorrectorSampler(2, renoise=0.4),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda s: type(s).__name__)
def test_drawn_distributions_are_the_enumerated_ones(sampler: Sampler) -> None:
    statistic, threshold = pearson(counts(sampler), distribution(sampler))
    assert statistic < threshold


@dataclass(frozen=True)
class OneKind(SeededDraws):
    """Broken twin: times, symbols and coins share their noise."""

    def _uniform(self, where: Tensor, kind: int, step: int = 0) -> Tensor:
        return super()._uniform(where, 0, step)


@dataclass(frozen=True)
class OneStep(SeededDraws):
    """Broken twin: every step uses the noise of the first."""

    def _uniform(self, where: Tensor, kind: int, step: int = 0) -> Tensor:
        return super()._uniform(where, kind, 0)


@dataclass(frozen=True)
class OnePosition(SeededDraws):
    """Broken twin: all positions use the noise of the first."""

    def _uniform(self, where: Tensor, kind: int, step: int = 0) -> Tensor:
        first = torch.zeros_like(where)
        first[:, 0] = True
        return super()._uniform(first, kind, step)[where.nonzero()[:, 0]]


@pytest.mark.parametrize(
    ("twin", "sampler"),
    [
        (OneKind, CachedAncestralSampler(3)),
        (OneStep, RemaskCapSampler(4, eta=0.6)),
        (OnePosition, CachedAncestralSampler(3)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_noise_that_is_used_twice_is_found(twin: type[SeededDraws], sampler: Sampler) -> None:
    right, drawn = distribution(sampler), counts(sampler, twin)
    statistic, threshold = pearson(drawn, right)
    assert statistic > threshold
    assert power(drawn / DRAWS, right, DRAWS) > 0.999


@dataclass(frozen=True)
class Ledger(SeededDraws):
    """Records every use of noise."""

    used: Counter = field(default_factory=Counter)

    def _uniform(self, where: Tensor, kind: int, step: int = 0) -> Tensor:
        for row, position in where.nonzero().tolist():
            self.used[row, position + self.offset, kind, step] += 1
        return super()._uniform(where, kind, step)


def uses(sampler: Sampler, rows: int = 20, denoiser: Denoiser = DENOISER) -> Counter:
    x_t, draws = PROCESS.blank((rows, L)), Ledger(torch.arange(rows))
    nfe = torch.zeros(rows, dtype=torch.int64)
    with torch.no_grad():
        sampler.fill(Canvas(denoiser, draws, x_t, x_t == K, nfe))
    return draws.used


@dataclass(frozen=True)
class SameLetters(PredictorCorrectorSampler):
    """Broken twin: a position that is drawn again gets the same noise for its symbol."""

    def _draw(self, canvas, where, distribution, step=0):
        super()._draw(canvas, where, distribution)


HIDING = [*SAMPLERS[3:], RemaskRescaleSampler(6, eta=0.8), RemaskLoopSampler(20, eta=0.8)]


@pytest.mark.parametrize("sampler", [*SAMPLERS[:3], *HIDING], ids=lambda s: type(s).__name__)
def test_no_noise_is_used_twice(sampler: Sampler) -> None:
    used = uses(sampler)
    assert set(used.values()) == {1}
    letters = sum(kind == 1 for _, _, kind, _ in used)
    assert (letters > 20 * L) == (sampler in HIDING), "those that hide do draw anew"


def test_letters_with_the_same_noise_would_be_found() -> None:
    assert max(uses(SameLetters(2, renoise=0.4)).values()) > 1


# Models in which every step may change every token


def noisy(process: DiscreteProcess, kind: Parameterization) -> Denoiser:
    return exact(Joint.random(K, L, seed=2), process, kind)


NOISY = [
    noisy(UniformNoise(K), LeaveOneOut()),
    noisy(Hybrid(K, 0.3), LeaveOneOut()),
    # z_1 still carries information about the clean token
    noisy(UniformNoise(K, Geometric(0.05, 1.0)), Score()),
    noisy(Absorbing(K), Score()),
    noisy(Absorbing(K), MaskColumn()),
]
STEPPING = [
    AncestralSampler(num_steps=3),
    TweedieSampler(num_steps=3),
    TauLeapingSampler(num_steps=3),
    PredictorCorrectorSampler(num_steps=2, renoise=0.4),
    GibbsSampler(num_steps=2),
]
PAIRS = [(s, d) for d in NOISY for s in STEPPING if s.needs.met_by(d)]


def stepping(pairs: list[tuple[Sampler, Denoiser]]) -> pytest.MarkDecorator:
    names = [f"{type(s).__name__}-{d.process.name}-{d.parameterization.name}" for s, d in pairs]
    return pytest.mark.parametrize(("sampler", "denoiser"), pairs, ids=names)


# Tweedie's sampler equals the ancestral one if the model predicts the clean token.
@stepping([(s, d) for s, d in PAIRS if not isinstance(s, TweedieSampler) or d.kind == "score"])
def test_distributions_of_noisy_steps_are_the_enumerated_ones(
    sampler: Sampler, denoiser: Denoiser
) -> None:
    statistic, threshold = pearson(
        counts(sampler, denoiser=denoiser), distribution(sampler, denoiser)
    )
    assert statistic < threshold


@stepping(PAIRS)
def test_noisy_steps_use_no_noise_twice(sampler: Sampler, denoiser: Denoiser) -> None:
    used = uses(sampler, denoiser=denoiser)
    assert set(used.values()) == {1}
    assert len({step for _, _, _, step in used}) > 1, "every step has noise of its own"


@dataclass(frozen=True)
class SameStep(AncestralSampler):
    """Broken twin: every step has the number of the first."""

    def advance(self, canvas, s, t, step):
        super().advance(canvas, s, t, 1)


@dataclass(frozen=True)
class StartAgain(AncestralSampler):
    """Broken twin: the prior uses the noise of the first step."""

    def start(self, canvas):
        places = int(canvas.free.sum())
        prior = canvas.process.log_prior().expand(places, -1)
        canvas.write(canvas.free, canvas.draws.tokens(prior, canvas.free, 1))


@dataclass(frozen=True)
class SameNumber(GibbsSampler):
    """Broken twin: a token is drawn with the number that chose its position."""

    def correct(self, canvas, s, draw):
        where = canvas.choose_one(draw)
        canvas.write(where, canvas.draws.tokens(canvas.marginal(where, s), where, draw))


@pytest.mark.parametrize(
    ("twin", "denoiser"),
    [
        (SameStep(num_steps=3), NOISY[0]),
        (SameStep(num_steps=3), NOISY[4]),
        (StartAgain(num_steps=3), noisy(UniformNoise(K, Geometric(0.05, 1.0)), LeaveOneOut())),
        (SameNumber(num_steps=2), NOISY[0]),
        (SameNumber(num_steps=2), NOISY[1]),
    ],
    ids=["steps-uniform", "steps-masks", "start", "gibbs-uniform", "gibbs-hybrid"],
)
def test_samplers_that_use_a_number_twice_are_found(twin: Sampler, denoiser: Denoiser) -> None:
    assert max(uses(twin, denoiser=denoiser).values()) > 1
    right, drawn = distribution(twin, denoiser), counts(twin, denoiser=denoiser)
    statistic, threshold = pearson(drawn, right)
    assert statistic > threshold
    assert power(drawn / DRAWS, right, DRAWS) > 0.999


def test_unmask_steps_are_those_of_the_unmask_times() -> None:
    draws, edges = SeededDraws(torch.tensor([4, 9, 2**61])), torch.tensor([1, 0.7, 0.7, 0.2, 0])
    edges = edges.double()
    times, steps = draws.unmask_times(WHERE), draws.unmask_steps(edges, WHERE)
    assert ((edges[steps] < times) & (times <= edges[steps - 1])).all()
    assert set(steps.unique().tolist()) == {1, 3, 4}, "an empty step unmasks nothing"
    some = WHERE.clone()
    some[1, 2:] = False
    assert torch.equal(draws.unmask_times(some), torch.where(some, times, 0.0))
    assert torch.equal(draws.unmask_steps(edges, some), torch.where(some, steps, 0))


def test_a_window_has_the_noise_of_its_place() -> None:
    draws = SeededDraws(torch.tensor([4, 9, 2**61]))
    times = draws.unmask_times(WHERE)
    assert torch.equal(draws.window(2).unmask_times(WHERE[:, 2:]), times[:, 2:])
    assert torch.equal(draws.window(1).window(1).unmask_times(WHERE[:, 2:]), times[:, 2:])
    assert not torch.equal(draws.unmask_times(WHERE[:, 2:]), times[:, 2:]), (
        "the twin without an offset"
    )


def test_windows_of_semi_autoregressive_do_not_repeat_their_noise() -> None:
    """A model without context: if two windows shared noise, both halves of a row would be equal."""

    class Flat(TableBackbone):
        def logits(self, inputs):
            return torch.zeros(*inputs.tokens.shape, K)

    drawn = SemiAutoregressiveSampler(20, 20).sample(
        masked_model(Flat(K)), PROCESS.blank((8, 40)), seeds=torch.arange(8)
    )
    halves = drawn.tokens.unflatten(1, (2, 20))
    # 160 pairs of fair coins are all equal with probability 2^-160.
    assert not torch.equal(halves[:, 0], halves[:, 1])
