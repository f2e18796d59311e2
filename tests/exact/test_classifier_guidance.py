"""Guidance by a classifier, by enumeration: the laws it names, and what it costs."""

import pytest
import torch
from torch import Tensor, nn

from seqdiff.parameterization import Denoiser
from seqdiff.samplers import (
    AncestralSampler,
    ExactClassifierBased,
    FirstHittingSampler,
    FirstOrderClassifierBased,
)
from tests import laws
from tests.enumeration import distance, joint_law, outcomes
from tests.guided_worlds import (
    CLASSES,
    SIZES,
    ExactClassifier,
    LinearClassifier,
    exact_world,
    joints,
    one_at_a_time,
    process,
)
from tests.oracles import LookupBackbone, all_sequences

EXACT = 1e-10


class StaleClassifier(ExactClassifier):
    """Broken twin: is asked about the letter but looks at all positions as masked but the first."""

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        return super().__call__(torch.where(torch.arange(tokens.shape[1]) == 0, tokens, self.k))


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
    some = torch.tensor([[True, False, True], [True, False, False], [True] * 3, [True] * 3])
    assert guided.evaluations(x_t, padding, some).tolist() == [1 + 6, 1, 1, 1 + 3]
    classifier.rows_seen = 0
    torch.testing.assert_close(guided.log_probs_at(x_t, some, None, padding), law[some])
    assert classifier.rows_seen == 6 + 0 + 0 + 3


class AsksEverywhere(ExactClassifierBased):
    """Broken twin: asks about every masked position, wherever the sampler does."""

    def evaluations(self, x_t, padding=None, where=None):
        return super().evaluations(x_t, padding)

    def log_probs_at(self, x_t, where, t=None, padding=None, label=None):
        everywhere = torch.ones_like(where)
        law = super().log_probs_at(x_t, everywhere, t, padding, label)
        return law.view(*x_t.shape, -1)[where]


def test_samplers_ask_the_classifier_only_where_they_reveal() -> None:
    """Each of L positions is revealed once, so it costs L + K L; the twin pays at every mask."""
    k, length = 3, 3
    for cls, asked in ((ExactClassifierBased, length), (AsksEverywhere, 3 + 2 + 1)):
        classifier = ExactClassifier(k, length, 0)
        guided, start = cls(exact_world(k, length), classifier), torch.full((length,), k)
        found = outcomes(FirstHittingSampler(), guided, process(k), start)
        assert (found.nfe == length + k * asked).all()
        steps = outcomes(AncestralSampler(4), guided, process(k), start)
        assert ((steps.nfe <= 4 + k * length).all()) == (cls is ExactClassifierBased)


# Classifier-based, first order


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
