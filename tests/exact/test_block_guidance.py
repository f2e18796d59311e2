"""Block diffusion guided to a label, by enumeration."""

import itertools

import pytest
import torch

from seqdiff.samplers import BlockClassifierFree, BlockSampler, Conjoined, FirstHittingSampler
from seqdiff.types import Inputs
from tests.block_distributions import by_blocks
from tests.block_worlds import LabelledBlocks, block_denoiser
from tests.enumeration import distance, outcomes

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
