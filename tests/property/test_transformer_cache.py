"""The transformer's cache gives the results of block_logits on the whole row."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import BlockCache, Transformer
from seqdiff.backbones.transformer import block_diffusion
from seqdiff.backbones.transformer import cache as transformer_cache
from seqdiff.backbones.transformer import network as transformer
from seqdiff.backbones.transformer.cache import TransformerCache
from seqdiff.backbones.transformer.layers import Rotary, rotary_frequencies
from seqdiff.types import NO_LABEL, Inputs
from tests.gaps import norm_gap
from tests.small_transformers import K, build, draw_tokens

EXACT = 1e-10  # float64
FLOAT32 = 1e-5
LONG = 80


def windowed(window: int) -> Callable:
    """The mask in which a query sees at most this many clean tokens before its block."""
    right = block_diffusion.block_diffusion_mask

    def mask(length: int, block_size: int, *rest: object) -> Tensor:
        block = torch.arange(length) // block_size
        far = block[:, None] - block[None] > window // block_size
        seen = right(length, block_size, *rest)
        seen[:, length:] &= ~far.repeat(2, 1)
        return seen

    return mask


def recomputed(
    model: Transformer,
    x_t: Tensor,
    x0: Tensor,
    block_size: int,
    window: int | None = None,
    label: Tensor | None = None,
    signal: Tensor | None = None,
) -> Tensor:
    """One masked pass over the whole row, with the same weights and a sufficient context."""
    options = {**vars(model.config), "max_length": max(model.max_length, x_t.shape[1])}
    twin = Transformer(**options).eval().to(model.embedding.weight.dtype)
    twin.load_state_dict(model.state_dict())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformer, "choose_pass", lambda _pair: block_diffusion.dense_pass)
        if window is not None:
            patch.setattr(block_diffusion, "block_diffusion_mask", windowed(window))
        return twin.block_logits(Inputs(x_t, label=label, signal=signal), x0, block_size)


def generated(cache: BlockCache, x_t: Tensor, x0: Tensor, block_size: int) -> Tensor:
    """Score and append block by block; a shorter last block is only scored."""
    found = []
    for noisy, clean in zip(x_t.split(block_size, 1), x0.split(block_size, 1), strict=True):
        assert cache.length == sum(part.shape[1] for part in found)
        found.append(cache.logits(noisy))
        if clean.shape[1] == block_size:
            cache.append(clean)
    return torch.cat(found, dim=1)


def gap(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).detach().abs().max())


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
@pytest.mark.parametrize("batch", [1, 3])
def test_block_by_block_it_gives_the_logits_of_the_whole_row(block_size: int, batch: int) -> None:
    model, length = build(), 30
    x_t, x0 = draw_tokens(batch, length), draw_tokens(batch, length, 2) % K
    found = generated(model.block_cache(batch, block_size, window=48), x_t, x0, block_size)
    assert gap(found, model.block_logits(Inputs(x_t), x0, block_size)) < EXACT


@pytest.mark.parametrize(("block_size", "window"), [(1, 3), (4, 0), (4, 8), (4, 28), (3, None)])
def test_past_the_context_a_block_sees_the_window_before_it(
    block_size: int, window: int | None
) -> None:
    """Rows 2.5 times as long as the context; the default window is the rest of the context."""
    model = build()
    x_t, x0 = draw_tokens(2, LONG), draw_tokens(2, LONG, 2) % K
    found = generated(model.block_cache(2, block_size, window=window), x_t, x0, block_size)
    seen = 27 if window is None else window
    assert gap(found, recomputed(model, x_t, x0, block_size, seen)) < EXACT
    assert gap(found, recomputed(model, x_t, x0, block_size, seen + block_size)) > 1e-3
    assert gap(found, recomputed(model, x_t, x0, block_size)) > 1e-3


def test_in_float32() -> None:
    model = build(max_length=64).float()
    x_t, x0 = draw_tokens(3, LONG), draw_tokens(3, LONG, 2) % K
    found = generated(model.block_cache(3, 4), x_t, x0, 4)
    assert gap(found, recomputed(model, x_t, x0, 4, 60)) < FLOAT32


def test_under_autocast() -> None:
    model = build(max_length=64).float()
    x_t, x0 = draw_tokens(2, 40), draw_tokens(2, 40, 2) % K
    with torch.autocast("cpu", torch.bfloat16):
        low = generated(model.block_cache(2, 4, window=8), x_t, x0, 4)
    assert low.dtype == torch.bfloat16
    wanted = recomputed(model, x_t, x0, 4, 8)
    assert norm_gap(low, wanted) < 0.05, "three times the error of rounding"
    assert norm_gap(wanted, recomputed(model, x_t, x0, 4, 12)) > 0.05, "the twin of a wider window"


@pytest.mark.parametrize("first", [4, 20, 28, 40, 64])
@pytest.mark.parametrize("window", [0, 8, 28])
def test_prefixes_that_are_appended_at_once(
    first: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of 16 tokens, at the start and after the window has moved."""
    monkeypatch.setattr(transformer_cache, "PIECE", 16)
    model = build()
    x_t, x0 = draw_tokens(2, LONG), draw_tokens(2, LONG, 2) % K
    wanted = recomputed(model, x_t, x0, 4, window)
    cache = model.block_cache(2, 4, window=window)
    cache.append(x0[:, :first])
    for start in range(first, LONG - 16, 16):
        assert gap(cache.logits(x_t[:, start : start + 4]), wanted[:, start : start + 4]) < EXACT
        cache.append(x0[:, start : start + 16])
    part = slice(cache.length, cache.length + 4)
    assert gap(cache.logits(x_t[:, part]), wanted[:, part]) < EXACT


