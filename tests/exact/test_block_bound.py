"""The bound of block diffusion by enumeration: tightness, chain rule, masked diffusion."""

import numpy as np
import pytest
import torch

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import BlockBound, ExactK, FixedOrder, StratifiedK, evaluate
from seqdiff.likelihood.estimator import PassNoise
from seqdiff.losses import masked_terms
from seqdiff.objectives import BlockNELBO, ContinuousNELBO, WeightedMLM
from seqdiff.objectives.time_sampling import Stratified
from seqdiff.process import Absorbing, Blockwise, Uniform
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Linear, NoiseSchedule
from seqdiff.types import Batch
from tests.block_worlds import (
    BlockLookup,
    BlockOracle,
    BlockWorld,
    FactorisedOracle,
    NoisyPrefixOracle,
    block_denoiser,
    enumerated_block_bound,
)
from tests.oracles import (
    COMPLETE_SCHEDULES,
    Joint,
    OracleBackbone,
    all_masks,
    copies,
    mask_distribution,
    masked_model,
    unit_quadrature,
)

K, L = 2, 6
JOINT = Joint.random(K, L, seed=3)
SIZES = (1, 2, 3, 4, 6)  # 4 leaves a shorter last block
sizes = pytest.mark.parametrize("size", SIZES)


def batch_of(rows: torch.Tensor, loss_mask: torch.Tensor | None = None) -> Batch:
    everywhere = torch.ones_like(rows, dtype=torch.bool)
    return Batch(rows, everywhere if loss_mask is None else loss_mask, torch.arange(len(rows)))


def by_losses(denoiser: Denoiser, x0: torch.Tensor) -> float:
    """The mean of ``masked_terms`` over times and masks of the row; its blocks share the time."""
    process = denoiser.process
    assert isinstance(process, Blockwise)
    masks, schedule = all_masks(len(x0)), process.process.schedule
    nodes, weights = unit_quadrature()
    hidden = masks.repeat(len(nodes), 1)
    batch = copies(x0, len(hidden))
    weight = schedule.nelbo_weight(nodes).repeat_interleave(len(masks))
    terms = masked_terms(denoiser, batch, batch.tokens.masked_fill(hidden, K), None, weight)
    chances = torch.stack([mask_distribution(masks, float(schedule.alpha(t))) for t in nodes])
    return float(weights @ (chances * terms.sum(dim=-1).view_as(chances)).sum(dim=-1))


class NoisyPrefix(Denoiser):
    """Broken: the network gets no clean rows, so it reads corrupted earlier blocks."""

    def _outputs(self, inputs, where, x0=None):
        return super()._outputs(inputs, where)


@sizes
@pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=str)
def test_the_bound_is_the_likelihood_on_an_oracle(size: int, schedule: NoiseSchedule) -> None:
    denoiser = block_denoiser(BlockOracle(JOINT), size, schedule)
    for row in (5, 38):
        exact = -float(JOINT.probs[row].log())
        assert by_losses(denoiser, JOINT.sequences[row]) == pytest.approx(exact, abs=1e-6)


@sizes
def test_the_masked_fractions_alone_matter(size: int) -> None:
    row = JOINT.sequences[9]
    found = enumerated_block_bound(block_denoiser(BlockOracle(JOINT), size), row)
    assert found == pytest.approx(-float(JOINT.probs[9].log()), abs=1e-10)
    broken = enumerated_block_bound(block_denoiser(NoisyPrefixOracle(JOINT), size), row)
    assert broken == pytest.approx(found, abs=1e-10)  # earlier blocks are clean in this enumeration


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_noisy_prefix_is_seen(size: int) -> None:
    right = block_denoiser(BlockOracle(JOINT), size)
    for broken in (
        block_denoiser(NoisyPrefixOracle(JOINT), size),
        NoisyPrefix(right.backbone, right.process),
    ):
        assert abs(by_losses(broken, JOINT.sequences[9]) + float(JOINT.probs[9].log())) > 1e-3


