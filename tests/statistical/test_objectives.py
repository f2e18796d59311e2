"""Every objective is an unbiased estimate of its enumerated bound, on an arbitrary denoiser.

False-alarm rate 1e-6 for each mean (4.9 standard errors). The broken twins are off by more than
twice that, so each is caught with a probability above 0.999.
"""

import math
from dataclasses import dataclass

import pytest
import torch
from scipy.stats import norm

from seqdiff.denoiser import Denoiser
from seqdiff.losses import weighted_mlm
from seqdiff.objectives import ContinuousNELBO, DiscreteNELBO, Objective, WeightedMLM
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Cosine, Linear
from seqdiff.time_sampling import Importance, Sobol, Stratified, Uniform
from seqdiff.types import Batch
from tests.oracles import LookupBackbone, all_masks, enumerated_nelbo, mask_law

K, L, ROWS, STEPS = 3, 4, 30_000, 3
X0 = torch.tensor([2, 0, 1, 1])
SIGMAS = float(norm.isf(0.5e-6))
DENOISER = masked_model(LookupBackbone(K, L, seed=7))


def batch(loss_mask: torch.Tensor | None = None, tokens: torch.Tensor = X0) -> Batch:
    mask = torch.ones(L, dtype=torch.bool) if loss_mask is None else loss_mask
    return Batch(tokens.repeat(ROWS, 1), mask.repeat(ROWS, 1), torch.arange(ROWS))


def z_score(objective: Objective, process: Absorbing, exact: float) -> float:
    rows = objective.terms(DENOISER, batch(), CounterNoise(11)).double().sum(dim=-1)
    return float((rows.mean() - exact) / (rows.std() / math.sqrt(ROWS)))


def discrete_bound(process: Absorbing, num_steps: int) -> float:
    """The T-step bound, every step and every mask pattern enumerated."""
    masks = all_masks(L)
    clean = X0.expand(len(masks), L)
    x_t = torch.where(masks, K, clean)
    log_probs = DENOISER(x_t)
    total = 0.0
    for step in range(num_steps):
        s, t = (torch.tensor([x / num_steps], dtype=torch.float64) for x in (step, step + 1))
        weight = process.reveal_probability(s, t).expand(len(masks))
        rows = weighted_mlm(log_probs, clean, x_t, weight).sum(dim=-1)
        total += float(mask_law(masks, float(process.schedule.alpha(t))) @ rows)
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
    process = Absorbing(K, schedule)
    assert abs(z_score(objective, process, enumerated_nelbo(DENOISER, process, X0))) < SIGMAS


@pytest.mark.parametrize("schedule", [Linear(), Cosine()], ids=lambda s: type(s).__name__)
def test_discrete_objective_estimates_its_own_bound(schedule) -> None:
    process = Absorbing(K, schedule)
    exact = discrete_bound(process, STEPS)
    assert abs(z_score(DiscreteNELBO(STEPS), process, exact)) < SIGMAS
    assert discrete_bound(process, 4000) == pytest.approx(
        enumerated_nelbo(DENOISER, process, X0), rel=1e-3
    )


@dataclass(frozen=True)
class NeverOne(Objective):
    """Broken: never masks exactly one token."""

    def terms(self, denoiser, process, batch, noise):
        count = torch.randint(2, L + 1, (ROWS,), generator=torch.Generator().manual_seed(0))
        draws = noise.uniform(batch.index, L, stream=1)
        x_t = process.corrupt_exactly(batch.tokens, count, noise=draws)
        return weighted_mlm(denoiser(x_t), batch.tokens, x_t, L / count)


@dataclass(frozen=True)
class WithoutDensity(Objective):
    """Broken: importance times without the inverse density."""

    def terms(self, denoiser, process, batch, noise):
        sampler = Importance((12.0, 1.0))
        terms = ContinuousNELBO(sampler).terms(denoiser, batch, noise)
        return terms / sampler.sample(batch.index, noise=noise)[1][:, None]


@dataclass(frozen=True)
class MaskedMean(Objective):
    """Broken: the mean over masked tokens, without the weight n / k."""

    def terms(self, denoiser, process, batch, noise):
        draws = noise.uniform(batch.index, L, stream=1)
        count = (batch.index % L) + 1
        x_t = process.corrupt_exactly(batch.tokens, count, noise=draws)
        return weighted_mlm(denoiser(x_t), batch.tokens, x_t, torch.ones(ROWS))


@pytest.mark.parametrize("broken", [NeverOne(), WithoutDensity(), MaskedMean()])
def test_broken_objectives_are_caught(broken: Objective) -> None:
    process = Absorbing(K, Linear())
    exact = enumerated_nelbo(DENOISER, process, X0)
    assert abs(z_score(broken, process, exact)) > 2 * SIGMAS


OBJECTIVES = [ContinuousNELBO(), DiscreteNELBO(STEPS), WeightedMLM()]


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_context_and_unknown_symbols_never_count(objective: Objective) -> None:
    """Position 1 is given context, position 2 unknown: both stay as they are and add nothing."""
    seen: list[torch.Tensor] = []

    class Watching(Denoiser):
        def forward(self, x_t, t=None, padding=None, label=None):
            seen.append(x_t)
            return super().forward(x_t, t, padding, label)

    tokens = torch.tensor([2, 0, K, 1])
    mask = torch.tensor([True, False, False, True])
    watching = Watching(LookupBackbone(K, L, seed=7), K)
    terms = objective.terms(watching, Absorbing(K, Linear()), batch(mask, tokens), CounterNoise(0))
    assert bool((terms[:, 1:3] == 0).all()) and bool((terms[:, [0, 3]] > 0).any())
    assert bool((seen[0][:, 1] == 0).all()) and bool((seen[0][:, 2] == K).all())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_a_row_without_counted_tokens_gives_nothing(objective: Objective) -> None:
    empty = batch(torch.zeros(L, dtype=torch.bool), torch.full((L,), K))
    terms = objective.terms(DENOISER, Absorbing(K, Linear()), empty, CounterNoise(0))
    assert bool((terms == 0).all())


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_terms_do_not_depend_on_how_rows_are_batched(objective: Objective) -> None:
    process, noise = Absorbing(K, Linear()), CounterNoise(5)
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
