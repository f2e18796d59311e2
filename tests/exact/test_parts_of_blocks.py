"""Confidence-parallel decoding of blocks: its distribution, and caches within a block."""

import itertools

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import BlockMamba, Transformer
from seqdiff.backbones.transformer.cache import TransformerCache, _Seen
from seqdiff.backbones.transformer.packing import Padded
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing, Blockwise
from seqdiff.samplers import (
    AncestralSampler,
    BlockClassifierFree,
    BlockSampler,
    ConfidenceSampler,
    FirstHittingSampler,
    ThresholdSampler,
)
from seqdiff.types import Inputs
from tests.block_worlds import BlockLookup, BlockOracle, block_denoiser
from tests.enumeration import Distribution, distance, joint_distribution, outcomes
from tests.oracles import Joint
from tests.small_transformers import K, build, draw_tokens

EXACT = 1e-10
SIZE = 4
SYMBOLS, L = 2, 4


def blank(length: int = L) -> Tensor:
    return torch.full((length,), SYMBOLS)


def tiny(n_layer: int) -> Denoiser:
    """A network of blocks of four tokens, whose conditionals are far from uniform."""
    torch.manual_seed(3)
    sizes = {"num_embeddings": SYMBOLS + 1, "num_logits": SYMBOLS, "cond_dim": 4}
    network = Transformer(8, n_layer, 2, dropout=0.0, **sizes).double().eval()
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.5 * torch.randn_like(weight))
    return block_denoiser(network, L)


def drawn(denoiser: Denoiser, inner, **options) -> Distribution:
    return outcomes(BlockSampler(inner, **options), denoiser, blank()).distribution


def test_a_threshold_of_one_draws_one_token_per_step() -> None:
    """The rows of ``confidence``; a lower threshold takes fewer steps and moves the rows."""
    denoiser = block_denoiser(BlockLookup(SYMBOLS, L, seed=3), 3)
    one = outcomes(BlockSampler(ConfidenceSampler()), denoiser, blank())
    same = outcomes(BlockSampler(ThresholdSampler(1.0)), denoiser, blank())
    assert distance(same.distribution, one.distribution) < EXACT
    lower = outcomes(BlockSampler(ThresholdSampler(0.6)), denoiser, blank())
    assert distance(lower.distribution, one.distribution) > 1e-2
    assert float(lower.probability @ lower.nfe.double()) < float(one.nfe.double().mean())


def test_the_distance_of_a_threshold_from_a_consistent_model() -> None:
    """At 1 it is 0 in spite of the order. The tokens of one step are drawn as if independent, so
    the distance is small where all of them are nearly certain, and larger for less certain ones.
    """
    joint = Joint.random(SYMBOLS, L, seed=7)

    right = joint_distribution(joint.probs, SYMBOLS, L)
    denoiser = block_denoiser(BlockOracle(joint), L)
    far = [distance(drawn(denoiser, ThresholdSampler(t)), right) for t in (1.0, 0.9, 0.5)]
    assert far[0] < EXACT
    assert EXACT < far[1] < 0.01 < 0.2 < far[2]


@pytest.mark.parametrize(
    "inner",
    [FirstHittingSampler(), ConfidenceSampler(), AncestralSampler(2)],
    ids=lambda inner: type(inner).__name__,
)
def test_keys_of_one_layer_are_exact(inner, monkeypatch: pytest.MonkeyPatch) -> None:
    """They depend on their own token alone, so only a token that has changed needs new ones."""
    for refresh in (2, 4):
        assert distance(drawn(tiny(1), inner, refresh=refresh), drawn(tiny(1), inner)) < EXACT
    right = _Seen.next

    def broken(self, rows, x_t, where, refresh):
        """Keep the keys of masks that have become tokens."""
        begun = self.count[rows, None] > 0
        return right(self, rows, x_t, where, refresh) & (where | ~begun)

    monkeypatch.setattr(_Seen, "next", broken)
    assert distance(drawn(tiny(1), inner, refresh=4), drawn(tiny(1), inner)) > 1e-4


