"""Reshaped and restricted distributions: transforms computed by hand, and samples drawn
from them.
"""

import math

import pytest
import torch

from seqdiff.samplers import (
    AncestralSampler,
    CachedAncestralSampler,
    ConfidenceSampler,
    EntropyBudgetSampler,
    EntropySampler,
    FirstHittingSampler,
    MarginSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    RemaskConfSampler,
    RemaskLoopSampler,
    RemaskRescaleSampler,
    Sampler,
    SemiAutoregressiveSampler,
    SMCSampler,
    TauLeapingSampler,
    ThresholdSampler,
    TweedieSampler,
)
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.decoding import reshape
from seqdiff.types import Inputs
from tests import distributions
from tests.enumeration import distance, outcomes
from tests.oracles import LookupBackbone, TableBackbone, masked_model

K, L = 3, 2
DENOISER = masked_model(LookupBackbone(K, L, seed=3))
START = (K,) * L


def reshaped(distribution: list[float], **options) -> list[float]:
    log_probs = torch.tensor([distribution], dtype=torch.float64).log()
    return reshape(log_probs, **options).exp()[0].tolist()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [0.1, 0.4, 0.3, 0.2]),
        ({"temperature": 0.5}, [0.01 / 0.3, 0.16 / 0.3, 0.09 / 0.3, 0.04 / 0.3]),
        ({"top_k": 2}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_k": 9}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_p": 0.39}, [0, 1, 0, 0]),
        ({"top_p": 0.5}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.69}, [0, 4 / 7, 3 / 7, 0]),
        ({"top_p": 0.71}, [0, 4 / 9, 3 / 9, 2 / 9]),
        ({"top_p": 1.0}, [0.1, 0.4, 0.3, 0.2]),
        ({"top_k": 3, "top_p": 0.75}, [0, 4 / 7, 3 / 7, 0]),
        ({"temperature": 0.5, "top_p": 0.5}, [0, 1, 0, 0]),
    ],
    ids=str,
)
def test_transforms(options: dict, expected: list[float]) -> None:
    """Nucleus keeps the crossing symbol; after top-k, mass is relative to the remaining symbols.

    The twins differ: dropping the crossing symbol gives one symbol at .5, temperature on
    probabilities gives [.2, .8, .6, .4] / 2, and nucleus before top-k keeps three symbols at .75.
    """
    assert reshaped([0.1, 0.4, 0.3, 0.2], **options) == pytest.approx(expected, abs=1e-12)


def test_ties_keep_exactly_k_and_impossible_letters_stay_so() -> None:
    assert reshaped([0.25] * 4, top_k=2) == pytest.approx([0.5, 0.5, 0, 0])
    assert reshaped([0.25] * 4, top_p=0.3) == pytest.approx([0.5, 0.5, 0, 0])
    assert reshaped([0.0, 0.5, 0.5], temperature=2.0)[0] == 0
    assert reshaped([1.0, 0.0, 0.0], top_k=2, top_p=0.9, temperature=0.1) == [1, 0, 0]


def test_a_certain_mass_of_one_keeps_rare_letters() -> None:
    """A cumulative sum that reaches 1 early must not cut the tail if the whole mass is
    requested.
    """
    distribution = [1 - 2e-17, 1e-17, 1e-17]
    assert min(reshaped(distribution, top_p=1.0)) > 0


def sharpen(_: int, distribution: list[float]) -> list[float]:
    """Temperature 0.5, then the two most likely symbols."""
    powers = [p**2 for p in distribution]
    kept = sorted(range(K), key=lambda k: -powers[k])[:2]
    total = sum(powers[k] for k in kept)
    return [powers[k] / total if k in kept else 0.0 for k in range(K)]


OPTIONS = {"temperature": 0.5, "top_k": 2}


def test_samplers_draw_from_the_reshaped_distribution() -> None:
    table = distributions.table(DENOISER, K, L, sharpen)
    right = distributions.random_order(START, table, K)
    found = outcomes(FirstHittingSampler(**OPTIONS), DENOISER, torch.tensor(START)).distribution
    assert distance(found, right) < 1e-10
    plain = outcomes(FirstHittingSampler(), DENOISER, torch.tensor(START)).distribution
    assert distance(plain, right) > 1e-2
    inner = SemiAutoregressiveSampler(L, 1, FirstHittingSampler(**OPTIONS))
    assert distance(outcomes(inner, DENOISER, torch.tensor(START)).distribution, right) < 1e-10


def test_certainty_is_that_of_the_distribution_before_reshaping() -> None:
    table, shaped = (
        distributions.table(DENOISER, K, L),
        distributions.table(DENOISER, K, L, sharpen),
    )

    def order(ranking: distributions.Table):
        def draw(x):
            hidden = distributions.masked(x, K)
            if not hidden:
                return {x: 1.0}
            first = max(hidden, key=lambda i: max(ranking[x][i]))
            return distributions.push(distributions.reveal(x, [first], shaped[x]), draw)

        return draw(START)

    sampler = ConfidenceSampler(**OPTIONS)
    found = outcomes(sampler, DENOISER, torch.tensor(START)).distribution
    assert distance(found, order(table)) < 1e-10


ALLOWED = torch.tensor([[True, False, True], [False, True, True]])