@pytest.mark.parametrize("length", [6, 30, 31, 33])
def test_a_last_block_that_is_cut_short(length: int) -> None:
    """Before the window moves, at the end of the slots, and in the middle of them."""
    model, window = build(), 12
    for extra in (0, 4, 8):
        x_t, x0 = draw_tokens(2, length + extra), draw_tokens(2, length + extra, 2) % K
        found = generated(model.block_cache(2, 4, window=window), x_t, x0, 4)
        assert gap(found, recomputed(model, x_t, x0, 4, window)) < EXACT


@pytest.mark.parametrize("length", [8, 40])
def test_rows_that_leave_and_repeat(length: int) -> None:
    """Selected and remaining rows continue separately, with other tokens, labels and windows."""
    model = build(num_classes=2)
    x_t, x0 = draw_tokens(4, LONG), draw_tokens(4, LONG, 2) % K
    label = torch.tensor([1, 0, NO_LABEL, 1])
    cache = model.block_cache(4, 4, window=20, label=label)
    generated(cache, x_t[:, :length], x0[:, :length], 4)
    rows = torch.tensor([3, 1, 1])
    taken = cache.take(rows)
    other = x0.clone()
    other[:, length:] = draw_tokens(4, LONG - length, 3) % K
    for start in range(length, LONG, 4):
        part = slice(start, start + 4)
        for one, clean, which in ((cache, x0, torch.arange(4)), (taken, other, rows)):
            wanted = recomputed(model, x_t[which], clean[which], 4, 20, label[which])
            assert gap(one.logits(x_t[which, part]), wanted[:, part]) < EXACT
            one.append(clean[which, part])
    assert len(taken.take(torch.tensor([], dtype=torch.int64)).logits(x_t[:0, :4])) == 0


def test_labels_and_their_absence() -> None:
    model = build(num_classes=2)
    x_t, x0 = draw_tokens(3, 12), draw_tokens(3, 12, 2) % K
    for label in (None, torch.tensor([0, 1, NO_LABEL])):
        found = generated(model.block_cache(3, 4, label=label), x_t, x0, 4)
        assert gap(found, model.block_logits(Inputs(x_t, label=label), x0, 4)) < EXACT


def test_some_positions() -> None:
    model, x_t = build(num_classes=2), draw_tokens(2, 8)
    cache = model.block_cache(2, 4, label=torch.tensor([0, 1]))
    cache.append(x_t[:, :4] % K)
    where = torch.tensor([[True, False, False, True], [False, True, False, False]])
    found = cache.logits(x_t[:, 4:], where)
    assert gap(found, cache.logits(x_t[:, 4:])[where]) < EXACT
    assert cache.logits(x_t[:, 4:], where & False).shape == (0, K)


def test_scores_change_nothing() -> None:
    model, x_t = build(), draw_tokens(2, 80)
    cache = model.block_cache(2, 4, window=8)
    for start in range(0, 40, 4):
        before = cache.logits(x_t[:, start : start + 4])
        cache.logits(x_t[:, :4])
        cache.logits(x_t[:, 40:43])
        assert torch.equal(cache.logits(x_t[:, start : start + 4]), before)
        cache.append(x_t[:, start : start + 4] % K)