def expected(joint: Joint, network: BlockWorld, size: int) -> float:
    denoiser = block_denoiser(network, size)
    bounds = [enumerated_block_bound(denoiser, row) for row in joint.sequences]
    return float(joint.probs @ torch.tensor(bounds, dtype=torch.float64))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_finer_cut_is_never_looser_if_tokens_of_a_block_are_predicted_apart(seed: int) -> None:
    """Refining the blocks never loosens the bound if the tokens of a block are predicted
    separately.

    A denoiser with the exact conditionals given the clean prefix that factorises over the tokens of
    a block has, on average over the data, the bound ``sum_i H(x_i | earlier blocks)``. A refinement
    of the blocks gives each token a prefix that is at least as long, and conditioning never adds
    entropy. This holds neither for a single sequence nor for divisions that do not refine each
    other.
    """
    joint = Joint.random(K, L, seed)
    network = FactorisedOracle(joint)
    bounds = {size: expected(joint, network, size) for size in (1, 2, 3, 6)}
    entropy = -float(joint.probs @ joint.probs.log())
    assert bounds[1] == pytest.approx(entropy, abs=1e-10)
    for fine, coarse in ((1, 2), (1, 3), (2, 6), (3, 6)):
        assert bounds[fine] < bounds[coarse] - 1e-6


def chain_rule(network: BlockWorld, rows: torch.Tensor) -> torch.Tensor:
    """-log p from left to right, one token at a time, each predicted as a mask."""
    nats = torch.zeros(len(rows), dtype=torch.float64)
    for place in range(rows.shape[1]):
        shown = rows.clone()
        shown[:, place:] = K
        distribution = network.score(shown, place).log_softmax(dim=-1)
        nats -= distribution[torch.arange(len(rows)), place, rows[:, place]]
    return nats


def test_one_token_a_block_is_the_chain_rule() -> None:
    network, rows = BlockLookup(K, L, seed=1), JOINT.sequences
    exact = chain_rule(network, rows)
    assert float((-exact).exp().sum()) == pytest.approx(1, abs=1e-12)
    denoiser = block_denoiser(network, 1)
    terms = WeightedMLM().terms(denoiser, batch_of(rows), CounterNoise(7))
    torch.testing.assert_close(terms.sum(dim=-1), exact, rtol=0, atol=1e-12)
    result = evaluate(denoiser, [batch_of(rows)])
    np.testing.assert_allclose(result.nats, exact, rtol=0, atol=1e-12)
    assert (result.nfe == 1).all() and (result.standard_error == 0).all()


def test_one_block_a_row_is_masked_diffusion() -> None:
    network, rows = BlockLookup(K, L, seed=2), JOINT.sequences[::5]
    loss_mask = torch.ones_like(rows, dtype=torch.bool)
    loss_mask[::2, 2] = False
    batch = batch_of(rows, loss_mask)
    plain, blocks = masked_model(network), block_denoiser(network, L)
    for estimator in (StratifiedK(8), ExactK(6)):
        masked = evaluate(plain, [batch], estimator=estimator)
        block = evaluate(blocks, [batch], estimator=estimator)
        for name in ("nats", "standard_error", "degrees", "nfe"):
            np.testing.assert_array_equal(getattr(masked, name), getattr(block, name))
    noise = CounterNoise(3)
    torch.testing.assert_close(
        WeightedMLM().terms(blocks, batch, noise),
        WeightedMLM().terms(plain, batch, noise),
    )


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("estimator", [StratifiedK(8), ExactK(8)], ids=["stratified", "exact-k"])
def test_the_estimator_means_the_bound(size: int, estimator: StratifiedK | ExactK) -> None:
    """4,000 rows; five standard errors are exceeded in 1e-6 of runs, other blocks are ten off."""
    network, row = BlockLookup(K, L, seed=4), JOINT.sequences[37]
    rows, denoiser = row.expand(4_000, -1), block_denoiser(network, size)
    result = evaluate(denoiser, [batch_of(rows)], estimator=estimator)
    exact = enumerated_block_bound(denoiser, row)
    spread = float(result.nats.std()) / len(rows) ** 0.5
    assert abs(float(result.nats.mean()) - exact) < 5 * spread
    inside = np.mean((result.nats - exact) ** 2) / np.mean(result.standard_error**2)
    assert 0.85 < inside < 1.15  # the reported standard error is right
    wrong = enumerated_block_bound(block_denoiser(network, size + 1), row)
    assert abs(float(result.nats.mean()) - wrong) > 10 * spread


