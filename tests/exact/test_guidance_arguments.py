"""Guidance passes each row's time and padding to the network and to the classifier."""

import math

import pytest
import torch
from torch import Tensor, nn

from seqdiff.samplers import (
    ClassifierFree,
    ExactClassifierBased,
    FirstOrderClassifierBased,
    Guidance,
)
from seqdiff.types import Inputs
from tests.oracles import TableBackbone, masked_model

K, L = 3, 4
TIMES = torch.tensor([0.2, 0.9, 0.5], dtype=torch.float64)
PADDING = torch.arange(L) >= torch.tensor([4, 2, 3])[:, None]
X_T = torch.tensor([[3, 0, 3, 1], [3, 3, 2, 2], [1, 3, 3, 0]])
WEIGHTS = torch.linspace(-1, 1, L * (K + 1), dtype=torch.float64).reshape(L, K + 1)


class Witness(TableBackbone):
    """Depends on the time and the amount of padding, passed by the caller or set beforehand."""

    num_classes = 2

    def __init__(self, t: float = 0.0, padded: int = 0) -> None:
        super().__init__(K)
        self.t, self.padded = t, padded

    def phase(self, t: Tensor | None, padding: Tensor | None, rows: int) -> Tensor:
        time = torch.tensor([self.t], dtype=torch.float64).expand(rows) if t is None else t
        padded = torch.full((rows,), self.padded) if padding is None else padding.sum(dim=-1)
        return 3 * time + 0.7 * padded

    def logits(self, inputs):
        tokens, label = inputs.tokens, inputs.label
        phase = self.phase(inputs.t, inputs.padding, len(tokens))
        if label is not None:
            phase = phase + 1.3 * (label + 1)
        places = torch.arange(L)[:, None] + torch.arange(1, K + 1)
        return 2 * (phase[:, None, None] * places + tokens.sum(dim=-1)[:, None, None]).cos()

    def classify(self, tokens, t=None, padding=None):
        """Classify ids or rows of vectors."""
        if tokens.ndim == 2:
            tokens = nn.functional.one_hot(tokens, K + 1).double()
        phase = self.phase(t, padding, len(tokens))
        return ((tokens * WEIGHTS).sum(dim=(1, 2)) * (1 + phase)).sin()


def free(gamma: float):
    return lambda witness: ClassifierFree(masked_model(witness), 1, gamma)


def exact(witness: Witness) -> Guidance:
    return ExactClassifierBased(masked_model(witness), witness.classify, 1.5)


def tangent(witness: Witness) -> Guidance:
    return FirstOrderClassifierBased(masked_model(witness), witness.classify, 1.5)


GUIDES = {"free, 0": free(0.0), "1": free(1.0), "2": free(2.0), "exact": exact, "tangent": tangent}


def gap(build, t: Tensor | None, padding: Tensor | None) -> float:
    """Difference of the batch from rows whose time and padding are set beforehand."""
    where = (X_T == K) & ~PADDING
    batch = build(Witness()).log_probs(Inputs(X_T, t, padding=padding), where)
    alone = []
    for row in range(len(X_T)):
        told = Witness(float(TIMES[row]), int(PADDING[row].sum()))
        alone.append(build(told).log_probs(Inputs(X_T[row : row + 1]), where[row : row + 1]))
    return float((batch - torch.cat(alone)).abs().max())


@pytest.mark.parametrize("name", GUIDES)
def test_every_row_has_its_own_time_and_padding(name: str) -> None:
    assert gap(GUIDES[name], TIMES, PADDING) < 1e-12
    assert gap(GUIDES[name], TIMES.flip(0), PADDING) > 1e-2, "the twin with other rows' times"
    assert gap(GUIDES[name], None, PADDING) > 1e-2, "the twin that forgets the time"
    assert gap(GUIDES[name], TIMES, None) > 1e-2, "the twin that forgets the padding"


class Blind(ExactClassifierBased):
    """Broken twin: the classifier gets neither time nor padding, but the network does."""

    def _ask(self, inputs, row, position, symbol):
        return super()._ask(Inputs(inputs.tokens), row, position, symbol)


def test_a_classifier_that_is_not_told_would_be_found() -> None:
    def blind(witness: Witness) -> Guidance:
        return Blind(masked_model(witness), witness.classify, 1.5)

    assert gap(blind, TIMES, PADDING) > 1e-2


def test_what_the_distribution_rules_out_may_be_nonsense_to_the_classifier() -> None:
    """p(wanted | x) of an impossible x is 0/0; the symbol stays excluded, the others sum to 1."""

    class Never(TableBackbone):
        def logits(self, inputs):
            return torch.tensor([0.0, 1.0, -math.inf]).expand(*inputs.tokens.shape, K)

    def classifier(tokens, t=None, padding=None):
        return torch.where((tokens == 2).any(dim=-1), math.nan, 0.5 * (tokens == 1).sum(dim=-1))

    x_t = torch.tensor([[3, 0, 3, 1]])
    distribution = ExactClassifierBased(masked_model(Never(K)), classifier)(Inputs(x_t))[0, 0].exp()
    odds = math.exp(1.5)
    assert distribution.tolist() == pytest.approx([1 / (1 + odds), odds / (1 + odds), 0.0])


def test_no_strength_asks_no_classifier() -> None:
    """0 times -inf would be NaN."""

    def hopeless(tokens, t=None, padding=None):
        raise AssertionError("asked")

    denoiser = masked_model(Witness())
    for cls in (ExactClassifierBased, FirstOrderClassifierBased):
        guided = cls(denoiser, hopeless, 0.0)
        assert torch.equal(guided(Inputs(X_T)), denoiser(Inputs(X_T)))
        assert guided.evaluations(Inputs(X_T)).tolist() == [1, 1, 1]
