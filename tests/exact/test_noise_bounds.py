"""The bounds of exact predictions, for every process, by quadrature and enumeration."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import DiscreteSteps, TimeIntegral
from seqdiff.likelihood.estimator import PassNoise
from seqdiff.likelihood.time_integral import noise_fraction
from seqdiff.losses import (
    continuous_terms,
    ctmc_nelbo,
    discrete_kl,
    mask_column_kl,
    prior_terms,
    reconstruction_terms,
    score_entropy,
    step_terms,
)
from seqdiff.objectives import (
    ContinuousNELBO,
    CrossEntropy,
    DiscreteNELBO,
    validation_objective,
)
from seqdiff.objectives import base as objectives_base
from seqdiff.objectives.time_sampling import Importance, Sobol, TimeSampler
from seqdiff.objectives.time_sampling import Uniform as UniformTimes
from seqdiff.parameterization import (
    Full,
    LeaveOneOut,
    MaskColumn,
    Score,
    Subs,
    scores_from_distribution,
)
from seqdiff.process import Absorbing, DiscreteProcess, Hybrid, Uniform
from seqdiff.rng import MASK_STREAM, RECONSTRUCTION_STREAM, TIME_STREAM, CounterNoise
from seqdiff.schedules import Cosine, Geometric, Linear, LogLinear
from seqdiff.types import Batch
from tests.noise_worlds import (
    TableBackbone,
    World,
    bound_integral,
    ends_quadrature,
    golden_probs,
    random_probs,
)

COMPLETE: list[DiscreteProcess] = [
    Absorbing(2, Linear()),
    Absorbing(2, Cosine()),
    Uniform(2, Linear()),
    Uniform(2, Cosine()),
    Hybrid(2, 0.1),
    Hybrid(2, 0.5),
]


def name(process: DiscreteProcess) -> str:
    return f"{process.name}-{type(getattr(process, 'schedule', None)).__name__}"


def exact_bound(world: World, x: Tensor, distribution=None) -> float:
    """The continuous-time integral with exact predictions, or with another function of (z, t)."""
    predict = distribution or world.log_loo

    def term(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        return ctmc_nelbo(predict(z, t[:, 0]), x0, z, t, world.process)

    return bound_integral(world, term, x)


@pytest.mark.parametrize("process", COMPLETE, ids=name)
def test_exact_leave_one_out_predictions_attain_the_likelihood(process):
    """The uniform and hybrid bounds are tight, for every single row."""
    world = World(process, golden_probs(), 2)
    for row, chance in zip(world.clean, world.probs, strict=True):
        assert exact_bound(world, row) == pytest.approx(-math.log(chance), abs=1e-10)


def test_exact_predictions_attain_it_for_three_symbols_too():
    for process in (Uniform(3, Linear()), Hybrid(3, 0.3)):
        world = World(process, random_probs(9, seed=2), 2)
        for row, chance in list(zip(world.clean, world.probs, strict=True))[::4]:
            assert exact_bound(world, row) == pytest.approx(-math.log(chance), abs=1e-9)


def test_full_predictions_in_their_place_are_plausible_and_wrong():
    """Broken twin of every test of uniform noise: its value, by row, looks plausible."""
    world = World(Uniform(2, Linear()), golden_probs(), 2)
    found = [exact_bound(world, row, world.log_full) for row in world.clean]
    expected = [1.45948051, 2.15211227, 2.15211227, 1.84557726]
    assert found == pytest.approx(expected, abs=1e-7)
    mean = sum(p * f for p, f in zip(world.probs.tolist(), found, strict=True))
    assert mean == pytest.approx(1.713835888880, abs=1e-9)
    assert mean > 1.168282450177


def test_cross_entropy_of_unchanged_tokens_counts_in_uniform_noise():
    world = World(Uniform(2, Linear()), golden_probs(), 2)

    def twin(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        terms = ctmc_nelbo(world.log_loo(z, t[:, 0]), x0, z, t, world.process)
        return torch.where(z == x0, 0.0, terms)

    assert bound_integral(world, twin, world.clean[0]) < -math.log(0.5) - 0.05


@pytest.mark.parametrize(
    "process",
    [Uniform(2, Geometric(1e-2, 3.0)), Uniform(2, LogLinear(0.2)), Uniform(2, Cosine(0.1))],
    ids=["geometric", "loglinear", "cosine"],
)
def test_noise_that_begins_late_and_ends_early_is_paid_for(process):
    """All three terms = -log p + KL(q_1(.|x) || prior) - KL(q_1(.|x) || p_1), for each row.

    Up to the decoder, which predicts the tokens of x given z_0 independently.
    """
    world = World(process, golden_probs(), 2)
    one, zero = torch.ones(1).double(), torch.zeros(1).double()
    last = world.log_q(one[0])
    mixture = (world.probs.log()[:, None] + last).logsumexp(dim=0)
    for number, row in enumerate(world.clean):
        z = world.noisy
        chances = world.log_q(zero[0])[number].exp()
        full = world.log_full(z, zero.expand(len(z)))
        decoded = full.gather(-1, row.expand(len(z), -1)[..., None])[..., 0].sum(-1)
        possible = chances > 0
        reconstruction = -float((chances * decoded)[possible].sum())
        first = world.log_q(zero[0])
        joint = (world.probs.log()[:, None] + first).log_softmax(dim=0)[number]
        decoder_gap = float((chances * (joint - decoded))[possible].sum())
        prior = float(process.prior_kl(row).sum())
        assert prior > 0
        total = exact_bound(world, row) + reconstruction + prior
        slack = float((last[number].exp() * (last[number] - mixture)).sum())
        expected = -math.log(world.probs[number]) + prior - slack + decoder_gap
        assert total == pytest.approx(expected, abs=1e-9)
        if reconstruction > 0:  # the twins: a term is missing
            assert total - reconstruction < expected - 1e-4
        assert total - prior < expected - 1e-4


GAPS = {
    "absorbing": [0.177741, 0.088870, 0.044435, 0.022218, 0.011109, 0.005554],
    "uniform": [
        0.177740883842,
        0.114562576506,
        0.061174787011,
        0.031128638441,
        0.015634815981,
        0.007826330542,
    ],
}


def chain_bound(world: World, steps: int) -> float:
    """E[NELBO_T] with exact kernels: every step, every row, every noisy row."""
    process, total = world.process, 0.0
    for i in range(1, steps + 1):
        s, t = torch.tensor([(i - 1) / steps, i / steps], dtype=torch.float64)
        chances = (world.probs[:, None] * world.log_q(t).exp()).flatten()
        clean = world.clean.repeat_interleave(len(world.noisy), dim=0)
        z = world.noisy.repeat(len(world.clean), 1)
        distribution = world.log_loo(z, t.expand(len(z)))
        times = t.expand(z.shape), s.expand(z.shape)
        if isinstance(process, Absorbing):
            terms = mask_column_kl(distribution, clean, times[1], times[0], process)
            terms = torch.where(z == process.mask_id, terms, 0.0)
        else:
            terms = discrete_kl(distribution, clean, z, times[1], times[0], process)
        total += float((chances * terms.sum(-1).nan_to_num())[chances > 0].sum())
    return total


@pytest.mark.parametrize("process", [Absorbing(2, Linear()), Uniform(2, Linear())], ids=name)
def test_gaps_of_finite_chains(process):
    world = World(process, golden_probs(), 2)
    entropy = 1.168282450177
    gaps = [chain_bound(world, 2**k) - entropy for k in range(6)]
    assert gaps == pytest.approx(GAPS[process.name], abs=6e-7)


@pytest.mark.parametrize(
    "process", [Absorbing(3, Cosine()), Uniform(3, Linear()), Hybrid(3, 0.2)], ids=name
)
def test_single_tokens_have_no_gap_at_any_number_of_steps(process):
    world = World(process, torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64), 1)
    entropy = float(-(world.probs * world.probs.log()).sum())
    for steps in (1, 3):
        assert chain_bound(world, steps) == pytest.approx(entropy, abs=1e-10)
    for row, chance in zip(world.clean, world.probs, strict=True):
        assert exact_bound(world, row) == pytest.approx(-math.log(chance), abs=1e-9)


@pytest.mark.parametrize("process", COMPLETE, ids=name)
def test_a_uniform_predictor_costs_log_k_a_token(process):
    world = World(process, golden_probs(), 2)

    def flat(z: Tensor, t: Tensor) -> Tensor:
        return torch.full((*z.shape, 2), -math.log(2), dtype=torch.float64)

    assert exact_bound(world, world.clean[1], flat) == pytest.approx(2 * math.log(2), abs=1e-10)


@pytest.mark.parametrize("size", [3, 27])
def test_the_part_of_the_integral_that_published_evaluations_keep(size):
    """From alpha = 1 to c a uniform predictor pays log K - KL(q_c || U); and Duo's truncation."""
    process, c = Uniform(size, Linear()), 0.3
    flat = torch.full((1, size), -math.log(size), dtype=torch.float64)

    def part(low: float, high: float, alpha: float = 1.0) -> float:
        """The integral over the noise fraction from low to high; symmetric in symbols."""
        total = 0.0
        for place, weight in zip(*ends_quadrature(), strict=True):
            t = torch.tensor([low + (high - low) * float(place)], dtype=torch.float64)
            kept = float(process.alpha(t)) * alpha + (1 - float(process.alpha(t)) * alpha) / size
            for z, chance in ((0, kept), (1, 1 - kept)):
                terms = ctmc_nelbo(flat, torch.tensor([0]), torch.tensor([z]), t, process)
                total += (high - low) * float(weight) * chance * float(terms)
        return total

    q1, q0 = c + (1 - c) / size, (1 - c) / size
    divergence = q1 * math.log(size * q1) + (size - 1) * q0 * math.log(size * q0)
    assert part(0.0, 1 - c) == pytest.approx(math.log(size) - divergence, abs=1e-9)
    published = {3: None, 27: 3.28833}[size]
    if published is not None:  # the mean over t in [1e-3, 1] of alpha = 1 - .999 t, no end terms
        assert part(0.999e-3, 0.999) / 0.999 == pytest.approx(published, abs=1e-5)
        assert math.log(27) == pytest.approx(3.29584, abs=1e-5)


