"""Guidance by a classifier, by enumeration: its distributions and its cost."""

import pytest
import torch
from torch import Tensor, nn

from seqdiff.samplers import (
    AncestralSampler,
    ExactClassifierBased,
    FirstHittingSampler,
    FirstOrderClassifierBased,
)
from seqdiff.types import Inputs
from tests import distributions
from tests.enumeration import distance, joint_distribution, outcomes
from tests.guided_worlds import (
    CLASSES,
    SIZES,
    ExactClassifier,
    LinearClassifier,
    exact_world,
    joints,
    one_at_a_time,
)
from tests.oracles import LookupBackbone, all_sequences, masked_model

EXACT = 1e-10


class StaleClassifier(ExactClassifier):
    """Broken twin: evaluates the symbol in a row whose positions except the first are masked."""

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        return super().__call__(torch.where(torch.arange(tokens.shape[1]) == 0, tokens, self.k))


# Classifier-based, exact


@pytest.mark.parametrize(("k", "length"), SIZES)
@pytest.mark.parametrize("label", range(CLASSES))
def test_an_exact_classifier_samples_the_posterior_exactly(k, length, label):
    """Bayes' rule at every reveal: the distribution is p(x | y)."""
    world, classifier = exact_world(k, length), ExactClassifier(k, length, label)
    guided = ExactClassifierBased(world, classifier)
    posterior = joint_distribution(joints(k, length)[label].probs, k, length)
    assert distance(one_at_a_time(guided, k, length), posterior) < EXACT
    for twin in (
        ExactClassifierBased(world, StaleClassifier(k, length, label)),
        ExactClassifierBased(world, classifier, 2.0),
        ExactClassifierBased(world, ExactClassifier(k, length, 1 - label)),
    ):
        assert distance(one_at_a_time(twin, k, length), posterior) > 1e-2
    at_once = outcomes(FirstHittingSampler(1), guided, torch.full((length,), k)).distribution
    assert distance(at_once, posterior) > 1e-3, (
        "the distribution holds for one position at a time only"
    )


@pytest.mark.parametrize("gamma", [0.0, 0.5, 3.0])
def test_the_tilt_at_every_position(gamma: float) -> None:
    k, length = 3, 3
    denoiser = masked_model(LookupBackbone(k, length, seed=4))
    classifier = ExactClassifier(k, length, 0)
    found = distributions.table(
        ExactClassifierBased(denoiser, classifier, gamma, batch_size=5), k, length
    )
    plain = distributions.table(denoiser, k, length)
    for x, positions in found.items():
        for position, distribution in enumerate(positions):
            if x[position] != k:
                assert distribution == plain[x][position]
                continue
            weights = []
            for letter, chance in enumerate(plain[x][position]):
                y = (*x[:position], letter, *x[position + 1 :])
                weights.append(chance * float(classifier(torch.tensor([y])).exp()) ** gamma)
            right = [weight / sum(weights) for weight in weights]
            assert distribution == pytest.approx(right, abs=EXACT)
            assert gamma == 0 or distribution != pytest.approx(plain[x][position], abs=1e-6), (
                "no guidance"
            )


def test_exact_guidance_counts_what_it_spends() -> None:
    k, length = 3, 3
    classifier = ExactClassifier(k, length, 0)
    guided = ExactClassifierBased(exact_world(k, length), classifier, batch_size=4)
    x_t = torch.tensor([[3, 3, 3], [0, 3, 3], [0, 1, 2], [3, 3, 1]])
    padding = torch.zeros_like(x_t, dtype=torch.bool)
    padding[3, 0] = True
    inputs = Inputs(x_t, padding=padding)
    distribution = guided(inputs)
    assert guided.evaluations(inputs).tolist() == [1 + 9, 1 + 6, 1, 1 + 3]
    assert classifier.rows_seen == 9 + 6 + 3
    torch.testing.assert_close(distribution[3, 0], guided.denoiser(inputs)[3, 0])
    some = torch.tensor([[True, False, True], [True, False, False], [True] * 3, [True] * 3])
    assert guided.evaluations(inputs, some).tolist() == [1 + 6, 1, 1, 1 + 3]
    classifier.rows_seen = 0
    torch.testing.assert_close(guided.log_probs(inputs, some), distribution[some])
    assert classifier.rows_seen == 6 + 0 + 0 + 3


