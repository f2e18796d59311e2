"""Guided denoisers by enumeration: the laws they name, and what they cost."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.samplers import (
    AncestralSampler,
    ClassifierFree,
    ExactClassifierBased,
    FirstHittingSampler,
    FirstOrderClassifierBased,
)
from seqdiff.schedules import Linear
from tests import laws
from tests.enumeration import Law, distance, joint_law, outcomes
from tests.oracles import Joint, LookupBackbone, OracleBackbone, all_sequences

EXACT = 1e-10
CLASSES = 2
SIZES = [(2, 4), (3, 3), (4, 2)]


class LabelledWorld(nn.Module):
    """One backbone for each label and, last, one for no label."""

    num_classes = CLASSES

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(
        self,
        tokens: Tensor,
        t: Tensor | None = None,
        padding: Tensor | None = None,
        label: Tensor | None = None,
    ) -> Tensor:
        answers = torch.stack([part(tokens, t, padding) for part in self.parts])
        label = torch.full((len(tokens),), -1) if label is None else label
        return answers[label, torch.arange(len(tokens))]


def joints(k: int, length: int) -> list[Joint]:
    """p(x | y) for each y, then p(x) for a uniform y."""
    parts = [Joint.random(k, length, seed=seed) for seed in range(CLASSES)]
    return [*parts, Joint(k, length, sum(part.probs for part in parts) / CLASSES)]


def exact_world(k: int, length: int) -> Denoiser:
    return Denoiser(LabelledWorld([OracleBackbone(joint) for joint in joints(k, length)]), k)


def lookup_world(k: int, length: int) -> Denoiser:
    tables = [LookupBackbone(k, length, seed=seed) for seed in range(CLASSES + 1)]
    return Denoiser(LabelledWorld(tables), k)


class ExactClassifier:
    """p(y | x_t) of the joint law, by summing over every completion."""

    def __init__(self, k: int, length: int, label: int) -> None:
        self.parts, self.label, self.k = joints(k, length), label, k
        self.rows_seen = 0

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        self.rows_seen += len(tokens)
        sequences = self.parts[-1].sequences
        agrees = ((tokens[:, None] == sequences) | (tokens[:, None] == self.k)).all(dim=-1).double()
        wanted, either = (agrees @ self.parts[i].probs for i in (self.label, -1))
        return (wanted / CLASSES / either).log()


class StaleClassifier(ExactClassifier):
    """Broken twin: is asked about the letter but looks at all positions as masked but the first."""

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        return super().__call__(torch.where(torch.arange(tokens.shape[1]) == 0, tokens, self.k))


def process(k: int) -> MaskedDiffusion:
    return MaskedDiffusion(k, Linear())


def one_at_a_time(denoiser: Denoiser, k: int, length: int) -> Law:
    return outcomes(FirstHittingSampler(), denoiser, process(k), torch.full((length,), k)).law


# Classifier-free


@pytest.mark.parametrize(("k", "length"), SIZES)
@pytest.mark.parametrize("label", range(CLASSES))
def test_gamma_one_is_the_conditional_law_and_gamma_zero_the_unconditional(k, length, label):
    world = exact_world(k, length)
    parts = [joint_law(joint.probs, k, length) for joint in joints(k, length)]
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
    found = ClassifierFree(world, 1, gamma)(all_sequences(k + 1, length)).exp()
    states = all_sequences(k + 1, length)
    with_label = world(states, label=torch.ones(len(states), dtype=torch.int64)).exp()
    plain = world(states).exp()
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
def test_a_sampler_draws_from_the_guided_laws_in_turn(gamma: float) -> None:
    k, length = 2, 3
    guided = ClassifierFree(lookup_world(k, length), 0, gamma)
    start = (k,) * length
    right = laws.random_order(start, laws.table(guided, k, length), k)
    assert distance(one_at_a_time(guided, k, length), right) < EXACT
    steps = outcomes(AncestralSampler(2), guided, process(k), torch.full((length,), k))
    assert (steps.nfe % 2 == 0).all() and int(steps.nfe.max()) == 4


def test_a_letter_that_either_law_rules_out_stays_ruled_out() -> None:
    class Fixed(nn.Module):
        def __init__(self, logits: list[float]) -> None:
            super().__init__()
            self.logits = torch.tensor(logits, dtype=torch.float64)

        def forward(self, tokens, t=None, padding=None):
            return self.logits.expand(*tokens.shape, 4)

    none, inf = [0.0, 0.0, 0.0, 0.0], -math.inf
    for one, other in (([1.0, 2.0, inf, 0.0], none), (none, [1.0, 2.0, inf, 0.0])):
        world = Denoiser(LabelledWorld([Fixed(one), Fixed(one), Fixed(other)]), 4)
        for gamma in (0.5, 2.0):
            law = ClassifierFree(world, 0, gamma)(torch.tensor([[4, 2]])).exp()
            assert law[0, 0, 2] == 0 and law[0, 0].sum() == pytest.approx(1)
            assert law[0, 1].tolist() == [0, 0, 1, 0]


# Classifier-based, exact


@pytest.mark.parametrize(("k", "length"), SIZES)
@pytest.mark.parametrize("label", range(CLASSES))
def test_an_exact_classifier_samples_the_posterior_exactly(k, length, label):
    """Bayes' rule at every reveal: the law is p(x | y)."""
    world, classifier = exact_world(k, length), ExactClassifier(k, length, label)
    guided = ExactClassifierBased(world, classifier)
    posterior = joint_law(joints(k, length)[label].probs, k, length)
    assert distance(one_at_a_time(guided, k, length), posterior) < EXACT
    for twin in (
        ExactClassifierBased(world, StaleClassifier(k, length, label)),
        ExactClassifierBased(world, classifier, 2.0),
        ExactClassifierBased(world, ExactClassifier(k, length, 1 - label)),
    ):
        assert distance(one_at_a_time(twin, k, length), posterior) > 1e-2
    at_once = outcomes(FirstHittingSampler(1), guided, process(k), torch.full((length,), k)).law
    assert distance(at_once, posterior) > 1e-3, "the law holds for one position at a time only"


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_the_tilt_at_every_position(gamma: float) -> None:
    k, length = 3, 3
    denoiser = Denoiser(LookupBackbone(k, length, seed=4), k)
    classifier = ExactClassifier(k, length, 0)
    found = laws.table(ExactClassifierBased(denoiser, classifier, gamma, batch_size=5), k, length)
    plain = laws.table(denoiser, k, length)
    for x, positions in found.items():
        for position, law in enumerate(positions):
            if x[position] != k:
                assert law == plain[x][position]
                continue
            weights = []
            for letter, chance in enumerate(plain[x][position]):
                y = (*x[:position], letter, *x[position + 1 :])
                weights.append(chance * float(classifier(torch.tensor([y])).exp()) ** gamma)
            right = [weight / sum(weights) for weight in weights]
            assert law == pytest.approx(right, abs=EXACT)
            assert gamma == 0 or law != pytest.approx(plain[x][position], abs=1e-6), "no guidance"


