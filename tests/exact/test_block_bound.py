"""The bound of block diffusion by enumeration: tight, the chain rule, masked diffusion."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from seqdiff.block_denoiser import BlockDenoiser
from seqdiff.likelihood import BlockBound, ExactK, FixedOrder, StratifiedK, evaluate
from seqdiff.likelihood.estimator import PassNoise, Rows
from seqdiff.losses import block_nelbo
from seqdiff.parameterization import Denoiser
from seqdiff.process import BlockDiffusion
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Linear, NoiseSchedule
from seqdiff.time_sampling import Stratified
from seqdiff.training.block_objectives import BlockNELBO, BlockWeightedMLM
from seqdiff.training.objectives import WeightedMLM
from seqdiff.types import Batch, Inputs
from tests.block_worlds import (
    BlockLookup,
    BlockOracle,
    BlockWorld,
    FactorisedOracle,
    NoisyPrefixOracle,
    enumerated_block_bound,
)
from tests.oracles import (
    COMPLETE_SCHEDULES,
    Joint,
    OracleBackbone,
    all_masks,
    mask_law,
    unit_quadrature,
)

K, L = 2, 6
JOINT = Joint.random(K, L, seed=3)
SIZES = (1, 2, 3, 4, 6)  # 4 leaves a shorter last block
sizes = pytest.mark.parametrize("size", SIZES)


def batch_of(rows: torch.Tensor, loss_mask: torch.Tensor | None = None) -> Batch:
    everywhere = torch.ones_like(rows, dtype=torch.bool)
    return Batch(rows, everywhere if loss_mask is None else loss_mask, torch.arange(len(rows)))


def model(network: BlockWorld, size: int) -> BlockDenoiser:
    return BlockDenoiser(network, K, size)


def by_losses(network: BlockWorld, process: BlockDiffusion, x0: torch.Tensor) -> float:
    """The mean of ``block_nelbo`` over a time and every mask of each block, from one network."""
    denoiser, length = model(network, process.block_size), len(x0)
    masks = all_masks(length)
    clean = x0.expand(len(masks), -1)
    x_t = torch.where(masks, process.mask_id, clean)
    law = denoiser.backbone.block_logits(Inputs(x_t), clean, process.block_size).log_softmax(dim=-1)
    count = -(-length // process.block_size)
    total = 0.0
    for t, weight in zip(*unit_quadrature(), strict=True):
        times = t.expand(len(masks), count)
        terms = block_nelbo(law, clean, x_t, times, process).sum(dim=-1)
        total += float(weight * (mask_law(masks, float(process.schedule.alpha(t))) @ terms))
    return total


@sizes
@pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=str)
def test_the_bound_is_the_likelihood_on_an_oracle(size: int, schedule: NoiseSchedule) -> None:
    process = BlockDiffusion(K, schedule, size)
    for row in (5, 38):
        exact = -float(JOINT.probs[row].log())
        assert by_losses(BlockOracle(JOINT), process, JOINT.sequences[row]) == pytest.approx(
            exact, abs=1e-6
        )


@sizes
def test_the_shares_alone_matter(size: int) -> None:
    process = BlockDiffusion(K, Linear(), size)
    found = enumerated_block_bound(BlockOracle(JOINT), process, JOINT.sequences[9])
    assert found == pytest.approx(-float(JOINT.probs[9].log()), abs=1e-10)
    broken = enumerated_block_bound(NoisyPrefixOracle(JOINT), process, JOINT.sequences[9])
    assert broken == pytest.approx(found, abs=1e-10)  # blocks before are clean in this enumeration


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_noisy_prefix_is_seen(size: int) -> None:
    process = BlockDiffusion(K, Linear(), size)
    broken = by_losses(NoisyPrefixOracle(JOINT), process, JOINT.sequences[9])
    assert abs(broken + float(JOINT.probs[9].log())) > 1e-3


def expected(joint: Joint, network: BlockWorld, size: int) -> float:
    process = BlockDiffusion(K, Linear(), size)
    bounds = [enumerated_block_bound(network, process, row) for row in joint.sequences]
    return float(joint.probs @ torch.tensor(bounds, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(3))
def test_a_finer_cut_is_never_looser_if_tokens_of_a_block_are_predicted_apart(seed: int) -> None:
    """The claim that holds.

    A denoiser with the exact conditionals given the clean prefix that factorises over the tokens of
    a block has, on average over the data, the bound ``sum_i H(x_i | earlier blocks)``. A cut that
    refines another gives each token at least the other's prefix, and conditioning never adds
    entropy. It holds neither for a single sequence nor for cuts that do not refine each other.
    """
    joint = Joint.random(K, L, seed)
    network = FactorisedOracle(joint)
    bounds = {size: expected(joint, network, size) for size in (1, 2, 3, 6)}
    entropy = -float(joint.probs @ joint.probs.log())
    assert bounds[1] == pytest.approx(entropy, abs=1e-10)
    for fine, coarse in ((1, 2), (1, 3), (2, 6), (3, 6)):
        assert bounds[fine] < bounds[coarse] - 1e-6


def chain_rule(network: BlockWorld, rows: torch.Tensor) -> torch.Tensor:
    """-log p from left to right, one token after the other, each seen as a mask."""
    nats = torch.zeros(len(rows), dtype=torch.float64)
    for place in range(rows.shape[1]):
        shown = rows.clone()
        shown[:, place:] = K
        law = network.score(shown, place).log_softmax(dim=-1)
        nats -= law[torch.arange(len(rows)), place, rows[:, place]]
    return nats


def test_one_token_a_block_is_the_chain_rule() -> None:
    network, rows = BlockLookup(K, L, seed=1), JOINT.sequences
    exact = chain_rule(network, rows)
    assert float((-exact).exp().sum()) == pytest.approx(1, abs=1e-12)
    denoiser, process = model(network, 1), BlockDiffusion(K, Linear(), 1)
    terms = BlockWeightedMLM(1).terms(denoiser, process, batch_of(rows), CounterNoise(7))
    torch.testing.assert_close(terms.sum(dim=-1), exact, rtol=0, atol=1e-12)
    result = evaluate(denoiser, [batch_of(rows)], process=process)
    np.testing.assert_allclose(result.nats, exact, rtol=0, atol=1e-12)
    assert (result.nfe == 1).all() and (result.standard_error == 0).all()


def test_one_block_a_row_is_masked_diffusion() -> None:
    network, rows = BlockLookup(K, L, seed=2), JOINT.sequences[::5]
    loss_mask = torch.ones_like(rows, dtype=torch.bool)
    loss_mask[::2, 2] = False
    batch, process = batch_of(rows, loss_mask), BlockDiffusion(K, Linear(), L)
    plain, blocks = Denoiser(network, K), model(network, L)
    for estimator in (StratifiedK(8), ExactK(6)):
        masked = evaluate(plain, [batch], process=process, estimator=estimator)
        block = evaluate(blocks, [batch], process=process, estimator=estimator)
        for name in ("nats", "standard_error", "degrees", "nfe"):
            np.testing.assert_array_equal(getattr(masked, name), getattr(block, name))
    noise = CounterNoise(3)
    torch.testing.assert_close(
        BlockWeightedMLM(L).terms(blocks, process, batch, noise),
        WeightedMLM().terms(plain, process, batch, noise),
    )


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("estimator", [StratifiedK(8), ExactK(8)], ids=["stratified", "exact-k"])
def test_the_estimator_means_the_bound(size: int, estimator: StratifiedK | ExactK) -> None:
    """4,000 rows; five standard errors are exceeded in 1e-6 of runs, another cut is ten off."""
    network, row = BlockLookup(K, L, seed=4), JOINT.sequences[37]
    process, rows = BlockDiffusion(K, Linear(), size), row.expand(4_000, -1)
    result = evaluate(model(network, size), [batch_of(rows)], process=process, estimator=estimator)
    exact = enumerated_block_bound(network, process, row)
    spread = float(result.nats.std()) / len(rows) ** 0.5
    assert abs(float(result.nats.mean()) - exact) < 5 * spread
    inside = np.mean((result.nats - exact) ** 2) / np.mean(result.standard_error**2)
    assert 0.85 < inside < 1.15  # the standard error is honest
    wrong = enumerated_block_bound(network, replace(process, block_size=size + 1), row)
    assert abs(float(result.nats.mean()) - wrong) > 10 * spread


def test_blocks_of_a_row_have_noise_of_their_own() -> None:
    """With one noise for all, the two halves of every row would be masked alike."""
    rows = torch.zeros((500, L), dtype=torch.int64)
    estimator = BlockBound(3)
    asked = Rows(rows, torch.ones_like(rows, dtype=torch.bool), torch.arange(len(rows)))
    draw, noise = torch.zeros(len(rows), dtype=torch.int64), PassNoise(CounterNoise(0))
    process = BlockDiffusion(K, Linear(), 3)
    x_t = estimator.query(asked, draw, noise=noise, process=process).x_t
    first, second = x_t[:, :3], x_t[:, 3:]
    alike = float((first == second).all(dim=-1).double().mean())
    assert 0.05 < alike < 0.8, "with k in 1..2 at this evaluation, a third are alike by chance"
    assert torch.equal((first == K).sum(dim=-1) > 0, torch.ones(len(rows), dtype=torch.bool))


def test_positions_that_do_not_count_are_given() -> None:
    """A block without any adds nothing, and the others are those of the row where they do."""
    network, row = BlockOracle(JOINT), JOINT.sequences[13]
    loss_mask = torch.tensor([[False, False, True, True, False, True]])
    process = BlockDiffusion(K, Linear(), 2)
    rows = row.expand(4000, -1)
    batch = batch_of(rows, loss_mask.expand_as(rows))
    result = evaluate(model(network, 2), [batch], process=process)
    sequences, probs = JOINT.sequences, JOINT.probs
    agree = [(sequences[:, : i + 1] == row[: i + 1]).all(dim=-1) for i in range(L)]
    block = probs[agree[3]].sum() / probs[agree[1]].sum()
    last = probs[agree[5]].sum() / probs[agree[4]].sum()
    exact = -float(block.log() + last.log())
    spread = float(result.nats.std()) / len(rows) ** 0.5
    assert abs(float(result.nats.mean()) - exact) < 5 * spread + 1e-12
    assert (result.num_tokens == 3).all()
    terms = BlockNELBO(2).terms(model(network, 2), process, batch, CounterNoise(1))
    assert (terms[~batch.loss_mask] == 0).all() and float(terms[:, 2:4].sum()) > 0


def test_low_discrepancy_times_spread_over_the_blocks_of_a_row() -> None:
    size, rows = 2, JOINT.sequences[:4]
    objective = BlockNELBO(size, 0.25, 0.75, Stratified(3))
    place, inverse_density = objective._places(batch_of(rows), CounterNoise(5))
    assert (inverse_density == 1).all()
    assert ((place * 3).long().sort(dim=-1).values == torch.arange(3)).all()


def test_what_does_not_fit_is_refused() -> None:
    network, process = BlockOracle(JOINT), BlockDiffusion(K, Linear(), 2)
    with pytest.raises(ValueError, match=r"BlockDiffusion.block_size must be an integer"):
        BlockDiffusion(K, Linear(), 0)
    with pytest.raises(ValueError, match=r"BlockNELBO.beta and omega must satisfy .* got 0.5"):
        BlockNELBO(2, 0.5, 0.5)
    with pytest.raises(ValueError, match=r"BlockDenoiser.backbone must score blocks"):
        BlockDenoiser(OracleBackbone(JOINT), K, 2)
    batch = batch_of(JOINT.sequences[:2])
    with pytest.raises(ValueError, match=r"BlockNELBO.denoiser must be of blocks of 2, got"):
        BlockNELBO(2).terms(Denoiser(network, K), process, batch, CounterNoise(0))
    with pytest.raises(ValueError, match=r"BlockNELBO.process must be of blocks of 3, got"):
        BlockNELBO(3).terms(model(network, 3), process, batch, CounterNoise(0))
    with pytest.raises(ValueError, match=r"estimator must be bernoulli-time, exact-k, stratified"):
        evaluate(model(network, 2), [batch], process=process, estimator=FixedOrder())
    with pytest.raises(ValueError, match=r"must not be block-bound for a model of masked"):
        evaluate(Denoiser(network, K), [batch], process=process, estimator=BlockBound(2))