# Score entropy


@pytest.mark.parametrize("process", [Absorbing(2, Linear()), Uniform(2, Linear())], ids=name)
def test_score_entropy_of_exact_scores_attains_the_likelihood(process):
    world = World(process, golden_probs(), 2)

    def term(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        scores = scores_from_distribution(world.log_loo(z, t[:, 0]), z, t, process)
        return score_entropy(scores, x0, z, t, process)

    def shifted(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        scores = scores_from_distribution(world.log_loo(z, t[:, 0]), z, t, process) + math.log(2)
        return score_entropy(scores.scatter(-1, z[..., None], 0.0), x0, z, t, process)

    def without_rate(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        return term(x0, z, t) / process.schedule.dsigma(t)

    for row, chance in list(zip(world.clean, world.probs, strict=True))[:2]:
        truth = -math.log(chance)
        assert bound_integral(world, term, row) == pytest.approx(truth, abs=1e-9)
        assert bound_integral(world, shifted, row) > truth + 0.1  # without the log K offset
        assert bound_integral(world, without_rate, row) < truth - 0.1  # without sigma'


# Objectives and estimators


def every_row(world: World, copies: int) -> tuple[Batch, Tensor]:
    """Copies of each clean row with independent noise, and their costs."""
    rows = world.clean.repeat_interleave(copies, dim=0)
    ones = torch.ones_like(rows, dtype=torch.bool)
    truth = -world.probs.log()
    return Batch(rows, ones, torch.arange(len(rows))), truth


SLIPS = torch.tensor([[2.0, 0.3], [-0.4, 1.1]], dtype=torch.float64)


def denoiser_of(world: World, parameterization) -> Denoiser:
    """Exact predictions, with slips where tokens are not copied: see ``SLIPS``."""
    process = world.process

    def outputs(z: Tensor, t: Tensor) -> Tensor:
        loo = world.log_loo(z, t)
        if not parameterization.carry_over:
            visible = SLIPS[z.clamp_max(world.size - 1)]
            loo = torch.where((z < world.size)[..., None], visible, loo)
        if isinstance(parameterization, Full):
            return world.log_full(z, t)
        if isinstance(parameterization, Score):
            time = t[:, None].expand(z.shape)
            scores = scores_from_distribution(loo, z, time, process)
            zero = parameterization.read(torch.zeros_like(scores), z, time, process)
            return torch.where(scores.isfinite(), scores - zero, -60.0)
        if isinstance(parameterization, MaskColumn):
            return torch.nn.functional.pad(loo, (0, 1), value=-80.0)
        return loo

    network = TableBackbone(outputs, parameterization.num_outputs(process))
    return Denoiser(network, process, parameterization)


SYSTEMS = [
    (Absorbing(2, Linear()), Subs()),
    (Absorbing(2, Cosine()), MaskColumn()),
    (Absorbing(2, LogLinear()), Score()),
    (Absorbing(2, Linear()), Subs(carry_over=False)),
    (Absorbing(2, Cosine()), MaskColumn(carry_over=False)),
    (Uniform(2, Cosine()), LeaveOneOut()),
    (Uniform(2, Linear()), Full()),
    (Uniform(2, Geometric(1e-2, 3.0)), Score()),
    (Uniform(2, Geometric(1e-2, 3.0)), LeaveOneOut()),
    (Hybrid(2, 0.3), LeaveOneOut()),
    (Hybrid(2, 0.3), Full()),
]
systems = pytest.mark.parametrize(
    ("process", "parameterization"), SYSTEMS, ids=lambda part: part.name
)


def slips(world: World, parameterization) -> Tensor:
    """-log p(x0 | z_0 = x0) of each row, by a network that does not copy exactly."""
    each = -SLIPS.log_softmax(dim=-1).diagonal()[world.clean].sum(dim=-1)
    return each * (not parameterization.carry_over)


def attainable(world: World, parameterization) -> Tensor:
    """-log p of each row, plus the cost of a schedule that ends early, and slips."""
    last = world.log_q(torch.ones(()).double())
    mixture = (world.probs.log()[:, None] + last).logsumexp(dim=0)
    slack = (last.exp() * (last - mixture)).nan_to_num().sum(-1)
    prior = world.process.prior_kl(world.clean).sum(-1)
    extra = torch.where(prior > 0, prior - slack, 0.0)
    return -world.probs.log() + extra + slips(world, parameterization)


@systems
def test_objectives_and_estimators_estimate_the_bound_without_bias(process, parameterization):
    """Means of many draws lie within 5 standard errors of the truth; one in 10^6 fails
    by chance.
    """
    world = World(process, golden_probs(), 2)
    denoiser, copies = denoiser_of(world, parameterization), 4000
    batch, _ = every_row(world, copies)
    truth = attainable(world, parameterization)
    sums = {"objective": ContinuousNELBO().terms(denoiser, batch, CounterNoise(1)).sum(-1).double()}
    estimator = TimeIntegral(2)
    noise = PassNoise(CounterNoise(2))
    values = torch.stack(
        [
            estimator.value(denoiser, batch, torch.full((len(batch.tokens),), e), noise=noise)
            for e in range(4)
        ]
    )
    sums["estimator"] = values[:2].mean(0) + values[2:].mean(0)
    for found in sums.values():
        rows = found.view(len(world.clean), copies)
        error = rows.std(dim=1) / math.sqrt(copies)
        assert ((rows.mean(dim=1) - truth).abs() < 5 * error + 1e-9).all(), (
            rows.mean(dim=1),
            truth,
            error,
        )


@pytest.mark.parametrize(
    ("process", "parameterization"),
    [s for s in SYSTEMS if s[1].kind != "score"],
    ids=lambda part: part.name,
)
def test_chains_of_steps_are_estimated_without_bias(process, parameterization):
    world = World(process, golden_probs(), 2)
    denoiser, copies, steps = denoiser_of(world, parameterization), 4000, 4
    batch, _ = every_row(world, copies)
    found = DiscreteNELBO(steps).terms(denoiser, batch, CounterNoise(3)).sum(-1).double()
    estimator, noise = DiscreteSteps(2, num_steps=steps), PassNoise(CounterNoise(4))
    values = torch.stack(
        [
            estimator.value(denoiser, batch, torch.full((len(batch.tokens),), e), noise=noise)
            for e in range(4)
        ]
    )
    means = [found.view(4, copies), (values[:2].mean(0) + values[2:].mean(0)).view(4, copies)]
    first, second = (m.mean(1) for m in means)
    errors = [m.std(1) / math.sqrt(copies) for m in means]
    assert ((first - second).abs() < 5 * (errors[0] ** 2 + errors[1] ** 2).sqrt()).all()
    if process.starts_clean and process.forgets:
        weights = world.probs
        expected = chain_bound(world, steps) + float(weights @ slips(world, parameterization))
        error = float(((weights * errors[0]) ** 2).sum().sqrt())
        assert float(weights @ first) == pytest.approx(expected, abs=5 * error + 1e-9)


# The same without randomness: all noise of a single token, chosen and weighted


@dataclass(frozen=True, kw_only=True)
class Chosen(CounterNoise):
    """Given numbers instead of noise: a row's time, the point that decides z, whether
    z_0 counts.
    """

    seed: int = 0
    time: Tensor
    place: Tensor
    decoded: bool = False

    def uniform(self, index: Tensor, length: int, *, stream: int | Tensor) -> Tensor:
        kind = int(torch.as_tensor(stream).flatten()[0]) % 16
        decoded = torch.full_like(self.time, 0.0 if self.decoded else 1.0)
        of = {TIME_STREAM: self.time, MASK_STREAM: self.place, RECONSTRUCTION_STREAM: decoded}
        return of[kind][index, None].expand(-1, length)


Value = Callable[[Batch, CounterNoise], Tensor]


def mean_over_noise(
    world: World, x: Tensor, value: Value, u: Tensor, weight: Tensor, t: Tensor, decoded=False
) -> float:
    """The mean of an estimate of a one-token row, over draws u of the time t and every z_t."""
    process = world.process
    chances = process.log_marginal(process.one_hot(x.expand(len(t))), t).exp()
    place = (chances.cumsum(-1) - chances / 2).flatten()  # the centre of the state's cell
    place = 1 - place if isinstance(process, Absorbing) else place
    rows = x.expand(len(place), 1)
    batch = Batch(rows, torch.ones_like(rows, dtype=torch.bool), torch.arange(len(rows)))
    noise = Chosen(time=u.repeat_interleave(process.states), place=place, decoded=decoded)
    total = (weight[:, None] * chances).flatten()
    return float((total * value(batch, noise))[total > 0].sum())


def objective_mean(world: World, objective, denoiser: Denoiser, x: Tensor) -> float:
    def value(batch: Batch, noise: CounterNoise) -> Tensor:
        return objective.terms(denoiser, batch, noise).sum(-1).double()

    sampler = objective.time_sampler
    if isinstance(objective, DiscreteNELBO):
        # a power of 2, so that no draw of ``IMPORTANCE`` is between steps
        count = 4 * objective.num_steps
        u, weight = (torch.arange(count).double() + 0.5) / count, torch.full((count,), 1 / count)
        weight = weight.double()
    else:  # ``IMPORTANCE`` has a jump at 3/4
        place, weight = ends_quadrature()
        u = torch.cat((place * 0.75, 0.75 + place * 0.25))
        weight = torch.cat((weight * 0.75, weight * 0.25))
    t = sampler.sample(torch.arange(len(u)), noise=Chosen(time=u, place=u))[0]
    if isinstance(objective, DiscreteNELBO):
        t = (t * objective.num_steps).ceil() / objective.num_steps
    elif isinstance(objective, ContinuousNELBO) and isinstance(world.process, Hybrid):
        t = world.process.time_at(t)[0]
    half, one, zero = (torch.tensor([number]).double() for number in (0.5, 1.0, 0.0))
    ends = [
        mean_over_noise(world, x, value, half, one, zero, decoded=decoded)
        for decoded in (True, False)
    ]
    return mean_over_noise(world, x, value, u, weight, t) + (ends[0] - ends[1]) / 8


def estimator_mean(world: World, estimator, denoiser: Denoiser, x: Tensor) -> float:
    def at(number: int) -> Value:
        return lambda batch, noise: estimator.value(
            denoiser, batch, torch.full_like(batch.index, number), noise=PassNoise(noise)
        )

    u, weight = ends_quadrature()
    half, one, zero = (torch.tensor([number]).double() for number in (0.5, 1.0, 0.0))
    end = mean_over_noise(world, x, at(2), half, one, zero)
    if isinstance(estimator, DiscreteSteps):  # its integrand jumps from step to step
        count = estimator.num_steps

        def terms(batch: Batch, noise: CounterNoise) -> Tensor:
            assert isinstance(noise, Chosen)
            places = noise.place[:, None]
            return estimator.terms_at(
                denoiser, batch, noise.time, torch.ones_like(noise.time), places
            ).sum(-1)

        u = (torch.arange(count).double() + 0.5) / count
        return end + mean_over_noise(
            world, x, terms, u, torch.full_like(u, 1 / count), (u * count).ceil() / count
        )
    t = world.process.time_at(noise_fraction(u)[0])[0]
    return end + mean_over_noise(world, x, at(0), u, weight, t)


@dataclass(frozen=True)
class Truncated(TimeSampler):
    """Broken: times in [1e-3, 1], as in published evaluations."""

    def sample(self, index: Tensor, *, noise: CounterNoise) -> tuple[Tensor, Tensor]:
        u = noise.uniform(index, 1, stream=TIME_STREAM)[:, 0]
        return 1e-3 + (1 - 1e-3) * u, torch.ones_like(u)


LEFT_OVER = [
    *SYSTEMS,
    (Uniform(2, LogLinear(0.2)), LeaveOneOut()),
    (Uniform(2, LogLinear(0.2)), Score()),
]


@pytest.mark.parametrize(("process", "parameterization"), LEFT_OVER, ids=lambda part: part.name)
def test_all_noise_together_gives_the_likelihood_of_a_token(process, parameterization):
    """No end of the time interval is missing, whatever alpha(0) and alpha(1) are."""
    world = World(process, torch.tensor([0.7, 0.3], dtype=torch.float64), 1)
    denoiser, truth = denoiser_of(world, parameterization), attainable(world, parameterization)
    chains = parameterization.kind != "score"
    objectives = [ContinuousNELBO(), DiscreteNELBO(4)][: 1 + chains]
    estimators = [TimeIntegral(2), DiscreteSteps(2, num_steps=4)][: 1 + chains]
    for row, expected in zip(world.clean, truth.tolist(), strict=True):
        for objective in objectives:
            found = objective_mean(world, objective, denoiser, row)
            assert found == pytest.approx(expected, abs=1e-6), objective
        for estimator in estimators:
            found = estimator_mean(world, estimator, denoiser, row)
            assert found == pytest.approx(expected, abs=1e-6), estimator


IMPORTANCE = Importance((3.0, 1.0))


@pytest.mark.parametrize(
    ("process", "parameterization"),
    [
        (Absorbing(2, Cosine()), MaskColumn()),
        (Uniform(2, Cosine()), LeaveOneOut()),
        (Uniform(2, LogLinear(0.2)), Full()),
        (Hybrid(2, 0.3), LeaveOneOut()),
    ],
    ids=lambda part: part.name,
)
@pytest.mark.parametrize(
    "make",
    [ContinuousNELBO, lambda times: DiscreteNELBO(4, times), CrossEntropy],
    ids=["continuous", "discrete", "cross-entropy"],
)
def test_no_mean_depends_on_the_density_of_the_times(process, parameterization, make):
    """The twins omit the inverse density."""
    world = World(process, torch.tensor([0.7, 0.3], dtype=torch.float64), 1)
    denoiser, row = denoiser_of(world, parameterization), world.clean[1]
    plain, often = (
        objective_mean(world, make(sampler), denoiser, row)
        for sampler in (UniformTimes(), IMPORTANCE)
    )
    assert often == pytest.approx(plain, abs=1e-6)


def test_ends_that_published_evaluations_leave_out_are_paid_for(monkeypatch):
    """A uniform predictor of 27 symbols: log 27 = 3.29584, published as 3.28833."""
    process = Uniform(27, LogLinear(1e-3))
    world = World(process, torch.full((27,), 1 / 27, dtype=torch.float64), 1)
    denoiser, row = denoiser_of(world, LeaveOneOut()), world.clean[3]
    found = objective_mean(world, ContinuousNELBO(), denoiser, row)
    assert found == pytest.approx(math.log(27), abs=1e-8)
    assert estimator_mean(world, TimeIntegral(2), denoiser, row) == pytest.approx(found, abs=1e-8)
    prior = float(process.prior_kl(row).sum())
    monkeypatch.setattr(objectives_base, "prior_terms", lambda _, batch: 0 * batch.tokens.double())
    without = objective_mean(world, ContinuousNELBO(), denoiser, row)
    assert found - without == pytest.approx(prior, abs=1e-9)
    twin = objective_mean(world, ContinuousNELBO(Truncated()), denoiser, row)
    assert twin == pytest.approx(3.28833, abs=1e-5)


def test_an_auxiliary_cross_entropy_is_added_and_no_part_of_the_bound():
    world = World(Uniform(2, Linear()), golden_probs(), 2)
    denoiser = denoiser_of(world, LeaveOneOut())
    batch, _ = every_row(world, 3)
    noise = CounterNoise(5)
    plain = DiscreteNELBO(10).terms(denoiser, batch, noise)
    more = DiscreteNELBO(10, auxiliary=0.01).terms(denoiser, batch, noise)
    u = noise.uniform(batch.index, 1, stream=0)[:, 0]
    t = ((u * 10).long() + 1) / 10
    z = world.process.corrupt(
        batch.tokens, t, noise=noise.uniform(batch.index, batch.tokens.shape[1], stream=1)
    )
    nats = -world.log_loo(z, t).gather(-1, batch.tokens[..., None])[..., 0]
    torch.testing.assert_close(more - plain, 10 * 0.01 * nats)


@pytest.mark.parametrize(
    ("process", "parameterization"),
    [(Absorbing(2, Cosine()), MaskColumn()), (Uniform(2, Linear()), LeaveOneOut())],
    ids=lambda part: part.name,
)
def test_runs_are_validated_by_a_bound(process, parameterization):
    """The twin includes D3PM's auxiliary cross-entropy."""
    world = World(process, golden_probs(), 2)
    denoiser = denoiser_of(world, parameterization)
    chain = DiscreteNELBO(10, Sobol())
    for auxiliary in (0.0, 0.01):
        trained = DiscreteNELBO(10, Sobol(), auxiliary=auxiliary)
        assert validation_objective(trained, denoiser) == chain
    for trained in (ContinuousNELBO(), CrossEntropy()):
        assert validation_objective(trained, denoiser) == ContinuousNELBO(Sobol())


def test_terms_outside_the_loss_mask_are_zero_and_context_is_given():
    world = World(Uniform(2, Linear()), golden_probs(), 2)
    denoiser = denoiser_of(world, LeaveOneOut())
    rows = world.clean
    counted = torch.tensor([[True, False]]).expand(4, -1)
    batch = Batch(rows, counted, torch.arange(4))
    t = torch.full((4,), 0.9).double()
    z = world.process.corrupt(rows, t, keep=~counted, noise=torch.full((4, 2), 0.999).double())
    assert (z[:, 1] == rows[:, 1]).all()
    one = torch.ones(4).double()
    for terms in (
        continuous_terms(denoiser, batch, z, t, one),
        step_terms(denoiser, batch, z, t - 0.1, t, one),
        reconstruction_terms(denoiser, batch, z, one),
        prior_terms(denoiser, batch),
    ):
        assert (terms[:, 1] == 0).all()


def test_a_copied_symbol_may_not_score_below_the_entropy():
    """A joint likelihood of two sub-tokens with one weight is no bound (MDM-Prime); ours sums."""
    world = World(
        Absorbing(2, Linear()), torch.tensor([0.7, 0.0, 0.0, 0.3], dtype=torch.float64), 2
    )
    entropy = -(0.7 * math.log(0.7) + 0.3 * math.log(0.3))

    def mean(term=None) -> float:
        rows = [(0.7, world.clean[0]), (0.3, world.clean[3])]
        bounds = [
            exact_bound(world, x) if term is None else bound_integral(world, term, x)
            for _, x in rows
        ]
        return sum(chance * bound for (chance, _), bound in zip(rows, bounds, strict=True))

    assert mean() == pytest.approx(entropy, abs=1e-9)

    def jointly(x0: Tensor, z: Tensor, t: Tensor) -> Tensor:
        """-log p(both | z) instead of each -log p(one | z): a copy is free."""
        terms = ctmc_nelbo(world.log_loo(z, t[:, 0]), x0, z, t, world.process)
        terms[(z == 2).all(dim=-1), 1] = 0.0
        return terms

    assert mean(jointly) == pytest.approx(entropy / 2, abs=1e-9)
