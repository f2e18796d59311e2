"""The bound against enumeration: exact on the oracle, invariant to the schedule, no end dropped."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from seqdiff.losses import discrete_nelbo, nelbo, weighted_mlm
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.schedules import Linear, NoiseSchedule
from tests.oracles import (
    COMPLETE_SCHEDULES,
    Joint,
    LookupBackbone,
    OracleBackbone,
    UniformBackbone,
    all_masks,
    all_sequences,
    enumerated_nelbo,
    mask_law,
)

K, L = 3, 4
JOINT = Joint.random(K, L, seed=0)
schedules = pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=repr)


def oracle() -> Denoiser:
    return Denoiser(OracleBackbone(JOINT), K)


@schedules
def test_oracle_bound_equals_negative_log_likelihood(schedule: NoiseSchedule) -> None:
    process = MaskedDiffusion(K, schedule)
    for row in (0, 17, 80):
        bound = enumerated_nelbo(oracle(), process, JOINT.sequences[row])
        assert bound == pytest.approx(-math.log(JOINT.probs[row]), abs=1e-10)


def without_dalpha(
    log_probs: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, schedule: NoiseSchedule
) -> Tensor:
    return weighted_mlm(log_probs, x0, x_t, 1 / (1 - schedule.alpha(t)))


def mean_over_masked(
    log_probs: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, schedule: NoiseSchedule
) -> Tensor:
    count = (x_t == K).sum(dim=-1).clamp_min(1)
    return nelbo(log_probs, x0, x_t, t, schedule) * (L / count)[:, None]


def with_epsilon(
    log_probs: Tensor, x0: Tensor, x_t: Tensor, t: Tensor, schedule: NoiseSchedule
) -> Tensor:
    weight = -schedule.dalpha(t) / (1 - schedule.alpha(t) + 1e-6)
    return weighted_mlm(log_probs, x0, x_t, weight)


@pytest.mark.parametrize("broken", [without_dalpha, mean_over_masked, with_epsilon])
def test_broken_weights_miss_the_likelihood(broken) -> None:
    process = MaskedDiffusion(K, COMPLETE_SCHEDULES[2])
    bound = enumerated_nelbo(oracle(), process, JOINT.sequences[17], broken)
    assert abs(bound + math.log(JOINT.probs[17])) > 1e-8


def test_off_by_one_vocabulary_misses_the_likelihood() -> None:
    class Shifted(OracleBackbone):
        def logits(self, inputs):
            return super().logits(inputs).roll(1, dims=-1)

    process = MaskedDiffusion(K, Linear())
    bound = enumerated_nelbo(Denoiser(Shifted(JOINT), K), process, JOINT.sequences[17])
    assert abs(bound + math.log(JOINT.probs[17])) > 0.1


@schedules
def test_uniform_predictor_scores_length_times_log_vocabulary(schedule: NoiseSchedule) -> None:
    process = MaskedDiffusion(K, schedule)
    bound = enumerated_nelbo(Denoiser(UniformBackbone(K), K), process, JOINT.sequences[5])
    assert bound == pytest.approx(L * math.log(K), abs=1e-10)


def test_dropped_end_is_what_completeness_forbids() -> None:
    """The published LogLinear(1e-3) integrates to 0.999 log K; MaskedDiffusion refuses it."""

    class Dropped(Linear):
        def alpha(self, t: Tensor) -> Tensor:
            return 1 - 0.999 * t

    process = object.__new__(MaskedDiffusion)
    object.__setattr__(process, "vocab_size", K)
    object.__setattr__(process, "schedule", Dropped())
    bound = enumerated_nelbo(Denoiser(UniformBackbone(K), K), process, JOINT.sequences[5])
    assert bound == pytest.approx(0.999 * L * math.log(K), abs=1e-10)


@schedules
def test_bound_of_any_denoiser_does_not_depend_on_the_schedule(schedule: NoiseSchedule) -> None:
    denoiser = Denoiser(LookupBackbone(K, L, seed=1), K)
    x0 = JOINT.sequences[44]
    ours = enumerated_nelbo(denoiser, MaskedDiffusion(K, schedule), x0)
    linear = enumerated_nelbo(denoiser, MaskedDiffusion(K, Linear()), x0)
    assert ours == pytest.approx(linear, abs=1e-10)


def enumerated_discrete(
    denoiser: Denoiser, process: MaskedDiffusion, x0: Tensor, steps: int
) -> float:
    masks = all_masks(len(x0))
    clean = x0.expand(len(masks), -1)
    x_t = torch.where(masks, process.mask_id, clean)
    log_probs = denoiser(x_t)
    total = 0.0
    for step in range(steps):
        s, t = (torch.full((len(masks),), (step + i) / steps, dtype=torch.float64) for i in (0, 1))
        rows = discrete_nelbo(log_probs, clean, x_t, s, t, process).sum(dim=-1)
        total += float(mask_law(masks, float(process.schedule.alpha(t[0]))) @ rows)
    return total


def enumerated_kl(denoiser: Denoiser, process: MaskedDiffusion, x0: Tensor, steps: int) -> float:
    """The T-step bound from its definition: KL of the posterior to the model, x_s enumerated."""
    states = all_sequences(process.vocab_size + 1, len(x0))
    reachable = ((states == x0) | (states == process.mask_id)).all(dim=-1)
    states = states[reachable]
    exact = torch.nn.functional.one_hot(x0, process.vocab_size).double().log()
    total = 0.0
    for step in range(steps):
        s, t = (torch.full((len(states),), (step + i) / steps, dtype=torch.float64) for i in (0, 1))
        marginal = mask_law(states == process.mask_id, float(process.schedule.alpha(t[0])))
        posterior = process.reverse_log_probs(exact.expand(len(states), -1, -1), states, s, t)
        model = process.reverse_log_probs(denoiser(states), states, s, t)
        kl = torch.where(posterior.isfinite(), posterior.exp() * (posterior - model), 0.0)
        total += float(marginal @ kl.sum(dim=(1, 2)))
    return total


@schedules
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_discrete_bound_is_the_sum_of_divergences(schedule: NoiseSchedule, steps: int) -> None:
    process, x0 = MaskedDiffusion(K, schedule), JOINT.sequences[30]
    denoiser = Denoiser(LookupBackbone(K, L, seed=2), K)
    ours = enumerated_discrete(denoiser, process, x0, steps)
    assert ours == pytest.approx(enumerated_kl(denoiser, process, x0, steps), abs=1e-10)


def test_discrete_bound_tends_to_the_continuous_one_at_first_order() -> None:
    process, x0 = MaskedDiffusion(K, Linear()), JOINT.sequences[30]
    limit = -math.log(JOINT.probs[30])
    gaps = [enumerated_discrete(oracle(), process, x0, steps) - limit for steps in (64, 128, 256)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(gaps)]
    assert orders == pytest.approx([1, 1], abs=0.02)


def test_unknown_symbols_never_count() -> None:
    x0 = torch.tensor([[K, 1, K]])
    terms = weighted_mlm(
        torch.full((1, 3, K), -1.5), x0, torch.full_like(x0, K), torch.tensor([2.0])
    )
    assert terms.tolist() == [[0.0, 3.0, 0.0]]
