"""The bound against enumeration: exact for the oracle, invariant to the schedule, with
both ends.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.losses import masked_terms, step_terms
from seqdiff.process import Absorbing
from seqdiff.schedules import Linear, NoiseSchedule
from seqdiff.types import Batch, Inputs
from tests.oracles import (
    COMPLETE_SCHEDULES,
    Joint,
    LookupBackbone,
    OracleBackbone,
    UniformBackbone,
    all_masks,
    all_sequences,
    copies,
    density,
    enumerated_nelbo,
    mask_distribution,
    masked_model,
)

K, L = 3, 4
JOINT = Joint.random(K, L, seed=0)
schedules = pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=repr)


def oracle(schedule: NoiseSchedule | None = None) -> Denoiser:
    return masked_model(OracleBackbone(JOINT), schedule)


@schedules
def test_oracle_bound_equals_negative_log_likelihood(schedule: NoiseSchedule) -> None:
    for row in (0, 17, 80):
        bound = enumerated_nelbo(oracle(schedule), JOINT.sequences[row])
        assert bound == pytest.approx(-math.log(JOINT.probs[row]), abs=1e-10)


def without_dalpha(denoiser: Denoiser, batch: Batch, x_t: Tensor, t: Tensor) -> Tensor:
    return masked_terms(denoiser, batch, x_t, t, 1 / (1 - denoiser.process.alpha(t)))


def mean_over_masked(denoiser: Denoiser, batch: Batch, x_t: Tensor, t: Tensor) -> Tensor:
    count = (x_t == K).sum(dim=-1).clamp_min(1)
    return density(denoiser, batch, x_t, t) * (L / count)[:, None]


def with_epsilon(denoiser: Denoiser, batch: Batch, x_t: Tensor, t: Tensor) -> Tensor:
    schedule = denoiser.process.schedule
    weight = -schedule.dalpha(t) / (1 - schedule.alpha(t) + 1e-6)
    return masked_terms(denoiser, batch, x_t, t, weight)


@pytest.mark.parametrize("broken", [without_dalpha, mean_over_masked, with_epsilon])
def test_broken_weights_miss_the_likelihood(broken) -> None:
    bound = enumerated_nelbo(oracle(COMPLETE_SCHEDULES[2]), JOINT.sequences[17], broken)
    assert abs(bound + math.log(JOINT.probs[17])) > 1e-8


def test_off_by_one_vocabulary_misses_the_likelihood() -> None:
    class Shifted(OracleBackbone):
        def logits(self, inputs):
            return super().logits(inputs).roll(1, dims=-1)

    bound = enumerated_nelbo(masked_model(Shifted(JOINT)), JOINT.sequences[17])
    assert abs(bound + math.log(JOINT.probs[17])) > 0.1


@schedules
def test_uniform_predictor_scores_length_times_log_vocabulary(schedule: NoiseSchedule) -> None:
    bound = enumerated_nelbo(masked_model(UniformBackbone(K), schedule), JOINT.sequences[5])
    assert bound == pytest.approx(L * math.log(K), abs=1e-10)


def test_dropped_end_is_what_completeness_forbids() -> None:
    """The published LogLinear(1e-3) integrates to 0.999 log K; Absorbing rejects it."""

    class Dropped(Linear):
        def alpha(self, t: Tensor) -> Tensor:
            return 1 - 0.999 * t

    process = object.__new__(Absorbing)
    object.__setattr__(process, "vocab_size", K)
    object.__setattr__(process, "schedule", Dropped())
    bound = enumerated_nelbo(Denoiser(UniformBackbone(K), process), JOINT.sequences[5])
    assert bound == pytest.approx(0.999 * L * math.log(K), abs=1e-10)


@schedules
def test_bound_of_any_denoiser_does_not_depend_on_the_schedule(schedule: NoiseSchedule) -> None:
    network, x0 = LookupBackbone(K, L, seed=1), JOINT.sequences[44]
    ours = enumerated_nelbo(masked_model(network, schedule), x0)
    linear = enumerated_nelbo(masked_model(network, Linear()), x0)
    assert ours == pytest.approx(linear, abs=1e-10)


def enumerated_discrete(denoiser: Denoiser, x0: Tensor, steps: int) -> float:
    process = denoiser.process
    assert isinstance(process, Absorbing)
    masks = all_masks(len(x0))
    batch, one = copies(x0, len(masks)), torch.ones(len(masks), dtype=torch.float64)
    x_t = batch.tokens.masked_fill(masks, process.mask_id)
    total = 0.0
    for step in range(steps):
        s, t = (one * ((step + i) / steps) for i in (0, 1))
        rows = step_terms(denoiser, batch, x_t, s, t, one).sum(dim=-1)
        total += float(mask_distribution(masks, float(process.alpha(t[0]))) @ rows)
    return total


def enumerated_kl(denoiser: Denoiser, x0: Tensor, steps: int) -> float:
    """The T-step bound from its definition: KL of the posterior to the model, x_s enumerated."""
    process = denoiser.process
    assert isinstance(process, Absorbing)
    states = all_sequences(process.vocab_size + 1, len(x0))
    reachable = ((states == x0) | (states == process.mask_id)).all(dim=-1)
    states = states[reachable]
    exact = torch.nn.functional.one_hot(x0, process.vocab_size).double().log()
    total = 0.0
    for step in range(steps):
        s, t = (torch.full(states.shape, (step + i) / steps, dtype=torch.float64) for i in (0, 1))
        marginal = mask_distribution(states == process.mask_id, float(process.alpha(t[0, 0])))
        posterior = process.log_posterior(exact.expand(len(states), -1, -1), states, s, t)
        model = process.log_posterior(denoiser(Inputs(states)), states, s, t)
        kl = torch.where(posterior.isfinite(), posterior.exp() * (posterior - model), 0.0)
        total += float(marginal @ kl.sum(dim=(1, 2)))
    return total


@schedules
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_discrete_bound_is_the_sum_of_divergences(schedule: NoiseSchedule, steps: int) -> None:
    x0 = JOINT.sequences[30]
    denoiser = masked_model(LookupBackbone(K, L, seed=2), schedule)
    ours = enumerated_discrete(denoiser, x0, steps)
    assert ours == pytest.approx(enumerated_kl(denoiser, x0, steps), abs=1e-10)


def test_discrete_bound_tends_to_the_continuous_one_at_first_order() -> None:
    x0, limit = JOINT.sequences[30], -math.log(JOINT.probs[30])
    gaps = [enumerated_discrete(oracle(), x0, steps) - limit for steps in (64, 128, 256)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(gaps)]
    assert orders == pytest.approx([1, 1], abs=0.02)


def test_unknown_symbols_never_count() -> None:
    batch = copies(torch.tensor([K, 1, K]), 1)
    x_t, weight = torch.full_like(batch.tokens, K), torch.tensor([2.0])
    terms = masked_terms(masked_model(UniformBackbone(K)), batch, x_t, None, weight)
    assert terms.tolist() == [[0.0, pytest.approx(2 * math.log(K)), 0.0]]