def test_blocks_of_a_row_have_noise_of_their_own() -> None:
    """With shared noise, the two halves of every row would have the same masks."""
    rows = torch.zeros((500, L), dtype=torch.int64)
    estimator = BlockBound(3)
    draw, noise = torch.zeros(len(rows), dtype=torch.int64), PassNoise(CounterNoise(0))
    process = Blockwise(Absorbing(K, Linear()), 3)
    x_t = estimator.query(batch_of(rows), draw, noise=noise, process=process).x_t
    first, second = x_t[:, :3], x_t[:, 3:]
    alike = float((first == second).all(dim=-1).double().mean())
    assert 0.05 < alike < 0.8, "with k in 1..2 at this evaluation, a third are alike by chance"
    assert torch.equal((first == K).sum(dim=-1) > 0, torch.ones(len(rows), dtype=torch.bool))


def test_positions_that_do_not_count_are_given() -> None:
    """A block without counted positions adds nothing; the others equal those of the row."""
    network, row = BlockOracle(JOINT), JOINT.sequences[13]
    loss_mask = torch.tensor([[False, False, True, True, False, True]])
    rows, denoiser = row.expand(4000, -1), block_denoiser(network, 2)
    batch = batch_of(rows, loss_mask.expand_as(rows))
    result = evaluate(denoiser, [batch])
    sequences, probs = JOINT.sequences, JOINT.probs
    agree = [(sequences[:, : i + 1] == row[: i + 1]).all(dim=-1) for i in range(L)]
    block = probs[agree[3]].sum() / probs[agree[1]].sum()
    last = probs[agree[5]].sum() / probs[agree[4]].sum()
    exact = -float(block.log() + last.log())
    spread = float(result.nats.std()) / len(rows) ** 0.5
    assert abs(float(result.nats.mean()) - exact) < 5 * spread + 1e-12
    assert (result.num_tokens == 3).all()
    terms = BlockNELBO().terms(denoiser, batch, CounterNoise(1))
    assert (terms[~batch.loss_mask] == 0).all() and float(terms[:, 2:4].sum()) > 0


def test_low_discrepancy_times_spread_over_the_blocks_of_a_row() -> None:
    size, rows = 2, JOINT.sequences[:4]
    objective = BlockNELBO(0.25, 0.75, Stratified(3))
    place, inverse_density = objective._places(batch_of(rows), size, CounterNoise(5))
    assert (inverse_density == 1).all()
    assert ((place * 3).long().sort(dim=-1).values == torch.arange(3)).all()


@pytest.mark.parametrize("size", [0, -1, True])
def test_a_block_holds_a_token(size) -> None:
    with pytest.raises(ValueError, match=rf"Blockwise.block_size must be an integer .* got {size}"):
        Blockwise(Absorbing(K, Linear()), size)
    with pytest.raises(ValueError, match=rf"BlockBound.block_size must be an integer .* {size}"):
        BlockBound(size)


def test_what_does_not_fit_raises() -> None:
    network = BlockOracle(JOINT)
    with pytest.raises(ValueError, match=r"BlockNELBO.beta and omega must satisfy .* got 0.5"):
        BlockNELBO(0.5, 0.5)
    with pytest.raises(ValueError, match=r"Denoiser.backbone must score blocks .* OracleBackbone"):
        block_denoiser(OracleBackbone(JOINT), 2)
    # bypasses the type checker that watches constructors in tests
    uniform = object.__new__(Blockwise)
    object.__setattr__(uniform, "process", Uniform(K))
    object.__setattr__(uniform, "block_size", 2)
    with pytest.raises(ValueError, match=r"Blockwise.process must be absorbing, got uniform"):
        uniform.__post_init__()
    batch, blocks = batch_of(JOINT.sequences[:2]), block_denoiser(network, 2)
    for objective, model, name in (
        (BlockNELBO(), masked_model(network), "absorbing"),
        (ContinuousNELBO(), blocks, "blockwise"),
    ):
        expected = rf"must fit the process {name} .* got {type(objective).__name__}; choose"
        with pytest.raises(ValueError, match=expected):
            objective.check(model)
    with pytest.raises(ValueError, match=r"must be bernoulli-time or exact-k or stratified-k for"):
        evaluate(blocks, [batch], estimator=FixedOrder())
    with pytest.raises(ValueError, match=r"estimator must have the model's blocks of 2 .* got 3"):
        evaluate(blocks, [batch], estimator=BlockBound(3))
    with pytest.raises(ValueError, match=r"for the process absorbing .* got block-bound"):
        evaluate(masked_model(network), [batch], estimator=BlockBound(2))
