"""Guidance and both strands with uniform and hybrid noise, against hand-written kernels."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.parameterization import Full, LeaveOneOut, Score
from seqdiff.process import Absorbing, DiscreteProcess, Hybrid, Uniform
from seqdiff.samplers import (
    AncestralSampler,
    ClassifierFree,
    Conjoined,
    ExactClassifierBased,
    FirstOrderClassifierBased,
    TweedieSampler,
)
from seqdiff.schedules import Cosine, Geometric
from tests.enumeration import Distribution, distance
from tests.noisy_worlds import (
    Joint,
    Request,
    chain,
    ends,
    exact,
    kernel,
    single_site,
)

K = 3
NOISY = [Uniform(K, Cosine()), Hybrid(K, 0.3)]
SPANS = [(0.0, 0.25), (0.3, 0.5)]


def name(thing: object) -> str:
    return getattr(thing, "name", type(thing).__name__)


def classes(length: int) -> tuple[list[Joint], Joint]:
    """p(x | y) of two classes, and p(x) for equally likely classes."""
    parts = [Joint.random(K, length, seed=seed) for seed in (1, 2)]
    return parts, Joint((parts[0].probs + parts[1].probs) / 2, K, length)


def guided_rows(process: DiscreteProcess, t: float) -> Tensor:
    return torch.tensor(list(Joint.random(K, 2).noisy(t, process)))


def mixed(with_label: Tensor, without: Tensor, gamma: float) -> Tensor:
    weights = with_label.exp() ** gamma * without.exp() ** (1 - gamma)
    weights = torch.where(without.isfinite(), weights, 0.0)
    return weights / weights.sum(dim=-1, keepdim=True)


class NoisyClassifier:
    """p(y | z) at every time, by enumeration."""

    def __init__(self, parts: list[Joint], label: int, process: DiscreteProcess) -> None:
        self.parts, self.label, self.process, self.rows = parts, label, process, 0

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        self.rows += len(tokens)
        found = torch.stack([part.log_noisy(tokens, t, self.process) for part in self.parts])
        return found.log_softmax(dim=0)[self.label]


def worth(classifier, z: Tensor, t: float, states: int) -> Tensor:
    """The classifier's probability with every state at every position, ``[B, L, states]``."""
    found = torch.empty(*z.shape, states, dtype=torch.float64)
    times = torch.full((len(z),), t, dtype=torch.float64)
    for position in range(z.shape[1]):
        for state in range(states):
            changed = z.clone()
            changed[:, position] = state
            found[:, position, state] = classifier(changed, times)
    return found


# Classifier-free


@pytest.mark.parametrize("process", NOISY, ids=name)
@pytest.mark.parametrize("kind", [LeaveOneOut(), Full()], ids=name)
def test_classifier_free_combines_reverse_steps(process, kind) -> None:
    parts, joint = classes(2)
    model = exact(joint, process, kind, labelled=parts)
    for s, t in SPANS:
        z = guided_rows(process, t)
        conditional = single_site(parts[1], z, s, t, process)
        plain = single_site(joint, z, s, t, process)
        for gamma in (0.0, 0.5, 1.0, 2.5):
            guided = ClassifierFree(model, 1, gamma)
            before = model.backbone.calls
            found = kernel(AncestralSampler(), guided, z, s, t).exp()
            assert model.backbone.calls == before + 1, "both predictions in one call"
            assert (found - mixed(conditional, plain, gamma)).abs().max() < 1e-12
            same = kernel(TweedieSampler(), guided, z, s, t).exp()
            assert (found - same).abs().max() < 1e-12
        # The twin combines predictions before the step; the last step is the same.
        times = [torch.full(z.shape, x, dtype=torch.float64) for x in (s, t)]
        tempered = mixed(
            *(
                table.log_loo(z, times[1][:, 0], process).log_softmax(dim=-1)
                for table in (parts[1], joint)
            ),
            2.5,
        )
        twin = process.log_posterior(tempered.log(), z, *times).exp()
        assert s == 0 or (twin - found).abs().max() > 1e-2


def test_classifier_free_with_masks_combines_predictions_and_keeps_unmask_times() -> None:
    parts, joint = classes(2)
    process, gamma = Absorbing(K, Cosine()), 2.5
    model = exact(joint, process, labelled=parts)
    distributions = chain(AncestralSampler(num_steps=2), ClassifierFree(model, 1, gamma), 2)
    alpha = float(process.alpha(torch.tensor(0.5, dtype=torch.float64)))
    assert distributions[1][K, K] == pytest.approx((1 - alpha) ** 2, abs=1e-12)
    masks, half = torch.tensor([[K, K]]), torch.tensor([0.5])
    each = mixed(
        *(table.log_loo(masks, half, process).log_softmax(dim=-1) for table in (parts[1], joint)),
        gamma,
    )
    assert distributions[1][2, K] == pytest.approx(
        alpha * (1 - alpha) * float(each[0, 0, 2]), abs=1e-12
    )
    for gamma, table in ((0.0, joint), (1.0, parts[1])):
        found = ends(
            AncestralSampler(num_steps=2),
            ClassifierFree(model, 1, gamma),
            Request.nothing(model, 2),
        )
        plain = ends(
            AncestralSampler(num_steps=2), exact(table, process), Request.nothing(model, 2)
        )
        assert distance(found, plain) < 1e-12


