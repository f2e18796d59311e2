"""The block diffusion sampler, run for every outcome, against independent enumeration."""

import itertools
from collections import defaultdict
from collections.abc import Callable

import pytest
import torch

from seqdiff.denoiser.discrete import Denoiser, Prefix
from seqdiff.samplers import (
    AncestralSampler,
    BlockSampler,
    ConfidenceSampler,
    FirstHittingSampler,
    Sampler,
)
from seqdiff.samplers.block import Growth
from tests import distributions
from tests.block_distributions import by_blocks
from tests.block_worlds import BlockLookup, BlockOracle, block_denoiser
from tests.enumeration import Distribution, Tokens, distance, joint_distribution, outcomes
from tests.oracles import Joint

K, L, EXACT = 2, 4, 1e-10
INNER = [FirstHittingSampler(), AncestralSampler(3), ConfidenceSampler()]
each_inner = pytest.mark.parametrize("inner", INNER, ids=lambda s: type(s).__name__)
each_size = pytest.mark.parametrize("size", [1, 2, 3, 4])


def lookup(size: int, seed: int = 3) -> Denoiser:
    return block_denoiser(BlockLookup(K, L, seed=seed), size)


def blank(length: int = L) -> torch.Tensor:
    return torch.full((length,), K)


@each_size
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_first_hitting_draws_a_consistent_model_exactly(length: int, size: int) -> None:
    """p itself for every block size; a block is evaluated once more when it is appended."""
    joint = Joint.random(K, length, seed=7)
    denoiser = block_denoiser(BlockOracle(joint), size)
    found = outcomes(BlockSampler(), denoiser, blank(length))
    assert distance(found.distribution, joint_distribution(joint.probs, K, length)) < EXACT
    assert (found.nfe == length + (length - 1) // size).all()
    if min(size, length) > 1:
        parallel = BlockSampler(FirstHittingSampler(num_steps=1))
        wrong = outcomes(parallel, denoiser, blank(length)).distribution
        assert distance(wrong, joint_distribution(joint.probs, K, length)) > 1e-3


@each_size
@each_inner
def test_each_block_has_the_distribution_of_the_sampler_inside(size: int, inner: Sampler) -> None:
    denoiser = lookup(size)
    found = outcomes(BlockSampler(inner), denoiser, blank()).distribution
    assert distance(found, by_blocks(denoiser, inner, (K,) * L)) < EXACT
    if size < L:
        blind = by_blocks(denoiser, inner, (K,) * L, lambda behind: (K,) * len(behind))
        assert distance(found, blind) > 1e-3, "the twin whose blocks do not see those before"


@each_inner
def test_blocks_of_one_token_are_the_chain_rule(inner: Sampler) -> None:
    denoiser = lookup(1)
    table, right = distributions.table(denoiser, K, L), {}
    for x in itertools.product(range(K), repeat=L):
        chance = 1.0
        for i, token in enumerate(x):
            chance *= table[x[:i] + (K,) * (L - i)][i][token]
        right[x] = chance
    found = outcomes(BlockSampler(inner), denoiser, blank())
    assert distance(found.distribution, right) < EXACT


def forget(self: Growth, block: int) -> None:
    """Broken: blocks are not appended."""
    self.known = block


def take_in_noise(self: Growth, block: int) -> None:
    """Broken: blocks are appended as they were before they were filled."""
    given = self.canvas.x_t[self.rows, self.known * self.size : block * self.size]
    self.prefix.append(torch.full_like(given, K))
    self.known = block


def take_in_the_last_again(self: Growth, block: int) -> None:
    """Broken: off by one block."""
    start = max(0, block - 1) * self.size
    for _ in range(self.known, block):
        self.prefix.append(self.canvas.x_t[self.rows, start - self.size : start])
    self.known = block


@pytest.mark.parametrize("broken", [forget, take_in_noise])
def test_a_prefix_that_is_not_what_was_drawn_would_be_found(broken, monkeypatch) -> None:
    joint = Joint.random(K, L, seed=7)
    denoiser = block_denoiser(BlockOracle(joint), 2)
    monkeypatch.setattr(Growth, "catch_up", broken)
    wrong = outcomes(BlockSampler(), denoiser, blank()).distribution
    assert distance(wrong, joint_distribution(joint.probs, K, L)) > 1e-3


PROMPTS = [(1, K, K, K), (1, 0, K, K), (0, 1, 1, K), (K, 1, K, 0), (K, K, 1, 0), (0, K, 1, 1)]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("x_init", PROMPTS, ids=str)
def test_visible_tokens_condition_what_comes_after_them(x_init: Tokens, size: int) -> None:
    """Prompts of any length, gaps, and tokens to the right, which earlier blocks do not see."""
    denoiser = lookup(size)
    found = outcomes(BlockSampler(), denoiser, torch.tensor(x_init)).distribution
    assert distance(found, by_blocks(denoiser, FirstHittingSampler(), x_init)) < EXACT
    assert all(
        token == given for x in found for token, given in zip(x, x_init, strict=True) if given != K
    )


def test_a_prompt_off_by_one_block_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Growth, "catch_up", take_in_the_last_again)
    with pytest.raises(AssertionError):
        test_visible_tokens_condition_what_comes_after_them((0, 1, 1, K), 1)