def test_the_distance_that_reused_keys_add() -> None:
    """Measured on three layers: below a hundredth, and less with more evaluations anew."""
    deep = tiny(3)
    for inner in (FirstHittingSampler(), ConfidenceSampler()):
        exact = drawn(deep, inner)
        far = [distance(drawn(deep, inner, refresh=refresh), exact) for refresh in (1, 2, 4)]
        assert far[0] < EXACT < far[1] <= far[2] < 0.03


def recomputed(model: Transformer, x0: Tensor, steps: list, refresh: int) -> list[Tensor]:
    """The rule written plainly: a layer reads the stored inputs of tokens that are not active."""
    behind, condition = x0.shape[1], model.condition(Inputs(x0))
    length = behind + SIZE
    block = torch.arange(length) // SIZE
    layout = Padded(torch.arange(length), block <= block[:, None])
    stored = [torch.zeros(len(x0), length, 12).double() for _ in range(len(model.blocks) + 1)]
    last, found = None, []
    for count, (x_t, where) in enumerate(steps):
        active = torch.ones(len(x0), length, dtype=torch.bool)
        if count % refresh:
            active[:, behind:] = where | (x_t != last)
        row = torch.cat((x0, x_t), dim=1)
        h = model.embedding(row)
        for layer, stage in zip((*model.blocks, None), stored, strict=True):
            stage[active] = h[active]
            h = (
                stage
                if layer is None
                else layer(stage, condition, model._rotary(layout.positions), layout)
            )
        found.append(model.head(h[:, behind:], Inputs(x_t))[where])
        last = x_t
    return found


def steps_of(rows: int) -> list[tuple[Tensor, Tensor]]:
    """A block in which every row unmasks one token after the other, in an order of its own."""
    x_t, clean = torch.full((rows, SIZE), K), draw_tokens(rows, SIZE, 5) % K
    order = torch.rand(rows, SIZE, generator=torch.Generator().manual_seed(2)).argsort(dim=1)
    steps = []
    for step in range(SIZE):
        steps.append((x_t.clone(), x_t == K))
        place = order[:, step : step + 1]
        x_t.scatter_(1, place, clean.gather(1, place))
    return steps


@torch.no_grad()
@pytest.mark.parametrize("refresh", [1, 2, 9])
def test_parts_of_blocks_follow_the_rule(refresh: int) -> None:
    """Against stored inputs of layers: all rows at once, and rows that are evaluated by turns."""
    model, x0, steps = build(), draw_tokens(5, 8, 2) % K, steps_of(5)
    wanted = recomputed(model, x0, steps, refresh)

    def run(groups: list[list[int]]) -> float:
        cache, gap = model.block_cache(5, SIZE), 0.0
        cache.append(x0)
        for rows in map(torch.tensor, groups):
            for (x_t, where), right in zip(steps, wanted, strict=True):
                got = cache.logits_of(rows, x_t[rows], where[rows], refresh)
                here = torch.isin(where.nonzero()[:, 0], rows)
                gap = max(gap, float((got - right[here]).abs().max()))
        return gap

    assert run([[0, 1, 2, 3, 4]]) < EXACT
    assert run([[0, 2, 3, 4], [1]]) < EXACT, "most of the rows, and few of them"
    cache, every, some = model.block_cache(5, SIZE), torch.arange(5), torch.tensor([3, 1])
    cache.append(x0)
    for x_t, where in steps[:2]:
        cache.logits_of(every, x_t, where, refresh)
    taken = cache.take(some)
    cache.logits_of(every, *steps[3], refresh)  # which the copy must not see
    for (x_t, where), right in zip(steps[2:], wanted[2:], strict=True):
        found = taken.logits_of(torch.arange(2), x_t[some], where[some], refresh)
        here = where.nonzero()[:, 0]
        wanted_here = torch.cat([right[here == row] for row in some.tolist()])
        torch.testing.assert_close(found, wanted_here, atol=EXACT, rtol=0)
    if refresh > 1:
        exact = recomputed(model, x0, steps, 1)
        assert max(float((a - b).abs().max()) for a, b in zip(exact, wanted, strict=True)) > 1e-3