def test_exact_guidance_counts_what_it_spends() -> None:
    k, length = 3, 3
    classifier = ExactClassifier(k, length, 0)
    guided = ExactClassifierBased(exact_world(k, length), classifier, batch_size=4)
    x_t = torch.tensor([[3, 3, 3], [0, 3, 3], [0, 1, 2], [3, 3, 1]])
    padding = torch.zeros_like(x_t, dtype=torch.bool)
    padding[3, 0] = True
    law = guided(x_t, None, padding)
    assert guided.evaluations(x_t, padding).tolist() == [1 + 9, 1 + 6, 1, 1 + 3]
    assert classifier.rows_seen == 9 + 6 + 3
    torch.testing.assert_close(law[3, 0], guided.denoiser(x_t)[3, 0])
    found = outcomes(FirstHittingSampler(), guided, process(k), torch.full((length,), k))
    assert (found.nfe == 3 + k * (3 + 2 + 1)).all()


# Classifier-based, first order


class LinearClassifier:
    """log p(y | x) is a sum over positions; of tokens or of rows of vectors."""

    def __init__(self, k: int, length: int, bend: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(5)
        self.slope = torch.randn(length, k + 1, dtype=torch.float64, generator=generator)
        self.bend = bend

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        if tokens.ndim == 2:
            tokens = nn.functional.one_hot(tokens, self.slope.shape[1]).double()
        total = (tokens * self.slope).sum(dim=(1, 2))
        return total + self.bend * total**2


class ForgetsTheStrength(FirstOrderClassifierBased):
    """Broken twin: forgets the strength."""

    def forward(self, x_t, t=None, padding=None, label=None):
        return FirstOrderClassifierBased(self.denoiser, self.classifier)(x_t, t, padding, label)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 4.0])
