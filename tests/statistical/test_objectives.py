"""Every objective is an unbiased estimate of its enumerated bound, for an arbitrary denoiser.

The false-alarm rate of each mean is 1e-6 (4.9 standard errors). The broken twins are off by more
than twice that, so each is caught with a probability above 0.999.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import norm

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.losses import masked_terms
from seqdiff.objectives import ContinuousNELBO, DiscreteNELBO, Objective, WeightedMLM
from seqdiff.objectives.time_sampling import Importance, Sobol, Stratified, Uniform
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Cosine, Linear, NoiseSchedule
from seqdiff.types import Batch, Inputs
from tests.oracles import (
    LookupBackbone,
    all_masks,
    enumerated_nelbo,
    mask_distribution,
    masked_model,
)

K, L, ROWS, STEPS = 3, 4, 30_000, 3
X0 = torch.tensor([2, 0, 1, 1])
SIGMAS = float(norm.isf(0.5e-6))
DENOISER = masked_model(LookupBackbone(K, L, seed=7))


def scheduled(schedule: NoiseSchedule) -> Denoiser:
    return masked_model(DENOISER.backbone, schedule)


def batch(loss_mask: torch.Tensor | None = None, tokens: torch.Tensor = X0) -> Batch:
    mask = torch.ones(L, dtype=torch.bool) if loss_mask is None else loss_mask
    return Batch(tokens.repeat(ROWS, 1), mask.repeat(ROWS, 1), torch.arange(ROWS))


def z_score(objective: Objective, denoiser: Denoiser, exact: float) -> float:
    rows = objective.terms(denoiser, batch(), CounterNoise(11)).double().sum(dim=-1)
    return float((rows.mean() - exact) / (rows.std() / math.sqrt(ROWS)))


def discrete_bound(schedule: NoiseSchedule, num_steps: int) -> float:
    """The T-step bound, enumerated over every step and every mask pattern."""
    masks = all_masks(L)
    clean = X0.expand(len(masks), L)
    nats = -DENOISER(Inputs(clean.masked_fill(masks, K))).gather(-1, clean[..., None])[..., 0]
    cost, total = torch.where(masks, nats, 0.0).sum(dim=-1), 0.0
    for step in range(num_steps):
        ends = torch.tensor([step / num_steps, (step + 1) / num_steps], dtype=torch.float64)
        alpha_s, alpha_t = schedule.alpha(ends).tolist()
        unmask = (alpha_s - alpha_t) / (1 - alpha_t)
        total += unmask * float(mask_distribution(masks, alpha_t) @ cost)
    return total


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize(
    "objective",
    [
        ContinuousNELBO(Uniform()),
        ContinuousNELBO(Stratified(8)),
        ContinuousNELBO(Sobol()),
        ContinuousNELBO(Importance((3.0, 1.0, 2.0))),
        WeightedMLM(),
    ],
    ids=["uniform", "stratified", "sobol", "importance", "mlm"],
)
def test_continuous_objectives_estimate_the_bound(objective: Objective, schedule) -> None:
    denoiser = scheduled(schedule)
    assert abs(z_score(objective, denoiser, enumerated_nelbo(denoiser, X0))) < SIGMAS


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=lambda s: type(s).__name__)
def test_discrete_objective_estimates_its_own_bound(schedule) -> None:
    denoiser, exact = scheduled(schedule), discrete_bound(schedule, STEPS)
    assert abs(z_score(DiscreteNELBO(STEPS), denoiser, exact)) < SIGMAS
    limit = enumerated_nelbo(denoiser, X0)
    assert discrete_bound(schedule, 4000) == pytest.approx(limit, rel=1e-3)


@dataclass(frozen=True)
class NeverOne(WeightedMLM):
    """Broken: never masks exactly one token."""

    def terms(self, denoiser, batch, noise):
        count = torch.randint(2, L + 1, (ROWS,), generator=torch.Generator().manual_seed(0))
        draws = noise.uniform(batch.index, L, stream=1)
        x_t = denoiser.process.corrupt_exactly(batch.tokens, count, noise=draws)
        return masked_terms(denoiser, batch, x_t, None, L / count)


@dataclass(frozen=True)
class WithoutDensity(ContinuousNELBO):
    """Broken: importance times without the inverse density."""

    def terms(self, denoiser, batch, noise):
        sampler = Importance((12.0, 1.0))
        terms = ContinuousNELBO(sampler).terms(denoiser, batch, noise)
        return terms / sampler.sample(batch.index, noise=noise)[1][:, None]


@dataclass(frozen=True)
class MaskedMean(WeightedMLM):
    """Broken: the mean over masked tokens, without the weight n / k."""

    def terms(self, denoiser, batch, noise):
        draws = noise.uniform(batch.index, L, stream=1)
        count = (batch.index % L) + 1
        x_t = denoiser.process.corrupt_exactly(batch.tokens, count, noise=draws)
        return masked_terms(denoiser, batch, x_t, None, torch.ones(ROWS))


@pytest.mark.parametrize("broken", [NeverOne(), WithoutDensity(), MaskedMean()])
def test_broken_objectives_are_caught(broken: Objective) -> None:
    exact = enumerated_nelbo(DENOISER, X0)
    assert abs(z_score(broken, DENOISER, exact)) > 2 * SIGMAS


OBJECTIVES = [ContinuousNELBO(), DiscreteNELBO(STEPS), WeightedMLM()]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_context_and_unknown_symbols_never_count(objective: Objective) -> None:
    """Position 1 is context and position 2 is unknown: both stay unchanged and
    contribute nothing.
    """
    seen: list[torch.Tensor] = []

    class Watching(Denoiser):
        def nats(self, inputs, x0, where):
            seen.append(inputs.tokens)
            return super().nats(inputs, x0, where)

    tokens = torch.tensor([2, 0, K, 1])
    mask = torch.tensor([True, False, False, True])
    watching = Watching(DENOISER.backbone, DENOISER.process)
    terms = objective.terms(watching, batch(mask, tokens), CounterNoise(0))
    assert bool((terms[:, 1:3] == 0).all()) and bool((terms[:, [0, 3]] > 0).any())
    assert bool((seen[0][:, 1] == 0).all()) and bool((seen[0][:, 2] == K).all())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_a_row_without_counted_tokens_gives_nothing(objective: Objective) -> None:
    empty = batch(torch.zeros(L, dtype=torch.bool), torch.full((L,), K))
    terms = objective.terms(DENOISER, empty, CounterNoise(0))
    assert bool((terms == 0).all())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_terms_do_not_depend_on_how_rows_are_batched(objective: Objective) -> None:
    noise = CounterNoise(5)
    whole = batch()
    parts = [whole.index[i : i + 7] for i in range(0, 70, 7)]
    pieces = [
        objective.terms(DENOISER, Batch(whole.tokens[p], whole.loss_mask[p], p), noise)
        for p in parts
    ]
    terms = objective.terms(DENOISER, whole, noise)
    assert torch.equal(torch.cat(pieces), terms[:70])


def test_bad_number_of_steps() -> None:
    with pytest.raises(ValueError, match=r"DiscreteNELBO.num_steps must be at least 1, got 0"):
        DiscreteNELBO(0)
