"""Block diffusion guided to a label, by enumeration."""

import itertools

import pytest
import torch

from seqdiff.samplers import (
    BlockClassifierBased,
    BlockClassifierFree,
    BlockSampler,
    Conjoined,
    FirstHittingSampler,
    SMCSampler,
)
from seqdiff.types import Inputs
from tests.block_distributions import by_blocks
from tests.block_worlds import BlockOracle, LabelledBlocks, block_denoiser
from tests.enumeration import Tokens, distance, joint_distribution, outcomes
from tests.oracles import Joint

K, L, EXACT = 2, 4, 1e-10


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.5])
@pytest.mark.parametrize("size", [1, 2])
def test_guided_blocks_have_the_mixed_distribution(size: int, gamma: float) -> None:
    """p(x | label)^gamma p(x)^(1 - gamma), normalised, for every token given the visible ones."""
    world = LabelledBlocks(K, L)
    model = block_denoiser(world, size)
    guided = BlockClassifierFree(model, 1, gamma)
    states = torch.tensor(list(itertools.product(range(K + 1), repeat=L)))
    with_label = model(Inputs(states, label=torch.ones(len(states), dtype=torch.int64)))
    without = model(Inputs(states))
    mixed = (gamma * with_label.exp().log() + (1 - gamma) * without).log_softmax(dim=-1)
    hidden = states == K
    torch.testing.assert_close(guided(Inputs(states))[hidden], mixed[hidden])
    found = guided.log_probs(Inputs(states), hidden)
    torch.testing.assert_close(found, mixed[hidden])
    found = outcomes(BlockSampler(), guided, torch.full((L,), K))
    assert distance(found.distribution, by_blocks(guided, FirstHittingSampler(), (K,) * L)) < EXACT
    plain = outcomes(BlockSampler(), model, torch.full((L,), K))
    assert (distance(found.distribution, plain.distribution) < EXACT) == (gamma == 0)
    evaluations = 1 if gamma in (0, 1) else 2
    assert torch.equal(found.nfe[:1], plain.nfe[:1] * evaluations)


def test_guided_blocks_are_bounded_given_clean_ones() -> None:
    """The costs that likelihoods consist of."""
    world, gamma = LabelledBlocks(K, L), 1.5
    guided = BlockClassifierFree(block_denoiser(world, 2), 0, gamma)
    x0 = torch.tensor(list(itertools.product(range(K), repeat=L)))
    hidden = torch.tensor([True, False, True, True]).expand_as(x0)
    x_t = x0.masked_fill(hidden, K)
    label = torch.zeros(len(x0), dtype=torch.int64)
    parts = (world.block_logits(Inputs(x_t, label=given), x0, 2) for given in (label, None))
    with_label, without = (part.log_softmax(dim=-1) for part in parts)
    mixed = (gamma * with_label + (1 - gamma) * without).log_softmax(dim=-1)
    wanted = -mixed.gather(-1, x0[..., None])[..., 0]
    found = guided.nats(Inputs(x_t), x0, hidden)
    torch.testing.assert_close(found[hidden], wanted[hidden])
    noisy = -guided.log_probs(Inputs(x_t), hidden).gather(-1, x0[hidden][:, None])[:, 0]
    assert not torch.allclose(found[hidden], noisy), "the twin that reads corrupted blocks"


def test_what_does_not_fit_models_of_blocks_raises() -> None:
    model = block_denoiser(LabelledBlocks(K, 3), 1)
    with pytest.raises(ValueError, match=r"Conjoined.denoiser must not be one of block diffusion"):
        Conjoined(model, [1, 0])
    with pytest.raises(ValueError, match=r"BlockClassifierFree.label must be a class .* has 2,"):
        BlockClassifierFree(model, 2)
    with pytest.raises(ValueError, match=r"BlockClassifierFree.gamma must be finite .* got -1"):
        BlockClassifierFree(model, 0, -1.0)
    guided = BlockClassifierFree(model, 0)
    with pytest.raises(ValueError, match="denoiser must not be guided yet, got one guided to 0"):
        BlockClassifierFree(guided, 1)
    with pytest.raises(ValueError, match=r"inputs must have no label, got one of shape \(1,\)"):
        guided.start(1, label=torch.zeros(1, dtype=torch.int64))