@pytest.mark.parametrize("guidance", ["free", "exact", "first order"])
def test_guidance_also_decodes_what_noise_is_left(guidance) -> None:
    parts, joint = classes(1)
    process, gamma = Uniform(K, Geometric(0.2, 3.0)), 2.0
    model = exact(joint, process, labelled=parts)
    z, zero = torch.arange(K)[:, None], torch.zeros(K, dtype=torch.float64)
    full = joint.log_full(z, zero, process).log_softmax(dim=-1)
    classifier = NoisyClassifier(parts, 1, process)
    if guidance == "free":
        guided = ClassifierFree(model, 1, gamma)
        conditional = parts[1].log_full(z, zero, process).log_softmax(dim=-1)
        wanted = mixed(conditional, full, gamma)
    elif guidance == "exact":
        guided = ExactClassifierBased(model, classifier, gamma)
        wanted = (full + gamma * worth(classifier, z, 0.0, K)).softmax(dim=-1)
    else:
        linear = LinearClassifier(1)
        guided = FirstOrderClassifierBased(model, linear, gamma)
        wanted = (full + gamma * linear.slope[0, :K]).softmax(dim=-1)
    distributions = chain(AncestralSampler(num_steps=2), guided, 1)
    decoded: Distribution = dict.fromkeys(joint.distribution, 0.0)
    for (noisy,), chance in distributions[-2].items():
        for x in range(K):
            decoded[(x,)] += chance * float(wanted[noisy, 0, x])
    assert distance(distributions[-1], decoded) < 1e-12
    assert distance(distributions[-1], distributions[-2]) > 1e-2, "z_0 as it is"


# By a classifier


@pytest.mark.parametrize("process", NOISY, ids=name)
def test_a_classifier_tilts_the_reverse_step(process) -> None:
    parts, joint = classes(2)
    model = exact(joint, process)
    classifier = NoisyClassifier(parts, 1, process)
    for s, t in SPANS:
        z = guided_rows(process, t)
        plain = single_site(joint, z, s, t, process)
        value = worth(classifier, z, t, process.states)
        for gamma in (0.0, 1.0, 2.0):
            wanted = (plain + gamma * value).softmax(dim=-1)
            classifier.rows = 0
            guided = ExactClassifierBased(model, classifier, gamma)
            found = kernel(AncestralSampler(), guided, z, s, t).exp()
            assert (found - wanted).abs().max() < 1e-12
            assert classifier.rows == (z.numel() * process.states if gamma else 0)
        times = [torch.full(z.shape, x, dtype=torch.float64) for x in (s, t)]
        log_loo = joint.log_loo(z, times[1][:, 0], process).log_softmax(dim=-1)
        tempered = (log_loo + gamma * value[..., :K]).log_softmax(dim=-1)
        twin = process.log_posterior(tempered, z, *times).exp()
        apart = float((twin - found).abs().max())
        assert s == 0 or apart > 1e-2, "the prediction tilted, and a step made from it"


def test_the_exact_classifier_leads_to_bayes_rule_as_steps_multiply() -> None:
    process = Uniform(K, Cosine())
    errors = {}
    for length in (1, 2):
        parts, joint = classes(length)
        classifier = NoisyClassifier(parts, 1, process)
        guided = ExactClassifierBased(exact(joint, process), classifier)
        distributions = {
            n: chain(AncestralSampler(num_steps=n), guided, length)[-1] for n in (4, 8, 16)
        }
        errors[length] = [
            distance(distribution, parts[1].distribution) for distribution in distributions.values()
        ]
        assert all(1.5 < a / b < 2.4 for a, b in pairwise(errors[length]))
        assert distance(distributions[16], joint.distribution) > 5 * errors[length][-1], (
            "not the unconditional one"
        )
    stronger = ExactClassifierBased(exact(joint, process), classifier, 2.0)
    distribution = chain(AncestralSampler(num_steps=8), stronger, 2)[-1]
    assert distance(distribution, parts[1].distribution) > 1.5 * errors[2][1], "gamma 2 is no Bayes"


