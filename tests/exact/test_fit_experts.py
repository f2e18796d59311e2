"""What the gates of experts are chosen on: the draws of the bound, on the validation rows."""

import numpy as np
import pytest
import torch

from seqdiff.backbones import AutoregressiveTransformer, Transformer
from seqdiff.denoiser import Denoiser
from seqdiff.experts import ExpertsConfig, NGramExperts
from seqdiff.process import Absorbing, Blockwise, LeftToRight
from seqdiff.training import experts as fitting
from seqdiff.training import fit_experts
from tests.integration.toy_domain import RingSet, ToyData

K = 6


def model(kind: str) -> Denoiser:
    torch.manual_seed(0)
    sizes = {"num_embeddings": K + 1, "num_logits": K}
    process, net = Absorbing(K), Transformer(8, 1, 2, cond_dim=4, **sizes)
    block_sizes = ()
    if kind == "ar":
        process, net = LeftToRight(K), AutoregressiveTransformer(8, 1, 2, **sizes)
    if kind == "blocks":
        block_sizes = (1, 4)
        process = Blockwise(process, 4, block_sizes)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    experts = NGramExperts(K, ExpertsConfig(2), None, block_sizes)
    return Denoiser(net, process, experts=experts).eval()


def data() -> ToyData:
    return ToyData(eval_batch_size=4)


@pytest.mark.parametrize("kind", ["masked", "blocks"])
def test_draws_are_those_of_the_bound(kind: str) -> None:
    """Of n counted tokens k are masked, with weight n / k, for every row or block of it."""
    dataset, size = data().dataset("valid"), 4 if kind == "blocks" else 12
    draws, tokens = fitting._draw(model(kind), dataset, 4, seed=0)
    x0, loss_mask = (torch.from_numpy(np.asarray(x)) for x in dataset.rows(np.arange(13)))
    assert tokens == int(loss_mask.sum())
    seen, fractions = [], set()
    patterns: dict[int, set[tuple[bool, ...]]] = {row: set() for row in range(13)}
    for draw in draws:
        seen += draw.rows.tolist()
        for row, where in zip(draw.rows.tolist(), draw.where.tolist(), strict=True):
            patterns[row].add(tuple(where))
        assert torch.equal(draw.x0, x0[draw.rows].long())
        hidden = draw.inputs.tokens != draw.x0
        assert torch.equal(draw.where, hidden & (draw.x0 < K))
        weights = torch.zeros(draw.where.shape, dtype=draw.weight.dtype)
        weights[draw.where] = draw.weight
        for row, where, weight in zip(draw.rows, draw.where, weights, strict=True):
            for first in range(0, 12, size):
                part = slice(first, first + size)
                k, n = int(where[part].sum()), int(loss_mask[row, part].sum())
                if k:
                    assert weight[part][where[part]].tolist() == pytest.approx([n / k] * k)
                    fractions.add(k / n)
    assert sorted(seen) == sorted(list(range(13)) * 8), "eight draws of each row"
    assert len(fractions) > 3
    assert min(map(len, patterns.values())) >= 6, "every draw has masks of its own"


def test_the_training_split_is_counted() -> None:
    """All of its rows, without the tokens that are unknown."""
    denoiser, splits = model("masked"), data()
    fit_experts(denoiser, splits, seed=0)
    rows, known = splits.dataset("train").rows(np.arange(48))
    assert not known.all()
    by_hand = NGramExperts(K, ExpertsConfig(2))
    by_hand.count(48, lambda part: (rows[part], known[part]))
    assert denoiser.experts is not None
    assert torch.equal(denoiser.experts.get_extra_state(), by_hand.get_extra_state())


@pytest.mark.parametrize("kind", ["masked", "blocks", "ar"])
def test_gates_minimise_the_bound_of_the_mixture(kind: str) -> None:
    """The gradient of the costs, as the model itself computes them, cancels that of the prior."""
    denoiser, splits = model(kind), data()
    fit_experts(denoiser, splits, seed=0)
    experts = denoiser.experts
    assert experts is not None
    values = [experts.scale, experts.gates]
    for gates in values:
        gates.requires_grad_()
    for place, size in enumerate(denoiser.block_sizes or (None,)):
        sized = denoiser if size is None else denoiser.in_blocks(size)
        draws, tokens = fitting._draw(sized, splits.dataset("valid"), 4, seed=0)
        numbers = torch.cat((experts.scale[place], experts.gates[place]))
        prior = -2 * numbers[0] + 1  # completes the square of the scale's distance from 1
        for run in numbers.split((1, 9, 9, 1, 5, 9, 9)):
            prior = prior + run[0].square() + (run.diff() / 0.03).square().sum()
        costs = [draw.weight @ sized.nats(*draw[:3])[draw.where] for draw in draws]
        weights = sum(float(draw.weight.sum()) for draw in draws)
        loss = torch.stack(costs).sum() / weights + prior / (2 * tokens)
        for slope in torch.autograd.grad(loss, values):
            assert float(slope.abs().max()) < 1e-4
        assert float(experts.gates[place].detach().abs().max()) > 0.2, "not where it began"


