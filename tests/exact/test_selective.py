"""Logits of selected positions: the same values and samples, and no other positions evaluated."""

import itertools

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import Backbone, Caduceus
from seqdiff.process import Absorbing
from seqdiff.samplers import (
    AncestralSampler,
    CachedAncestralSampler,
    Sampler,
)
from seqdiff.samplers.canvas import Memory
from seqdiff.schedules import Linear
from seqdiff.types import Inputs
from tests.exact.test_sampler_contract import ALL, Neighbours
from tests.oracles import TableBackbone, masked_model

K, L, CLASSES = 4, 9, 3
PROCESS = Absorbing(K, Linear())
NETWORKS = {
    "ph": {"variant": "ph"},
    "ph, labels": {"variant": "ph", "num_classes": CLASSES},
    "ps": {"variant": "ps"},
    "ps, labels": {"variant": "ps", "num_classes": CLASSES},
    "ps, strands swapped once": {"variant": "ps", "swap_strands": True, "n_layer": 1},
    "ps, strands swapped twice": {"variant": "ps", "swap_strands": True},
}


def caduceus(name: str, dtype: torch.dtype = torch.float64) -> Caduceus:
    """Small, with embeddings large enough to distinguish symbols."""
    torch.manual_seed(0)
    options = {"n_layer": 2, "norm": "layer", **NETWORKS[name]}
    network = Caduceus(
        8, num_embeddings=K + 1, num_logits=K, complement=[3, 2, 1, 0, 4], **options
    ).to(dtype)
    with torch.no_grad():
        network.embedding.weight.mul_(50)
        network.norm.bias.normal_()
    return network.eval()


def request(labelled: bool) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    padding = torch.arange(L) >= torch.tensor([L, 5, 7, L])[:, None]
    label = torch.tensor([2, -1, 0, 1]) if labelled else None
    tokens = torch.randint(0, K + 1, (4, L), generator=generator)
    return Inputs(tokens, padding=padding, label=label)


class NotMirrored(Caduceus):
    """Broken twin: reads the reverse strand at the position of the forward strand."""

    def head(self, h, inputs, where=None):
        if self.strands == 2:
            first, second = h.chunk(2)
            h = torch.cat((first, second.flip(1)))
        return super().head(h, inputs, where)


@pytest.mark.parametrize("name", NETWORKS)
def test_caduceus_scores_single_positions_as_it_scores_all(name: str) -> None:
    """Up to rounding: a matrix product with fewer rows may add in another order."""
    network, given = caduceus(name), request("labels" in name)
    whole = network(given)
    for share in (0.0, 0.1, 0.5, 1.0):
        generator = torch.Generator().manual_seed(2)
        where = torch.rand(4, L, generator=generator) < share
        part = network(given, where)
        torch.testing.assert_close(part, whole[where], rtol=1e-12, atol=1e-12)
    one_row = torch.zeros(4, L, dtype=torch.bool)
    one_row[2, [0, 3]] = True
    part = network(given, one_row)
    torch.testing.assert_close(part, whole[2, [0, 3]], rtol=1e-12, atol=1e-12)
    network.__class__ = NotMirrored
    gap = (network(given, one_row) - whole[2, [0, 3]]).abs().max()
    assert (gap > 1e-2) == name.startswith("ps")


@pytest.mark.slow  # compiles the backward kernels in float64, which no other test needs
@pytest.mark.parametrize("name", ["ph", "ps, labels"])
def test_gradients_are_those_of_the_whole(name: str) -> None:
    network, given = caduceus(name), request("labels" in name)
    where = given.tokens == K
    weight = torch.randn(int(where.sum()), K, dtype=torch.float64)
    grads = []
    for logits in (network(given)[where], network(given, where)):
        network.zero_grad()
        (logits * weight).sum().backward()
        grads.append([p.grad.clone() for p in network.parameters()])
    for whole, part in zip(*grads, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-10, atol=1e-12)
    assert any(grad.abs().max() > 1e-3 for grad in grads[1])


class Whole(TableBackbone):
    """A network that always scores all positions, and takes no labels."""

    def __init__(self, network: Backbone) -> None:
        super().__init__(network.num_logits)
        self.network = network

    def logits(self, inputs):
        return self.network(inputs)


class Selective(TableBackbone):
    """A table that scores selected positions and records them; it cannot score all."""

    def __init__(self) -> None:
        super().__init__(3)
        self.neighbours = Neighbours()
        self.asked: list[tuple[Tensor, Tensor]] = []

    def logits(self, inputs):
        return self.neighbours(inputs)

    def head(self, h, inputs, where=None):
        assert where is not None, "all positions were asked for"
        self.asked.append((inputs.tokens, where))
        return super().head(h, inputs, where)


class ByColumn(Selective):
    """Broken twin: answers in the order of the columns."""

    def head(self, h, inputs, where=None):
        return self.logits(inputs).transpose(0, 1)[where.T]


every = pytest.mark.parametrize("sampler", ALL, ids=lambda s: type(s).__name__)