def restrict(position: int, distribution: list[float]) -> list[float]:
    kept = [p * float(ALLOWED[position, k]) for k, p in enumerate(distribution)]
    return [p / (sum(kept) or 1.0) for p in kept]  # no symbol of a visible position


@pytest.mark.parametrize(
    "sampler",
    [
        AncestralSampler(3),
        CachedAncestralSampler(3),
        FirstHittingSampler(),
        ConfidenceSampler(),
        MarginSampler(),
        EntropySampler(),
        ThresholdSampler(threshold=0.7),
        EntropyBudgetSampler(budget=0.5),
        RemaskCapSampler(3, eta=0.4),
        RemaskRescaleSampler(3, eta=0.4),
        RemaskConfSampler(3, eta=0.9),
        RemaskLoopSampler(4, eta=0.5, t_on=0.6, t_off=0.1, alpha_on=0.8),
        PredictorCorrectorSampler(2, renoise=0.4),
        TauLeapingSampler(3),
        TweedieSampler(3),
        SemiAutoregressiveSampler(L, 1),
        SMCSampler(reward=lambda x: x.double().sum(dim=-1), num_particles=2, ess_threshold=1.0),
    ],
    ids=lambda s: type(s).__name__,
)
def test_constraints_give_the_renormalised_distribution(sampler: Sampler) -> None:
    """The same sampler on a restricted model; forbidden symbols are never drawn."""

    class Restricted(TableBackbone):
        def logits(self, inputs):
            return DENOISER.backbone(inputs).masked_fill(~ALLOWED, -math.inf)

    x_init = torch.tensor(START)
    found = outcomes(sampler, DENOISER, x_init, allowed=ALLOWED).distribution
    right = outcomes(sampler, masked_model(Restricted(K)), x_init).distribution
    assert distance(found, right) < 1e-10
    if type(sampler) is FirstHittingSampler:
        table = distributions.table(DENOISER, K, L, restrict)
        assert distance(found, distributions.random_order(START, table, K)) < 1e-10
    assert all(ALLOWED[i, token] for x in found for i, token in enumerate(x))
    free = outcomes(sampler, DENOISER, x_init).distribution
    assert distance(found, free) > 1e-2, "the twin that forgets the constraint"


def test_distributions_that_do_not_add_up_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin: removes symbols without renormalising, so confidences are too small."""

    def log_probs(self, where, t, *, rows=None):
        inputs = Inputs(self.x_t, t, padding=self.padding)
        found = self.denoiser.log_probs(inputs, where).double()
        return found if self.allowed is None else found.masked_fill(~self.allowed[where], -math.inf)

    monkeypatch.setattr(Canvas, "log_probs", log_probs)
    for sampler in (ConfidenceSampler(), EntropySampler(), RemaskConfSampler(3, eta=0.9)):
        with pytest.raises(AssertionError):
            test_constraints_give_the_renormalised_distribution(sampler)


def test_constraints_come_before_top_k() -> None:
    """The most likely allowed symbol, rather than none if the most likely one is forbidden."""
    found = outcomes(
        FirstHittingSampler(top_k=1), DENOISER, torch.tensor(START), allowed=ALLOWED
    ).distribution
    assert sum(found.values()) == pytest.approx(1)
    assert all(ALLOWED[i, token] for x in found for i, token in enumerate(x))


@pytest.mark.parametrize("padded", [0, 9])
def test_padding_is_not_sampled_and_not_counted(padded: int) -> None:
    """The row without its padding has the distribution of the shorter row."""

    class First(TableBackbone):
        """Reads only what is not padding."""

        def logits(self, inputs):
            tokens, padding = inputs.tokens, inputs.padding
            assert padding is not None and padding.shape == tokens.shape
            logits = DENOISER.backbone(Inputs(tokens[:, :L]))
            return torch.cat((logits, logits), dim=1)[:, : tokens.shape[1]]

    token = K if padded == 0 else 0
    x_init = torch.tensor([*START, token])
    padding = torch.tensor([False] * L + [True])
    for sampler in (FirstHittingSampler(), AncestralSampler(2), RemaskCapSampler(2)):
        found = outcomes(sampler, masked_model(First(K)), x_init, padding=padding).distribution
        short = outcomes(sampler, DENOISER, torch.tensor(START)).distribution
        assert distance({x[:L]: chance for x, chance in found.items()}, short) < 1e-10
        assert {x[L] for x in found} == {token}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"temperature": 0.0},
            "temperature must be above 0 and finite, got 0.0; 1 is the model's own distribution",
        ),
        ({"temperature": -1.0}, "temperature must be above 0 and finite, got -1.0"),
        ({"temperature": math.nan}, "temperature must be above 0 and finite, got nan"),
        ({"temperature": math.inf}, "temperature must be above 0 and finite, got inf"),
        ({"top_k": 0}, "top_k must be at least 1, got 0; leave it out for all"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.1}, r"top_p must be in \(0, 1\], got 1.1; 1 keeps all"),
    ],
    ids=str,
)
def test_bad_options(options: dict, message: str) -> None:
    for cls in (FirstHittingSampler, AncestralSampler, RemaskCapSampler):
        with pytest.raises(ValueError, match=f"{cls.__name__}.{message}"):
            cls(**options)