# By a classifier


def chance_of_wanted(x: Tokens) -> float:
    return (1 + x[0] + 3 * x[1] * x[-1]) / 6


class ExactClassifier:
    """p(wanted | the tokens that are known), under a joint distribution."""

    def __init__(self, joint: dict[Tokens, float]) -> None:
        self.joint, self.rows = joint, 0

    def __call__(self, tokens, t=None, padding=None):
        self.rows += len(tokens)
        chances = [self.of(tuple(row)) for row in tokens.tolist()]
        return torch.tensor(chances, dtype=torch.float64).log()

    def of(self, row: Tokens) -> float:
        fits = {
            x: p
            for x, p in self.joint.items()
            if all(a in (b, K) for a, b in zip(row, x, strict=True))
        }
        return sum(p * chance_of_wanted(x) for x, p in fits.items()) / sum(fits.values())


@pytest.mark.parametrize("size", [1, 2, 3])
def test_an_exact_classifier_leads_to_the_posterior(size: int) -> None:
    """p(x | wanted), whatever the size of a block."""
    table = Joint.random(K, 3, seed=7)
    joint = joint_distribution(table.probs, K, 3)
    model, classifier = block_denoiser(BlockOracle(table), size), ExactClassifier(joint)
    total = sum(p * chance_of_wanted(x) for x, p in joint.items())
    right = {x: p * chance_of_wanted(x) / total for x, p in joint.items()}
    start = torch.full((3,), K)
    guided = BlockClassifierBased(model, classifier, 3, batch_size=5)
    found = outcomes(BlockSampler(), guided, start)
    assert distance(found.distribution, right) < EXACT < distance(joint, right)
    assert (found.nfe == 3 + 2 // size + 3 * K).all()
    none = outcomes(BlockSampler(), BlockClassifierBased(model, classifier, 3, 0.0), start)
    assert distance(none.distribution, joint) < EXACT
    if size < 3:
        blind = lambda tokens: classifier(tokens.index_fill(1, torch.tensor([0]), K))  # noqa: E731
        wrong = outcomes(BlockSampler(), BlockClassifierBased(model, blind, 3), start)
        assert distance(wrong.distribution, right) > 1e-2, "a twin that forgets earlier blocks"


def test_a_classifier_and_a_label_compose() -> None:
    """Each conditional distribution of the guided model is tilted and normalised."""
    model = BlockClassifierFree(block_denoiser(LabelledBlocks(K, 2), 1), 1, 2.0)
    free = outcomes(BlockSampler(), model, torch.full((2,), K)).distribution
    exact = ExactClassifier(free)
    guided = BlockClassifierBased(model, exact, 2)
    found = outcomes(BlockSampler(), guided, torch.full((2,), K)).distribution
    total = sum(p * chance_of_wanted(x) for x, p in free.items())
    right = {x: p * chance_of_wanted(x) / total for x, p in free.items()}
    assert distance(found, right) < EXACT < distance(free, right)
    tilted = SMCSampler(reward=lambda ids: ids.double().sum(dim=-1), num_particles=3)
    start = torch.full((4, 2), K)
    assert (tilted.sample(guided, start, seeds=torch.arange(4)).tokens < K).all()


def test_what_a_block_classifier_does_not_do_raises() -> None:
    model = block_denoiser(LabelledBlocks(K, 3), 1)
    guided = BlockClassifierBased(model, lambda tokens: tokens.sum(dim=-1).double(), 3)
    with pytest.raises(ValueError, match=r"must be used by a sampler of blocks, .* use BlockSampl"):
        guided(Inputs(torch.full((1, 3), K)))
    for options, message in (
        ({"length": 0}, "BlockClassifierBased.length must be at least 1, got 0; raise it"),
        ({"length": 3, "batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"length": 3, "gamma": -1.0}, "BlockClassifierBased.gamma must be finite and"),
    ):
        with pytest.raises(ValueError, match=message):
            BlockClassifierBased(model, guided.classifier, **options)