def test_a_second_fit_starts_from_the_network_again() -> None:
    denoiser, splits = model("masked"), data()
    first = fit_experts(denoiser, splits, seed=0)
    assert denoiser.experts is not None
    gates = [gate.clone() for gate in denoiser.experts.buffers()]
    assert fit_experts(denoiser, splits, seed=0) == first
    for one, two in zip(gates, denoiser.experts.buffers(), strict=True):
        assert torch.equal(one, two)


def test_cross_validation_keeps_rows_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    denoiser, splits = model("masked"), data()
    given = []

    def fit(self, outputs, found, targets, weights, rows, *rest):
        given.extend((rows, targets, weights))
        return 0.0, 0.0

    monkeypatch.setattr(NGramExperts, "fit", fit)
    fit_experts(denoiser, splits, seed=0)
    draws, _ = fitting._draw(denoiser, splits.dataset("valid"), 4, seed=0)
    owners = [row for draw in draws for row in draw.rows[draw.where.nonzero()[:, 0]].tolist()]
    assert given[0].tolist() == owners and len(set(owners)) == 13
    assert torch.equal(given[1], torch.cat([draw.x0[draw.where] for draw in draws]))
    assert given[2].tolist() == pytest.approx(torch.cat([draw.weight for draw in draws]).tolist())


def test_autoregressive_rows_have_one_exact_loss() -> None:
    denoiser, splits = model("ar"), data()
    (before, after) = fit_experts(denoiser, splits, seed=0)[None]
    draws, _ = fitting._draw(denoiser, splits.dataset("valid"), 4, seed=0)
    assert sorted(row for draw in draws for row in draw.rows.tolist()) == list(range(13))
    assert denoiser.experts is not None
    with torch.no_grad(), denoiser.experts.only("network"):
        nats = torch.cat([denoiser.nats(d.inputs, d.x0, d.where)[d.where] for d in draws])
    assert before == pytest.approx(float(nats.mean()), abs=1e-6)
    assert after < before - 0.1, "the next token follows from the last two"


@pytest.mark.parametrize("kind", ["masked", "blocks", "ar"])
def test_the_mixture_learns_the_ring(kind: str) -> None:
    """On rows that follow from their neighbours, counts are far better than a random network."""
    denoiser, splits = model(kind), data()
    found = fit_experts(denoiser, splits, seed=1)
    assert list(found) == ([1, 4] if kind == "blocks" else [None])
    assert all(after < before - 0.1 for before, after in found.values())
    again = model(kind)
    assert fit_experts(again, splits, seed=1) == found
    assert denoiser.experts is not None and again.experts is not None
    one, two = denoiser.experts.state_dict(), again.experts.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert fit_experts(model(kind), splits, seed=2) != found or kind == "ar"


def test_rows_are_spread_over_the_split_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "_MOST_POSITIONS", 30)
    monkeypatch.setattr(fitting, "_ENOUGH_ROWS", 1)
    dataset = RingSet(100, 12, 0)
    draws, tokens = fitting._draw(model("masked"), dataset, 2, seed=0)
    found = torch.cat([draw.x0 for draw in draws])
    expected, loss_mask = dataset.rows(np.array([0, 24, 49, 74, 99]))
    assert np.array_equal(found.numpy(), expected)
    assert tokens == loss_mask.sum()


@pytest.mark.parametrize("kind", ["masked", "ar"])
def test_many_rows_are_read_even_if_few_positions_fit(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with large vocabularies; the positions are a random part with their own weights."""
    dataset, denoiser = RingSet(400, 12, 0), model(kind)
    monkeypatch.setattr(fitting, "_MOST_READ", 12 * 400)
    monkeypatch.setattr(fitting, "_ENOUGH_ROWS", 400)
    monkeypatch.setattr(fitting, "_MOST_POSITIONS", 10**6)
    monkeypatch.setattr(fitting, "_MOST_DRAWS", 1)
    whole, every = fitting._draw(denoiser, dataset, 40, seed=0)
    monkeypatch.setattr(fitting, "_MOST_VALUES", 600 * K)
    draws, tokens = fitting._draw(denoiser, dataset, 40, seed=0)
    assert torch.cat([draw.rows for draw in draws]).tolist() == list(range(400))
    kept = sum(int(draw.where.sum()) for draw in draws)
    assert 500 < kept < 800
    assert tokens == pytest.approx(every * (600 if kind == "ar" else 1200) / 4800, abs=1)
    for all_of_it, some in zip(whole, draws, strict=True):
        assert torch.equal(all_of_it.inputs.tokens, some.inputs.tokens)
        assert not bool((some.where & ~all_of_it.where).any())
        weights = torch.zeros(some.where.shape, dtype=all_of_it.weight.dtype)
        weights[all_of_it.where] = all_of_it.weight
        assert torch.equal(weights[some.where], some.weight)
    found = fit_experts(denoiser, data(), seed=0)[None]
    assert found[1] < found[0] - 0.1