@torch.no_grad()
def test_some_rows_without_a_copy() -> None:
    """As ``take`` gives them: past the window, in short blocks, with labels, under autocast."""
    label = torch.tensor([0, 1, -1, 1, 0])
    model, x0 = build(num_classes=2), draw_tokens(5, 44, 2) % K
    cache = model.block_cache(5, SIZE, window=8, label=label)
    for start in range(0, 40, SIZE):
        for rows, size in itertools.product(([0, 2, 4], [3]), (SIZE, 3)):
            x_t = draw_tokens(5, size, start)[rows]
            where = x_t > 0
            wanted = cache.take(torch.tensor(rows)).logits(x_t, where)
            found = cache.logits_of(torch.tensor(rows), x_t, where)
            torch.testing.assert_close(found, wanted, atol=EXACT, rtol=0)
        cache.append(x0[:, start : start + SIZE])
    low, where = build().float().block_cache(5, SIZE), torch.ones(2, SIZE, dtype=torch.bool)
    low.append(x0[:, :SIZE])
    with torch.autocast("cpu", torch.bfloat16):
        assert low.logits_of(torch.tensor([1, 3]), x0[:2, :SIZE], where).isfinite().all()


@pytest.mark.parametrize("guided", [False, True])
def test_rows_do_not_depend_on_their_batch(guided: bool) -> None:
    """Rows finish their blocks after different numbers of steps; guidance has two caches."""
    sizes = {"num_classes": 2} if guided else {}
    denoiser = block_denoiser(build(**sizes), SIZE).eval()
    if guided:
        denoiser = BlockClassifierFree(denoiser, 1, 1.5)
    sampler, seeds = BlockSampler(ThresholdSampler(0.5), refresh=3), torch.arange(6)
    x_init = torch.full((6, 11), K)
    x_init[1, :6], x_init[3, 5] = 1, 2
    whole = sampler.sample(denoiser, x_init, seeds=seeds)
    assert len(set(whole.nfe.tolist())) > 1
    for row in range(6):
        one = slice(row, row + 1)
        alone = sampler.sample(denoiser, x_init[one], seeds=seeds[one])
        assert torch.equal(alone.tokens[0], whole.tokens[row]) and alone.nfe[0] == whole.nfe[row]


def test_evaluations_compute_what_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """One token at a time in a block of 4: all four, then two, and the clean block once."""
    ran: list[int] = []
    some, near = TransformerCache._some, TransformerCache._near

    def count_some(self, rows, tokens, active, scored):
        ran.append(int(active.sum()))
        return some(self, rows, tokens, active, scored)

    def count_near(self, tokens, *, scored):
        ran.append(tokens.numel())
        return near(self, tokens, scored=scored)

    monkeypatch.setattr(TransformerCache, "_some", count_some)
    monkeypatch.setattr(TransformerCache, "_near", count_near)
    denoiser, x_init = block_denoiser(build(), SIZE).eval(), torch.full((1, 2 * SIZE), K)
    BlockSampler(refresh=SIZE).sample(denoiser, x_init, seeds=torch.arange(1))
    assert ran == [4, 2, 2, 2, 4, 4, 2, 2, 2]


def test_networks_without_keys_raise() -> None:
    network = BlockMamba(8, 1, num_embeddings=K + 1, num_logits=K, backend="reference")
    denoiser = Denoiser(network, Blockwise(Absorbing(K), SIZE)).eval()
    x_init = torch.full((1, 8), K)
    with pytest.raises(ValueError, match=r"refresh must be 1 for .* got 2 for BlockMamba; leave"):
        BlockSampler(refresh=2).sample(denoiser, x_init, seeds=torch.arange(1))
    with pytest.raises(
        ValueError, match=r"^StateCache\.refresh must be 1, .* choose a Transformer"
    ):
        prefix = denoiser.start(1)
        where = torch.ones(1, SIZE, dtype=torch.bool)
        type(prefix)(denoiser, prefix.cache, refresh=2).log_probs(x_init[:, :SIZE], where)
    with pytest.raises(ValueError, match=r"^BlockSampler\.refresh must be at least 1, got 0; 1 is"):
        BlockSampler(refresh=0)
