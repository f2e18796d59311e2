"""Padded rows: a batch of rows of several lengths gives the results of the rows alone."""

import numpy as np
import pytest
import torch

from seqdiff.backbones import Caduceus
from seqdiff.data.dataset import EvaluationSet, SequenceDataset, TrainingStream
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import FixedOrder, StratifiedK, evaluate
from seqdiff.objectives import ContinuousNELBO, DiscreteNELBO, WeightedMLM
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.types import Batch

K, L = 5, 9
LENGTHS = (4, 9, 6)


@pytest.fixture(scope="module")
def denoiser() -> Denoiser:
    torch.manual_seed(0)
    net = Caduceus(num_embeddings=K + 1, num_logits=K, d_model=16, n_layer=2)
    for parameter in net.parameters():  # away from initial weights, with which rows hardly differ
        parameter.data += 0.2 * torch.randn_like(parameter)
    return Denoiser(net, Absorbing(K)).eval()


def batch() -> Batch:
    tokens = torch.randint(K, (len(LENGTHS), L), generator=torch.Generator().manual_seed(1))
    padding = torch.arange(L) >= torch.tensor(LENGTHS)[:, None]
    index = torch.arange(len(LENGTHS))
    return Batch(tokens.masked_fill(padding, K), ~padding, index, padding=padding)


def alone(row: int) -> Batch:
    whole, length = batch(), LENGTHS[row]
    tokens = whole.tokens[row : row + 1, :length]
    return Batch(tokens, torch.ones_like(tokens, dtype=torch.bool), whole.index[row : row + 1])


def without_padding() -> Batch:
    """Broken twin: padding is not counted, but the network reads it."""
    whole = batch()
    return Batch(whole.tokens, whole.loss_mask, whole.index)


@pytest.mark.parametrize("estimator", [FixedOrder(), StratifiedK(4)])
def test_a_likelihood_does_not_see_padding(denoiser, estimator):
    apart = [evaluate(denoiser, [alone(i)], estimator=estimator) for i in range(3)]
    expected = [float(one.nats[0]) for one in apart]
    padded = evaluate(denoiser, [batch()], estimator=estimator)
    np.testing.assert_allclose(padded.nats, expected, rtol=0, atol=1e-4)
    assert padded.num_tokens.tolist() == list(LENGTHS)
    broken = evaluate(denoiser, [without_padding()], estimator=estimator)
    assert np.abs(broken.nats - expected)[[0, 2]].min() > 1e-3


@pytest.mark.parametrize("objective", [ContinuousNELBO(), DiscreteNELBO(8), WeightedMLM()])
def test_a_loss_does_not_see_padding(denoiser, objective):
    noise = CounterNoise(4)
    terms = objective.terms(denoiser, batch(), noise)
    for row, length in enumerate(LENGTHS):
        expected = objective.terms(denoiser, alone(row), noise)
        torch.testing.assert_close(terms[row : row + 1, :length], expected, atol=1e-4, rtol=1e-4)
    assert bool((terms[batch().padding] == 0).all())
    broken = objective.terms(denoiser, without_padding(), noise)
    assert float((broken - terms).detach().abs().max()) > 1e-3


def test_padding_moves_with_the_batch():
    moved = batch().to("cpu")
    assert torch.equal(moved.padding, batch().padding)
    assert without_padding().to("cpu").padding is None


class Ragged(SequenceDataset):
    """Ten rows cut anew in every epoch; row i of epoch e reads 10 e + i and has i tokens."""

    def __init__(self, offset: int = 0) -> None:
        self.offset = offset

    def __len__(self) -> int:
        return 10

    def rows(self, indices):
        tokens = np.repeat((indices + self.offset)[:, None], 10, axis=1)
        return tokens, np.arange(10) < indices[:, None]

    def labels(self, indices):
        return indices + self.offset

    def padding(self, indices):
        return None if self.offset == 10 else np.arange(10) >= indices[:, None]

    def epoch(self, seed, number):
        assert seed == 3
        return Ragged(10 * number)


def test_each_epoch_reads_its_own_rows_with_their_padding():
    stream = TrainingStream(Ragged(), seed=3)
    for positions in ([0, 5], [8, 9, 10, 11], [21, 3, 12]):
        found = stream.__getitems__(positions)
        assert found.index.tolist() == positions
        assert (found.tokens[:, 0] // 10).tolist() == [p // 10 for p in positions]
        assert found.label.tolist() == found.tokens[:, 0].tolist()
        held = torch.arange(10) < (found.tokens[:, :1] % 10)
        full = torch.tensor([p // 10 == 1 for p in positions])
        assert torch.equal(found.loss_mask, held)
        assert torch.equal(found.padding, ~held & ~full[:, None])
    assert stream.__getitems__([12, 15]).padding is None
    rows = sorted(stream[p].tokens[0, 0].item() for p in range(20, 30))
    assert rows == list(range(20, 30))


def test_an_evaluation_reads_the_rows_as_they_are():
    found = EvaluationSet(Ragged()).__getitems__([4, 7])
    assert found.padding.sum(dim=1).tolist() == [6, 3]
    assert found.tokens[:, 0].tolist() == [4, 7]