def test_memory_does_not_grow_with_length() -> None:
    model = build()
    cache = model.block_cache(1, 4, window=28)
    assert kept(cache) == 0
    for _ in range(40):
        cache.append(draw_tokens(1, 4) % K)
        assert kept(cache) <= 3 * 2 * 32 * 12
    assert cache.length == 160 and kept(cache) == 3 * 2 * 32 * 12
    assert kept(model.block_cache(1, 4, window=10**9)) == 0


def kept(cache: TransformerCache) -> int:
    """Numbers in the cache."""
    return sum(x.numel() for pair in cache._kept for x in pair)


def test_far_away_only_distances_count() -> None:
    """At position 1.2 * 10^6 the logits are those at 0; with rotations in float32 they
    are far off.
    """
    model = build().float()
    x_t, x0 = draw_tokens(1, 24), draw_tokens(1, 24, 2) % K
    wanted = recomputed(model, x_t, x0, 4, 8)

    def off(rotary: Callable[[Tensor], Rotary]) -> float:
        cache = model.block_cache(1, 4, window=8)
        cache._network = cache._network._replace(rotary=lambda places: rotary(places + 1_200_000))
        return gap(generated(cache, x_t, x0, 4), wanted)

    def low(places: Tensor) -> Rotary:
        angles = places[:, None] * rotary_frequencies(6)
        return angles.cos(), angles.sin()

    assert off(model._rotary) < FLOAT32
    assert off(low) > 1e-3


# Broken twins


def shifted(rotary: Callable[[Tensor], Rotary]) -> Callable[[Tensor], Rotary]:
    """Broken twin: positions restart with every window."""
    return lambda positions: rotary(positions % 12)


def test_broken_twins_are_far_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that restart, and a window without slots for the block beside it."""
    model = build()
    x_t, x0 = draw_tokens(2, 40), draw_tokens(2, 40, 2) % K
    wanted = recomputed(model, x_t, x0, 4, 8)

    def off(cache: TransformerCache) -> float:
        return gap(generated(cache, x_t, x0, 4), wanted)

    assert off(model.block_cache(2, 4, window=8)) < EXACT
    anew = model.block_cache(2, 4, window=8)
    anew._network = anew._network._replace(rotary=shifted(model._rotary))
    assert off(anew) > 1e-3
    fewer = model.block_cache(2, 4, window=8)
    fewer._slots = 8
    assert off(fewer) > 1e-3


# Invalid input


def test_bad_sizes() -> None:
    model, timed = build(), build(time_conditioned=True)
    with pytest.raises(
        ValueError, match=r"^Transformer\.block_cache must be called on a time-free"
    ):
        timed.block_cache(1, 4)
    for options, message in (
        ({"batch_size": 0}, "batch_size must be an integer of at least 1, got 0"),
        ({"block_size": 0}, "block_size must be an integer of at least 1, got 0"),
        ({"window": 6}, "window must be a multiple of block_size = 4, got 6; 4 is the next below"),
        ({"window": -4}, "window must be an integer of at least 0, got -4"),
        ({"label": torch.zeros(2, dtype=torch.int64)}, "label must be one class for each of batch"),
        ({"label": torch.zeros(1, dtype=torch.int64)}, "label must be None for a network without"),
    ):
        with pytest.raises(ValueError, match=rf"^Transformer\.{message}"):
            model.block_cache(**{"batch_size": 1, "block_size": 4, **options})


def test_bad_calls() -> None:
    cache = build().block_cache(2, 4)
    with pytest.raises(ValueError, match=r"^TransformerCache\.x_t must hold 1 to block_size = 4 t"):
        cache.logits(draw_tokens(2, 5))
    with pytest.raises(ValueError, match=r"^TransformerCache\.x_t must hold 1 .* got 0; score one"):
        cache.logits(draw_tokens(2, 0))
    with pytest.raises(ValueError, match=r"^TransformerCache\.x0 must be whole blocks of 4 tokens"):
        cache.append(draw_tokens(2, 6))
    with pytest.raises(ValueError, match=r"^TransformerCache\.tokens must have the 2 rows of the"):
        cache.append(draw_tokens(3, 4))
