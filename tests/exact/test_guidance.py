"""Classifier-free guidance by enumeration: its distributions and its cost."""

import itertools
import math

import pytest
import torch

from seqdiff.samplers import AncestralSampler, ClassifierFree, ExactClassifierBased
from seqdiff.types import Inputs
from tests import distributions
from tests.enumeration import distance, joint_distribution, outcomes
from tests.guided_worlds import (
    CLASSES,
    SIZES,
    LabelledWorld,
    LinearClassifier,
    exact_world,
    joints,
    lookup_world,
    one_at_a_time,
)
from tests.oracles import LookupBackbone, TableBackbone, all_sequences, masked_model

EXACT = 1e-10


@pytest.mark.parametrize(("k", "length"), SIZES)
@pytest.mark.parametrize("label", range(CLASSES))
def test_gamma_one_is_the_conditional_distribution_and_gamma_zero_the_unconditional(
    k, length, label
):
    world = exact_world(k, length)
    parts = [joint_distribution(joint.probs, k, length) for joint in joints(k, length)]
    conditional = one_at_a_time(ClassifierFree(world, label), k, length)
    unconditional = one_at_a_time(ClassifierFree(world, label, 0.0), k, length)
    assert distance(conditional, parts[label]) < EXACT
    assert distance(unconditional, parts[-1]) < EXACT
    assert distance(conditional, parts[1 - label]) > 1e-2, "the twin with another label"
    assert distance(conditional, unconditional) > 1e-2, "the twin that ignores gamma"


def product_of_experts(conditional: list[float], plain: list[float], gamma: float) -> list[float]:
    weights = [c**gamma * p ** (1 - gamma) for c, p in zip(conditional, plain, strict=True)]
    return [weight / math.fsum(weights) for weight in weights]


@pytest.mark.parametrize("gamma", [0.3, 1.5, 3.0])
@pytest.mark.parametrize(("k", "length"), SIZES)
def test_other_gammas_are_the_normalised_product_at_every_position(k, length, gamma):
    world = lookup_world(k, length)
    found = ClassifierFree(world, 1, gamma)(Inputs(all_sequences(k + 1, length))).exp()
    states = all_sequences(k + 1, length)
    with_label = world(Inputs(states, label=torch.ones(len(states), dtype=torch.int64))).exp()
    plain = world(Inputs(states)).exp()
    for row, position in itertools.product(range(len(states)), range(length)):
        conditional, without = with_label[row, position].tolist(), plain[row, position].tolist()
        if states[row, position] < k:
            assert found[row, position].tolist() == conditional, "visible letters stay"
            continue
        right = product_of_experts(conditional, without, gamma)
        assert found[row, position].tolist() == pytest.approx(right, abs=EXACT)
        mixture = [gamma * c + (1 - gamma) * p for c, p in zip(conditional, without, strict=True)]
        swapped = product_of_experts(without, conditional, gamma)
        for twin in (mixture, swapped):
            assert found[row, position].tolist() != pytest.approx(twin, abs=1e-6)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_a_sampler_draws_from_the_guided_distributions_in_turn(gamma: float) -> None:
    k, length = 2, 3
    guided = ClassifierFree(lookup_world(k, length), 0, gamma)
    start = (k,) * length
    right = distributions.random_order(start, distributions.table(guided, k, length), k)
    assert distance(one_at_a_time(guided, k, length), right) < EXACT
    steps = outcomes(AncestralSampler(2), guided, torch.full((length,), k))
    assert (steps.nfe % 2 == 0).all() and int(steps.nfe.max()) == 4


def test_a_letter_that_either_distribution_rules_out_stays_ruled_out() -> None:
    class Fixed(TableBackbone):
        def __init__(self, logits: list[float]) -> None:
            super().__init__(4)
            self.table = torch.tensor(logits, dtype=torch.float64)

        def logits(self, inputs):
            return self.table.expand(*inputs.tokens.shape, 4)

    none, inf = [0.0, 0.0, 0.0, 0.0], -math.inf
    for one, other in (([1.0, 2.0, inf, 0.0], none), (none, [1.0, 2.0, inf, 0.0])):
        world = masked_model(LabelledWorld([Fixed(one), Fixed(one), Fixed(other)]))
        for gamma in (0.5, 2.0):
            distribution = ClassifierFree(world, 0, gamma)(Inputs(torch.tensor([[4, 2]]))).exp()
            assert distribution[0, 0, 2] == 0 and distribution[0, 0].sum() == pytest.approx(1)
            assert distribution[0, 1].tolist() == [0, 0, 1, 0]


# Guided guidance, and errors


def test_guided_denoisers_can_be_guided() -> None:
    k, length, label = 2, 3, 1
    world, linear = exact_world(k, length), LinearClassifier(k, length)
    twice = ExactClassifierBased(ClassifierFree(world, label, 2.0), linear)
    distribution = one_at_a_time(twice, k, length)
    right = distributions.random_order((k,) * length, distributions.table(twice, k, length), k)
    assert distance(distribution, right) < EXACT
    assert twice.evaluations(Inputs(torch.full((1, length), k))).tolist() == [2 + k * length]
    x_t = torch.full((1, length), k)
    labelled = ExactClassifierBased(world, linear)(Inputs(x_t, label=torch.tensor([label])))
    guided = ExactClassifierBased(ClassifierFree(world, label), linear)(Inputs(x_t))
    torch.testing.assert_close(labelled, guided)


def test_errors() -> None:
    world, plain = exact_world(2, 2), masked_model(LookupBackbone(2, 2, seed=0))
    for label in (-1, CLASSES):
        with pytest.raises(ValueError, match=r"^ClassifierFree\.label must .*choose one of 0\.\.1"):
            ClassifierFree(world, label)
    with pytest.raises(ValueError, match=r"^ClassifierFree\.label .*has none.*data\.labels$"):
        ClassifierFree(plain, 0)
    for gamma in (-0.1, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"^ClassifierFree\.gamma must be finite and at least"):
            ClassifierFree(world, 0, gamma)
    with pytest.raises(ValueError, match=r"^ExactClassifierBased\.batch_size must be at least 1"):
        ExactClassifierBased(plain, LinearClassifier(2, 2), batch_size=0)
    with pytest.raises(ValueError, match=r"^ClassifierFree\.inputs must have no label, got one of"):
        ClassifierFree(world, 0)(Inputs(torch.tensor([[2, 2]]), label=torch.tensor([1])))