class LinearClassifier:
    """log p(y | z) is linear in one-hot rows, of tokens or of vectors, except for ``bend``."""

    def __init__(self, length: int, bend: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(5)
        self.slope = torch.randn(length, K + 1, dtype=torch.float64, generator=generator)
        self.bend = bend

    def __call__(
        self, tokens: Tensor, t: Tensor | None = None, padding: Tensor | None = None
    ) -> Tensor:
        if tokens.ndim == 2:
            tokens = torch.nn.functional.one_hot(tokens, K + 1).double()
        total = (tokens * self.slope).sum(dim=(1, 2))
        return total + self.bend * total**2


@pytest.mark.parametrize("process", [*NOISY, Absorbing(K)], ids=name)
def test_the_first_order_is_exact_for_a_classifier_that_is_linear(process) -> None:
    joint = Joint.random(K, 2, seed=1)
    model = exact(joint, process)
    blank = Request.nothing(model, 2)

    def distribution(kind, bend: float) -> Distribution:
        return ends(
            AncestralSampler(num_steps=2), kind(model, LinearClassifier(2, bend), 1.5), blank
        )

    first, exactly = (
        distribution(kind, 0.0) for kind in (FirstOrderClassifierBased, ExactClassifierBased)
    )
    assert distance(first, exactly) < 1e-12
    unguided = ends(AncestralSampler(num_steps=2), model, blank)
    assert distance(first, unguided) > 0.05
    first, exactly = (
        distribution(kind, 0.3) for kind in (FirstOrderClassifierBased, ExactClassifierBased)
    )
    assert distance(first, exactly) > 1e-2, "and for no other"


def test_guidance_composes() -> None:
    parts, joint = classes(2)
    process, (s, t) = Uniform(K, Cosine()), SPANS[1]
    classifier = LinearClassifier(2)
    inner = ExactClassifierBased(exact(joint, process, labelled=parts), classifier, 1.5)
    z = guided_rows(process, t)
    value = 1.5 * worth(classifier, z, t, K)
    each = [single_site(table, z, s, t, process) + value for table in (parts[1], joint)]
    wanted = mixed(*(one.log_softmax(dim=-1) for one in each), 2.0)
    found = kernel(AncestralSampler(), ClassifierFree(inner, 1, 2.0), z, s, t).exp()
    assert (found - wanted).abs().max() < 1e-12


def test_scores_are_not_guided() -> None:
    parts, joint = classes(2)
    for process in (Uniform(K), Absorbing(K)):
        model = exact(joint, process, Score(), labelled=parts)
        for build in (
            lambda m: ClassifierFree(m, 1),
            lambda m: ExactClassifierBased(m, LinearClassifier(2)),
            lambda m: FirstOrderClassifierBased(m, LinearClassifier(2)),
            lambda m: Conjoined(m, [2, 1, 0]),
        ):
            with pytest.raises(ValueError, match=r"must predict the clean token.*got the") as error:
                build(model)
            assert "\n" not in str(error.value)
        assert model.backbone.calls == 0


# Both strands


@pytest.mark.parametrize("process", NOISY, ids=name)
@pytest.mark.parametrize("kind", [LeaveOneOut(), Full()], ids=name)
def test_conjoined_averages_the_predictions_of_both_strands(process, kind) -> None:
    """With the network's kind of prediction; both strands then have the same distribution."""
    joint = Joint.random(K, 2, seed=1)
    complement = torch.tensor([2, 1, 0, K])
    model = exact(joint, process, kind)
    s, t = SPANS[1]
    z = guided_rows(process, t)
    times = [torch.full(z.shape, x, dtype=torch.float64) for x in (s, t)]

    def there(rows: Tensor) -> Tensor:
        table = joint.log_full if isinstance(kind, Full) else joint.log_loo
        return table(rows, times[1][:, 0], process).softmax(dim=-1)

    mean = (there(z) + there(complement[z].flip(1)).flip(1)[..., complement[:K]]) / 2
    if isinstance(kind, Full):
        mean = (mean.log() - process.log_likelihood(z, times[1])).softmax(dim=-1)
    wanted = process.log_posterior(mean.log(), z, *times).exp()
    found = kernel(AncestralSampler(), Conjoined(model, [2, 1, 0]), z, s, t).exp()
    assert (found - wanted).abs().max() < 1e-12

    def asymmetry(denoiser: Denoiser) -> float:
        distribution = chain(AncestralSampler(num_steps=2), denoiser, 2)[-1]
        return distance(distribution, {(2 - b, 2 - a): p for (a, b), p in distribution.items()})

    assert asymmetry(Conjoined(model, [2, 1, 0])) < 1e-12
    assert asymmetry(model) > 1e-2


def test_conjoined_models_are_guided_and_not_the_other_way_round() -> None:
    parts, joint = classes(2)
    model = exact(joint, Uniform(K), labelled=parts)
    guided = ClassifierFree(Conjoined(model, [2, 1, 0]), 1, 2.0)
    found = AncestralSampler(num_steps=2).sample(
        guided, torch.full((2, 2), K), seeds=torch.arange(2)
    )
    assert found.nfe.tolist() == [8, 8]
    with pytest.raises(ValueError, match=r"guided process uniform.*conjoin before guiding"):
        Conjoined(ClassifierFree(model, 1, 2.0), [2, 1, 0])
    Conjoined(ClassifierFree(model, 1, 1.0), [2, 1, 0])
