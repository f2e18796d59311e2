"""One network for several block sizes: each size is the one-size model with the same weights."""

import math

import numpy as np
import pytest
import torch

from seqdiff.denoiser import Denoiser
from seqdiff.likelihood import evaluate
from seqdiff.objectives import BlockNELBO, Objective, WeightedMLM
from seqdiff.process import Absorbing, Blockwise
from seqdiff.rng import CounterNoise
from seqdiff.samplers import (
    BlockClassifierBased,
    BlockClassifierFree,
    BlockSampler,
)
from seqdiff.schedules import Linear
from seqdiff.training.config import OptimConfig
from seqdiff.training.module import DiffusionModule
from seqdiff.types import Inputs
from tests.block_worlds import BlockLookup, block_denoiser, enumerated_block_bound
from tests.exact.test_block_bound import batch_of, by_losses
from tests.exact.test_block_sampler_networks import K as SYMBOLS
from tests.exact.test_block_sampler_networks import Recomputing, make
from tests.oracles import Joint, masked_model

K, L = 2, 6
SIZES = (1, 2, 4, 6)  # 4 leaves a shorter last block
NETWORK = BlockLookup(K, L, seed=4)
ROWS = Joint.random(K, L, seed=3).sequences
LENGTH, NET_SIZES = 8, (1, 2, 4, 8)


def mixed(network=NETWORK, sizes: tuple[int, ...] = SIZES) -> Denoiser:
    inner = Absorbing(network.num_logits, Linear())
    return Denoiser(network, Blockwise(inner, max(sizes), sizes)).eval()


@pytest.mark.parametrize("size", SIZES)
def test_the_bound_is_that_of_one_size(size: int) -> None:
    """By enumeration of masks and quadrature over times; other sizes have other bounds."""
    denoiser, one = mixed().in_blocks(size), block_denoiser(NETWORK, size)
    assert denoiser.block_size == size and denoiser.block_sizes == SIZES
    assert denoiser.backbone is NETWORK
    row = ROWS[37]
    found = enumerated_block_bound(denoiser, row)
    assert by_losses(denoiser, row) == by_losses(one, row)
    for other in {*SIZES} - {size}:
        assert abs(enumerated_block_bound(block_denoiser(NETWORK, other), row) - found) > 1e-2
    for name in ("nats", "standard_error", "nfe"):
        mine, wanted = (
            getattr(evaluate(model, [batch_of(ROWS)]), name) for model in (denoiser, one)
        )
        np.testing.assert_array_equal(mine, wanted)


def test_the_largest_is_the_default_and_a_row_is_masked_diffusion() -> None:
    denoiser, batch = mixed(), batch_of(ROWS)
    assert denoiser.block_size == L
    plain = evaluate(masked_model(NETWORK), [batch])
    np.testing.assert_array_equal(evaluate(denoiser, [batch]).nats, plain.nats)
    left_to_right = evaluate(denoiser.in_blocks(1), [batch])
    assert (left_to_right.nfe == 1).all()
    assert float(np.exp(-left_to_right.nats).sum()) == pytest.approx(1, abs=1e-10)
    assert denoiser.block_size == L, "the model itself is left as it is"