def test_allowed_letters_restrict_each_distribution() -> None:
    denoiser, allowed = lookup(2), torch.ones(L, K, dtype=torch.bool)
    allowed[2, 0] = False
    found = outcomes(BlockSampler(), denoiser, blank(), allowed=allowed).distribution
    assert all(x[2] == 1 for x in found)
    free = by_blocks(denoiser, FirstHittingSampler(), (K,) * L)
    ours, theirs = (
        distributions.push(distribution, lambda x: {x[:2]: 1.0}) for distribution in (found, free)
    )
    assert distance(ours, theirs) < EXACT, "a block does not know what a later one is allowed"


# Stop rules


def shorten(distribution: Distribution, end: Callable[[Tokens], int]) -> Distribution:
    """Rows cut at their ends, with masks after them."""
    cut: defaultdict[Tokens, float] = defaultdict(float)
    for x, chance in distribution.items():
        cut[x[: end(x)] + (K,) * (len(x) - end(x))] += chance
    return dict(cut)


def first_one(x: Tokens, earliest: int = 2) -> int:
    """End of a row whose stop symbol is 1; the first token does not end it."""
    return next((i + 1 for i in range(earliest - 1, len(x)) if x[i] == 1), len(x))


@each_size
@each_inner
def test_a_row_ends_at_the_first_stop_symbol(size: int, inner: Sampler) -> None:
    """The tokens before it have the distribution of rows that are drawn to the end."""
    denoiser = lookup(size)
    found = outcomes(BlockSampler(inner, stop_id=1), denoiser, blank()).distribution
    whole = by_blocks(denoiser, inner, (K,) * L)
    assert distance(found, shorten(whole, first_one)) < EXACT
    assert distance(found, shorten(whole, lambda x: first_one(x, 1))) > 1e-3, "in the first place"
    at_the_end_of_its_block = lambda x: min(L, -(-first_one(x) // size) * size)  # noqa: E731
    if size > 1:
        assert distance(found, shorten(whole, at_the_end_of_its_block)) > 1e-3


@pytest.mark.parametrize(
    ("x_init", "earliest"), [((1, 1, K, K), 3), ((K, K, 0, K), 4), ((K, 1, 1, 1), 4)], ids=str
)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_stop_symbol_that_is_given_ends_no_row(x_init, earliest, size) -> None:
    """Nor does one before a visible token, which stays."""
    denoiser = lookup(size)
    sampler = BlockSampler(stop_id=1)
    found = outcomes(sampler, denoiser, torch.tensor(x_init)).distribution
    whole = by_blocks(denoiser, FirstHittingSampler(), x_init)
    assert distance(found, shorten(whole, lambda x: first_one(x, earliest))) < EXACT


@pytest.mark.parametrize(("size", "window"), [(1, 2), (1, 3), (2, 2), (3, 2), (3, 3)])
def test_a_row_ends_when_it_is_monotonous(size: int, window: int) -> None:
    """After the first block at whose end all of the last tokens are equal: entropy 0."""

    def end(x: Tokens) -> int:
        for stop in range(size, L, size):
            if stop >= window and len(set(x[stop - window : stop])) == 1:
                return stop
        return L

    denoiser = lookup(size)
    sampler = BlockSampler(min_entropy=0.1, entropy_window=window)
    found = outcomes(sampler, denoiser, blank()).distribution
    whole = by_blocks(denoiser, FirstHittingSampler(), (K,) * L)
    assert distance(found, shorten(whole, end)) < EXACT
    assert distance(found, whole) > 1e-3


def test_a_stop_rule_that_looks_at_masks_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: one token further to the right, where nothing is drawn yet."""
    real = BlockSampler.ends

    def shifted(self, tail, drawn, end, earliest):
        ahead = torch.cat((tail[:, 1:], torch.full_like(tail[:, :1], K)), dim=1)
        return real(self, ahead, drawn, end, earliest)

    monkeypatch.setattr(BlockSampler, "ends", shifted)
    with pytest.raises(AssertionError):
        test_a_row_ends_at_the_first_stop_symbol(2, FirstHittingSampler())
    with pytest.raises(AssertionError):
        test_a_row_ends_when_it_is_monotonous(1, 2)


def test_rows_of_others_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken: the remaining rows change places."""
    real = Prefix.take
    monkeypatch.setattr(Prefix, "take", lambda self, rows: real(self, rows.flip(0)))
    with pytest.raises(AssertionError):
        test_a_row_ends_at_the_first_stop_symbol(1, FirstHittingSampler())