@pytest.mark.parametrize(("k", "length"), SIZES)
def test_first_order_is_exact_for_a_log_linear_classifier(k, length, gamma) -> None:
    denoiser, states = Denoiser(LookupBackbone(k, length, seed=6), k), all_sequences(k + 1, length)
    linear, bent = LinearClassifier(k, length), LinearClassifier(k, length, bend=0.1)

    def gap(first: nn.Module, second: nn.Module) -> float:
        return float((first(states).exp() - second(states).exp()).abs().max())

    with torch.no_grad():
        exact = ExactClassifierBased(denoiser, linear, gamma)
        assert gap(FirstOrderClassifierBased(denoiser, linear, gamma), exact) < EXACT
        curved = ExactClassifierBased(denoiser, bent, gamma)
        assert gap(FirstOrderClassifierBased(denoiser, bent, gamma), curved) > 1e-3
        if gamma != 1:
            assert gap(ForgetsTheStrength(denoiser, linear, gamma), exact) > 1e-3
        assert FirstOrderClassifierBased(denoiser, linear).evaluations(states).unique() == 2


def test_first_order_is_the_tangent() -> None:
    """Of a curved classifier, by finite differences along the straight line to each letter."""
    k, length, step = 3, 3, 1e-6
    denoiser, bent = Denoiser(LookupBackbone(k, length, seed=6), k), LinearClassifier(3, 3, 0.1)
    x_t = torch.tensor([[3, 1, 3]])
    one_hot = nn.functional.one_hot(x_t, k + 1).double()
    law, plain = FirstOrderClassifierBased(denoiser, bent)(x_t), denoiser(x_t)
    for position in (0, 2):
        slopes = []
        for letter in range(k):
            towards = torch.zeros_like(one_hot)
            towards[0, position, letter], towards[0, position, k] = step, -step
            slopes.append((bent(one_hot + towards) - bent(one_hot - towards)) / (2 * step))
        right = (plain[0, position] + torch.cat(slopes)).log_softmax(dim=-1)
        torch.testing.assert_close(law[0, position], right, atol=1e-8, rtol=1e-8)


# Guidance of guidance, and refusals


def test_guided_denoisers_can_be_guided() -> None:
    k, length, label = 2, 3, 1
    world, linear = exact_world(k, length), LinearClassifier(k, length)
    twice = ExactClassifierBased(ClassifierFree(world, label, 2.0), linear)
    law = one_at_a_time(twice, k, length)
    right = laws.random_order((k,) * length, laws.table(twice, k, length), k)
    assert distance(law, right) < EXACT
    assert twice.evaluations(torch.full((1, length), k)).tolist() == [2 + k * length]
    labelled = ExactClassifierBased(world, linear)(
        torch.full((1, length), k), label=torch.tensor([label])
    )
    torch.testing.assert_close(
        labelled,
        ExactClassifierBased(ClassifierFree(world, label), linear)(torch.full((1, length), k)),
    )


def test_refusals() -> None:
    world, plain = exact_world(2, 2), Denoiser(LookupBackbone(2, 2, seed=0), 2)
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
    with pytest.raises(ValueError, match=r"^ClassifierFree\.forward must be given no label"):
        ClassifierFree(world, 0)(torch.tensor([[2, 2]]), label=torch.tensor([1]))