class AsksEverywhere(ExactClassifierBased):
    """Broken twin: evaluates every masked position, whatever the sampler reveals."""

    def evaluations(self, inputs, where=None):
        return super().evaluations(inputs)

    def forward(self, inputs, where=None):
        distribution = super().forward(inputs)
        return distribution if where is None else distribution[where]


def test_samplers_ask_the_classifier_only_where_they_reveal() -> None:
    """Each of L positions is revealed once, which costs L + K L; the twin pays at every mask."""
    k, length = 3, 3
    for cls, asked in ((ExactClassifierBased, length), (AsksEverywhere, 3 + 2 + 1)):
        classifier = ExactClassifier(k, length, 0)
        guided, start = cls(exact_world(k, length), classifier), torch.full((length,), k)
        found = outcomes(FirstHittingSampler(), guided, start)
        assert (found.nfe == length + k * asked).all()
        steps = outcomes(AncestralSampler(4), guided, start)
        assert ((steps.nfe <= 4 + k * length).all()) == (cls is ExactClassifierBased)


# Classifier-based, first order


class ForgetsTheStrength(FirstOrderClassifierBased):
    """Broken twin: ignores the strength."""

    def forward(self, inputs, where=None):
        return FirstOrderClassifierBased(self.denoiser, self.classifier)(inputs, where)


@pytest.mark.parametrize("gamma", [0.5, 1.0, 4.0])
@pytest.mark.parametrize(("k", "length"), SIZES)
def test_first_order_is_exact_for_a_log_linear_classifier(k, length, gamma) -> None:
    denoiser, states = masked_model(LookupBackbone(k, length, seed=6)), all_sequences(k + 1, length)
    rows = Inputs(states)
    linear, bent = LinearClassifier(k, length), LinearClassifier(k, length, bend=0.1)

    def gap(first: nn.Module, second: nn.Module) -> float:
        return float((first(rows).exp() - second(rows).exp()).abs().max())

    with torch.no_grad():
        exact = ExactClassifierBased(denoiser, linear, gamma)
        assert gap(FirstOrderClassifierBased(denoiser, linear, gamma), exact) < EXACT
        curved = ExactClassifierBased(denoiser, bent, gamma)
        assert gap(FirstOrderClassifierBased(denoiser, bent, gamma), curved) > 1e-3
        if gamma != 1:
            assert gap(ForgetsTheStrength(denoiser, linear, gamma), exact) > 1e-3
        assert FirstOrderClassifierBased(denoiser, linear).evaluations(rows).unique() == 2


def test_first_order_is_the_tangent() -> None:
    """For a curved classifier, by finite differences along the straight line to each symbol."""
    k, length, step = 3, 3, 1e-6
    denoiser, bent = masked_model(LookupBackbone(k, length, seed=6)), LinearClassifier(3, 3, 0.1)
    x_t = torch.tensor([[3, 1, 3]])
    one_hot = nn.functional.one_hot(x_t, k + 1).double()
    guided = FirstOrderClassifierBased(denoiser, bent)
    distribution, plain = guided(Inputs(x_t)), denoiser(Inputs(x_t))
    for position in (0, 2):
        slopes = []
        for letter in range(k):
            towards = torch.zeros_like(one_hot)
            towards[0, position, letter], towards[0, position, k] = step, -step
            slopes.append((bent(one_hot + towards) - bent(one_hot - towards)) / (2 * step))
        right = (plain[0, position] + torch.cat(slopes)).log_softmax(dim=-1)
        torch.testing.assert_close(distribution[0, position], right, atol=1e-8, rtol=1e-8)