def drawn(sampler: Sampler, backbone: Backbone, vocab_size: int) -> tuple[Tensor, Tensor]:
    """Rows of three lengths, with given tokens and constraints."""
    x_init = torch.full((12, L), vocab_size)
    x_init[3, 4] = 1
    allowed = torch.ones(12, L, vocab_size, dtype=torch.bool)
    allowed[2, 5, :2] = False
    padding = torch.arange(L) >= torch.tensor([L, 5, 7]).repeat(4)[:, None]
    found = sampler.sample(
        masked_model(backbone),
        x_init,
        seeds=torch.arange(12),
        allowed=allowed,
        padding=padding,
    )
    return found.tokens, found.nfe


@every
def test_samples_are_the_same_integers(sampler: Sampler) -> None:
    """Equal to the bit for a table of logits, where nothing is rounded again."""
    k = Neighbours().table.shape[-1]
    tokens, nfe = drawn(sampler, Neighbours(), k)
    selected, spent = drawn(sampler, Selective(), k)
    assert torch.equal(selected, tokens) and torch.equal(spent, nfe)
    by_column, _ = drawn(sampler, ByColumn(), k)
    assert not torch.equal(by_column, tokens)


@every
@pytest.mark.parametrize("name", ["ph", "ps"])
def test_samples_of_caduceus_are_the_same_integers(sampler: Sampler, name: str) -> None:
    """In float64, where rounding changes no draw."""
    network = caduceus(name)
    tokens, nfe = drawn(sampler, Whole(network), K)
    selected, spent = drawn(sampler, network, K)
    assert torch.equal(selected, tokens) and torch.equal(spent, nfe)


LOOKS_AT_ALL = {
    "Confidence",
    "Margin",
    "Entropy",
    "EntropyBudget",
    "Threshold",
    "SMC",
    "TauLeaping",
}


@every
def test_only_what_is_needed_is_asked_for(sampler: Sampler) -> None:
    """Masked positions only, and each once unless the sampler looks at all of them.

    A position that the sampler masks again is evaluated again; one that a window repeats is not.
    """
    name = type(sampler).__name__.removesuffix("Sampler")
    backbone = Selective()
    k = backbone.neighbours.table.shape[-1]
    x_init = torch.full((6, L), k)
    x_init[2, 3:5] = 1
    seen: list[Tensor] = []
    sampler.sample(
        masked_model(backbone),
        x_init,
        seeds=torch.arange(6),
        callback=lambda step, x_t: seen.append(x_t.clone()),
    )
    asked = sum(int(where.sum()) for _, where in backbone.asked)
    for tokens, where in backbone.asked:
        assert (tokens[where] == k).all()
    masked = int((x_init == k).sum())
    if name == "CachedAncestral":
        again = sum(int((tokens == k).sum()) for tokens, _ in backbone.asked)
        assert asked == again > masked, "all masks of the rows that changed"
    elif name in LOOKS_AT_ALL:
        assert asked == sum(int((tokens == k).sum()) for tokens, _ in backbone.asked)
    elif "Remask" in name or name == "PredictorCorrector":
        redrawn = masked + sum(
            int(((later == k) & (earlier != k)).sum())
            for earlier, later in itertools.pairwise(seen)
        )
        # The corrector masks and redraws within a step, which the callback does not see.
        assert asked == redrawn if "Remask" in name else asked > masked
    else:
        assert asked == masked


def test_a_memory_keeps_the_answers_about_masks_only() -> None:
    """One answer per mask at the start, not per position."""
    kept: list[tuple[int, ...]] = []

    class Watched(CachedAncestralSampler):
        def fill(self, canvas):
            super().fill(canvas)
            kept.append(tuple(canvas.memory.log_probs.shape))

    x_init = torch.full((5, L), 3)
    x_init[:, 2:] = 1
    x_init[4] = 0
    backbone = Selective()
    for sampler in (Watched(50), AncestralSampler(50)):
        found = sampler.sample(masked_model(backbone), x_init, seeds=torch.arange(5))
        kept.append(found.tokens)
    assert kept[0] == (8, 3) and torch.equal(kept[1], kept[2])


def keeps_too_much(self: Memory, where: Tensor, log_probs: Tensor, x_t: Tensor) -> None:
    """Broken twin: treats every row as known."""
    REAL_KEEP(self, where, log_probs, x_t)
    self.tokens[:] = x_t


REAL_KEEP = Memory.keep


@pytest.mark.parametrize("broken", [False, True])
def test_a_memory_knows_which_rows_it_was_told_about(monkeypatch, broken: bool) -> None:
    x_t = torch.tensor([[3, 0, 3], [3, 3, 1]])
    memory = Memory.of(x_t == 3)
    if broken:
        monkeypatch.setattr(Memory, "keep", keeps_too_much)
    first, second = x_t == 3, x_t == 3
    first[1], second[0] = False, False
    memory.keep(first, torch.tensor([[0.0, 1.0], [2.0, 3.0]]), x_t)
    assert memory.stale(x_t).tolist() == [False, not broken]
    memory.keep(second, torch.tensor([[4.0, 5.0], [6.0, 7.0]]), x_t)
    kept = memory.log_probs[memory.place[x_t == 3]]
    assert torch.equal(kept.flatten(), torch.arange(8.0))