def trained_sizes(steps: range, seed: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    module = DiffusionModule(mixed(), WeightedMLM(), OptimConfig(), seed=seed, max_steps=10)
    found = []
    for step in steps:
        with monkeypatch.context() as patch:
            patch.setattr(DiffusionModule, "global_step", property(lambda self, s=step: s))
            found.append(module._trained().block_size)
    return found


def test_every_size_is_trained_equally_often_in_a_random_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """500 cycles. Each count of a size in a place is within 5.2 standard deviations of 125, which
    fails in less than 1e-5 of runs; sizes in a fixed order have counts of 0 and 500.
    """
    n, cycles = len(SIZES), 500
    found = trained_sizes(range(n * cycles), 7, monkeypatch)
    table = np.array(found).reshape(cycles, n)
    assert (np.sort(table, axis=1) == SIZES).all(), "each once in a cycle"
    counts = np.array([[(table[:, place] == size).sum() for place in range(n)] for size in SIZES])
    assert np.abs(counts - cycles / n).max() < 5.2 * math.sqrt(cycles * (1 / n) * (1 - 1 / n))
    assert found[40:60] == trained_sizes(range(40, 60), 7, monkeypatch), "by the step alone"
    assert found[:40] != trained_sizes(range(40), 8, monkeypatch), "another seed"


@pytest.mark.parametrize("objective", [WeightedMLM(), BlockNELBO()], ids=["exact-k", "times"])
def test_training_minimises_the_mean_of_the_bounds(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle of steps, each on 20,000 copies of a row with their own noise.

    Five standard errors are exceeded in 1e-6 of runs. The twins that train on the default size
    alone, or on all sizes but one, are more than ten off.
    """
    row, steps = ROWS[37], range(8, 8 + len(SIZES))
    rows = row.expand(20_000, -1)
    module = DiffusionModule(mixed(), objective, OptimConfig(), seed=5, max_steps=10)
    values = []
    for step in steps:
        with monkeypatch.context() as patch:
            patch.setattr(DiffusionModule, "global_step", property(lambda self, s=step: s))
            batch = batch_of(rows)
            batch.index = batch.index + step * len(rows)
            values.append(objective.terms(module._trained(), batch, CounterNoise(5)).sum(dim=-1))
    means = torch.stack([value.mean() for value in values])
    squares = torch.stack([value.var() for value in values]) / len(rows)
    found, error = float(means.mean()), float(squares.sum()) ** 0.5 / len(values)
    bounds = [enumerated_block_bound(block_denoiser(NETWORK, size), row) for size in SIZES]
    assert abs(found - np.mean(bounds)) < 5 * error
    for wrong in (bounds[-1], *(np.mean(np.delete(bounds, i)) for i in range(len(bounds)))):
        assert abs(found - wrong) > 10 * error


@pytest.mark.parametrize("net", ["transformer", "mamba"])
def test_samples_are_those_of_one_size(net: str) -> None:
    """The same tokens as without a cache, at every size, one after the other; one comes again."""
    network = make(net)
    denoiser, x_init = mixed(network, NET_SIZES), torch.full((3, LENGTH), SYMBOLS)
    x_init[:, 3] = torch.arange(3)
    seeds, sampler, drawn = torch.arange(3), BlockSampler(), {}
    for size in (*NET_SIZES, 2):
        found = sampler.sample(denoiser.in_blocks(size), x_init, seeds=seeds)
        one = sampler.sample(block_denoiser(network, size).eval(), x_init, seeds=seeds)
        assert torch.equal(found.tokens, one.tokens) and torch.equal(found.nfe, one.nfe)
        if size not in drawn:
            slow = block_denoiser(Recomputing(network), size).eval()
            assert torch.equal(sampler.sample(slow, x_init, seeds=seeds).tokens, found.tokens)
        assert torch.equal(drawn.setdefault(size, found.tokens), found.tokens)
    assert len({tuple(tokens.flatten().tolist()) for tokens in drawn.values()}) == len(NET_SIZES)


def test_guided_models_change_their_size_too() -> None:
    network = make("transformer")
    denoiser = mixed(network, NET_SIZES)
    x_init, seeds = torch.full((3, LENGTH), SYMBOLS), torch.arange(3)

    def wanted(tokens: torch.Tensor) -> torch.Tensor:
        return -(tokens == 0).double().sum(dim=-1)

    sampler = BlockSampler()
    for guide in (
        lambda model: BlockClassifierFree(model, 1, 2.0),
        lambda model: BlockClassifierBased(model, wanted, LENGTH, 1.5),
    ):
        later = guide(denoiser).in_blocks(4)
        before = guide(denoiser.in_blocks(4))
        tokens = [
            sampler.sample(model.eval(), x_init, seeds=seeds).tokens for model in (later, before)
        ]
        assert torch.equal(*tokens)


def test_labels_stay_with_another_size() -> None:
    network = make("transformer")
    denoiser = mixed(network, NET_SIZES).given_label(2)
    tokens = torch.full((2, 8), SYMBOLS)
    found = denoiser.in_blocks(2)(Inputs(tokens))
    assert torch.equal(found, mixed(network, NET_SIZES).in_blocks(2).given_label(2)(Inputs(tokens)))


def test_what_does_not_fit_raises() -> None:
    with pytest.raises(
        ValueError, match=r"^sample.block_size must be 1, 2, 4 or 6, which .* got 3; choose one"
    ):
        mixed().in_blocks(3, "sample")
    with pytest.raises(ValueError, match=r"block_size must be 2, which the network .* got 1"):
        block_denoiser(NETWORK, 2).in_blocks(1)
    with pytest.raises(ValueError, match=r"got True"):
        mixed().in_blocks(True)
    with pytest.raises(ValueError, match=r"must be left out for the process absorbing .* got 2; t"):
        masked_model(NETWORK).in_blocks(2)
    assert masked_model(NETWORK).block_sizes == ()
    assert block_denoiser(NETWORK, 2).in_blocks(2).block_sizes == (2,)
    process = Absorbing(K)
    for sizes in ((2, 2), (0, 2), (2, True)):
        with pytest.raises(ValueError, match=r"Blockwise.sizes must hold different integers of at"):
            Blockwise(process, 2, sizes)
    with pytest.raises(ValueError, match=r"block_size must be one of sizes, 1 or 4, got 2; choose"):
        Blockwise(process, 2, (1, 4))
