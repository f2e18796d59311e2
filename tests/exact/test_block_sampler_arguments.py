"""Invalid arguments of the block diffusion sampler, with one-line errors."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.parameterization import Subs
from seqdiff.samplers import (
    BlockSampler,
    FirstHittingSampler,
    GibbsSampler,
    LeftToRightSampler,
    SemiAutoregressiveSampler,
    SMCSampler,
    TauLeapingSampler,
)
from seqdiff.types import SampleOutput
from tests.block_worlds import BlockLookup, block_denoiser
from tests.oracles import masked_model

K, L = 2, 6
WORLD = BlockLookup(K, L, seed=5)


def draw(sampler: BlockSampler, size: int, x_init: Tensor, **options) -> SampleOutput:
    seeds = torch.arange(len(x_init))
    return sampler.sample(block_denoiser(WORLD, size), x_init, seeds=seeds, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"inner": BlockSampler()}, r"inner must be a sampler of masked .* got BlockSampler; "),
        ({"inner": LeftToRightSampler()}, r"by itself, got LeftToRightSampler; choose"),
        ({"inner": GibbsSampler()}, r"by itself, got GibbsSampler; choose"),
        ({"inner": TauLeapingSampler()}, r"by itself, got TauLeapingSampler; choose"),
        ({"inner": SemiAutoregressiveSampler(4, 2)}, r"got SemiAutoregressiveSampler; choose"),
        ({"inner": SMCSampler(reward=lambda x: x.sum(-1))}, r"got SMCSampler; choose"),
        ({"stop_id": True}, r"BlockSampler.stop_id must be an integer, got True; convert it"),
        ({"entropy_window": 0}, r"entropy_window must be at least 1, got 0; 256 is published"),
    ],
)
def test_options_that_do_not_fit(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        BlockSampler(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop_id": 2}, r"BlockSampler.stop_id must be in 0..1, got 2; the tokenizer's encode"),
        ({"min_entropy": 4.0}, r"min_entropy must be below 0.6931 nats, .* got 4.0; lower it"),
        (
            {"min_entropy": 1.0, "entropy_window": 1},
            r"below 0 nats, all that 1 tokens of 2 symbols",
        ),
        ({"window": 3}, r"BlockSampler.window must hold two blocks of 2 tokens, got 3; the length"),
    ],
)
def test_options_that_do_not_fit_the_model(options: dict, message: str) -> None:
    sampler = replace(BlockSampler(), **options)
    with pytest.raises(ValueError, match=message):
        draw(sampler, 2, torch.full((1, L), K))


def test_models_that_do_not_fit() -> None:
    x_init, generator = torch.full((1, L), K), torch.Generator()
    model, plain = block_denoiser(WORLD, 2), masked_model(WORLD)
    uncopied = Denoiser(WORLD, model.process, Subs(carry_over=False))
    for sampler, denoiser, message in (
        (
            BlockSampler(),
            plain,
            "must work with the process absorbing .*, got block; .* ancestral",
        ),
        (BlockSampler(), uncopied, "must work with the process blockwise"),
        (
            FirstHittingSampler(),
            model,
            "the process blockwise .*, got first_hitting; choose from block, .*smc",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            sampler.sample(denoiser, x_init, generator=generator)
    padding = torch.tensor([[True] + [False] * 5])
    with pytest.raises(ValueError, match=r"padding must come after .* at row 0, position 1; move"):
        draw(BlockSampler(), 2, x_init, padding=padding)


def test_windows_hold_samplers_of_masks_only() -> None:
    for inner in (BlockSampler(), LeftToRightSampler(), GibbsSampler()):
        expected = rf"inner must be a sampler of masked diffusion, got {type(inner).__name__}; choo"
        with pytest.raises(ValueError, match=expected):
            SemiAutoregressiveSampler(4, 2, inner)


def test_reach_is_the_window() -> None:
    assert BlockSampler().context_length(100) == 100
    assert BlockSampler(window=64).context_length(100) == 64
    assert BlockSampler(window=64).context_length(10) == 10
