"""Guarantees of the block diffusion sampler beside its distribution."""

import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from seqdiff.samplers import (
    BlockSampler,
    FirstHittingSampler,
    Recorder,
    Sampler,
    named_samplers,
)
from seqdiff.samplers.block import Growth, unigram_entropy
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.draws import SeededDraws
from seqdiff.samplers.grid import GridSampler
from seqdiff.types import SampleOutput
from tests.block_worlds import BlockLookup, ChainOfBlocks, RecomputingCache, block_denoiser
from tests.oracles import masked_model

K, L = 2, 6
WORLD = BlockLookup(K, L, seed=5)
INNER = [
    cls(num_steps=7) if issubclass(cls, GridSampler) else cls()
    for cls in named_samplers().values()
    if cls.__module__.startswith("seqdiff.")
    and cls.needs.met_by(masked_model(WORLD))
    and cls.fills_blocks
]
each_inner = pytest.mark.parametrize("inner", INNER, ids=lambda s: type(s).__name__)


def draw(sampler: Sampler, size: int, x_init: Tensor, **options) -> SampleOutput:
    if "seeds" not in options:
        options["seeds"] = torch.arange(len(x_init))
    return sampler.sample(block_denoiser(WORLD, size), x_init, **options)


def some_rows() -> Tensor:
    """A blank row, prompts of every kind, gaps, tokens to the right, and a complete row."""
    return torch.tensor(
        [
            [K] * 6,
            [1, K, K, K, K, K],
            [1, 0, 0, K, K, K],
            [0, 1, 1, 0, 0, K],
            [K, K, K, 1, 1, 0],
            [K, 1, K, 0, 1, K],
            [1, 1, 0, 0, 1, 0],
            [0, K, 1, 1, 1, K],
        ]
    )


@each_inner
@pytest.mark.parametrize("size", [6, 9])
def test_one_block_is_the_sampler_inside_bit_for_bit(inner: Sampler, size: int) -> None:
    x_init, plain = some_rows(), masked_model(WORLD)
    allowed = torch.ones(*x_init.shape, K, dtype=torch.bool)
    allowed[0, 2, 0] = allowed[1, 4, 1] = False
    seen: dict[str, list[Tensor]] = {"ours": [], "theirs": []}
    seeds = torch.arange(8) + 2**40
    ours = draw(
        BlockSampler(inner),
        size,
        x_init,
        seeds=seeds,
        allowed=allowed,
        callback=lambda _, x_t: seen["ours"].append(x_t.clone()),
    )
    theirs = inner.sample(
        plain,
        x_init,
        seeds=seeds,
        allowed=allowed,
        callback=lambda _, x_t: seen["theirs"].append(x_t.clone()),
    )
    assert torch.equal(ours.tokens, theirs.tokens) and torch.equal(ours.nfe, theirs.nfe)
    assert torch.equal(torch.stack(seen["ours"]), torch.stack(seen["theirs"]))
    assert ours.length is None


@each_inner
@pytest.mark.parametrize("size", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2)), 4])
def test_rows_do_not_depend_on_their_batch(inner: Sampler, size: int) -> None:
    """Equal to the bit and in cost: beside rows of other lengths and prompts, or alone."""
    x_init, lengths = some_rows(), torch.tensor([6, 5, 4, 6, 6, 6, 6, 2])
    padding = torch.arange(L) >= lengths[:, None]
    x_init[padding] = 1
    seeds, order = torch.arange(8) * 3, torch.tensor([4, 0, 7, 5, 2, 1, 6, 3])
    for sampler in (BlockSampler(inner), BlockSampler(inner, stop_id=1)):
        whole = draw(sampler, size, x_init, seeds=seeds, padding=padding)
        moved = draw(sampler, size, x_init[order], seeds=seeds[order], padding=padding[order])
        assert torch.equal(moved.tokens, whole.tokens[order])
        assert torch.equal(moved.nfe, whole.nfe[order])
        assert torch.equal(whole.tokens[padding], x_init[padding]), "padding holds what it held"
        visible = x_init < K
        assert torch.equal(whole.tokens[visible], x_init[visible])
        for row, length in enumerate(lengths.tolist()):
            one = slice(row, row + 1)
            alone = draw(sampler, size, x_init[one, :length], seeds=seeds[one])
            assert torch.equal(alone.tokens[0], whole.tokens[row, :length])
            assert alone.nfe[0] == whole.nfe[row]
            if whole.length is not None and alone.length is not None:
                assert alone.length[0] == whole.length[row]


def shared_end(self: Growth, block: int, fill: Callable[[Canvas], None]) -> None:
    """Broken: padding within a block goes through the network."""
    start, rows = block * self.size, self.rows
    end = min(start + self.size, self.canvas.x_t.shape[1])
    self.canvas.fill_block(rows, start, end, self.prefix, fill)


def test_blocks_cut_short_together_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Growth, "fill", shared_end)
    with pytest.raises(AssertionError):
        test_rows_do_not_depend_on_their_batch(FirstHittingSampler(), 4)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_evaluations_are_blocks_that_the_network_saw(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in the cache; a prompt is read at once, the last block of a row never."""
    asked, appended = Counter(), []
    logits, append = RecomputingCache.logits, RecomputingCache.append

    def count(self, x_t, where=None):
        asked["rows"] += len(x_t)
        assert (x_t == K).any(dim=-1).all(), "a row without masks was evaluated"
        return logits(self, x_t, where)

    def note(self, x0):
        assert (x0 < K).all() and x0.shape[1] % size == 0
        appended.append(tuple(x0.shape))
        append(self, x0)

    monkeypatch.setattr(RecomputingCache, "logits", count)
    monkeypatch.setattr(RecomputingCache, "append", note)
    found = draw(BlockSampler(), size, some_rows())
    taken_in = sum(rows * length // size for rows, length in appended)
    assert int(found.nfe.sum()) == asked["rows"] + taken_in
    last = [-(-max(i + 1 for i in range(L) if row[i] == K) // size) - 1 for row in some_rows()[:6]]
    masks = (some_rows()[:6] == K).sum(dim=-1)
    assert found.nfe[:6].tolist() == (masks + torch.tensor(last)).tolist()
    assert found.nfe[6] == 0, "a full row costs nothing"
    appended.clear()
    prompt = torch.tensor([[0, 1, 1, 0, K, K]] * 3)
    draw(BlockSampler(), size, prompt)
    assert appended[0] == (3, 4) and len(appended) == (2 if size == 1 else 1)


def test_a_row_that_ends_leaves_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    logits = RecomputingCache.logits

    def count(self, x_t, where=None):
        rows.append(len(x_t))
        return logits(self, x_t, where)

    monkeypatch.setattr(RecomputingCache, "logits", count)
    x_init = torch.full((40, L), K)
    found = draw(BlockSampler(stop_id=1), 1, x_init)
    assert found.length is not None
    alive = [int((found.length > place).sum()) for place in range(L)]
    assert rows == [count for count in alive if count]
    assert rows[0] == 40 and rows[-1] < 20
    assert torch.equal(found.nfe, 2 * found.length - 1), "a token each, and each but the last read"
    beyond = torch.arange(L) >= found.length[:, None]
    assert torch.equal(found.tokens == K, beyond)
    ended = found.length < L
    last = found.tokens.gather(1, found.length[:, None] - 1).squeeze(1)
    assert (last[ended] == 1).all(), "the stop symbol stays"


@each_inner
def test_callback_counts_the_steps_and_sees_the_tokens(inner: Sampler) -> None:
    steps: list[int] = []
    seen: list[Tensor] = []

    def keep(step: int, x_t: Tensor) -> None:
        steps.append(step)
        seen[step - 1 :] = [x_t.clone()]

    found = draw(BlockSampler(inner), 2, some_rows(), callback=keep)
    assert steps == list(range(1, len(steps) + 1))
    assert torch.equal(seen[-1], found.tokens)
    stopped = draw(BlockSampler(inner, stop_id=1), 2, some_rows(), callback=keep)
    assert torch.equal(seen[-1], stopped.tokens)


def test_a_recorder_replays_rows_that_stop() -> None:
    recorder, x_init = Recorder(), some_rows()
    recorder.start(x_init, range(8))
    found = draw(BlockSampler(stop_id=1), 2, x_init, callback=recorder)
    names = [str(row) for row in range(8)]
    trace = recorder.trace(sampler="block", names=names, symbols=["0", "1", "_"])
    for row in range(8):
        assert trace.states(row)[-1].tolist() == found.tokens[row].tolist()


def test_empty_and_full_batches_are_no_error() -> None:
    for sampler in (BlockSampler(), BlockSampler(stop_id=1)):
        for shape in ((0, L), (2, 0)):
            found = draw(sampler, 2, torch.full(shape, K))
            assert found.tokens.shape == shape
        full = draw(sampler, 2, torch.ones(2, L, dtype=torch.int64))
        assert full.nfe.tolist() == [0, 0]
        assert full.length is None or full.length.tolist() == [L, L]


class Elements(TorchDispatchMode):
    """Counts the elements that operations write, without views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        views = [
            r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns
        ]
        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, Tensor) and not any(views):
                self.count += part.numel()
        return result


def elements(length: int) -> int:
    denoiser = block_denoiser(ChainOfBlocks(K), 4)
    sampler = BlockSampler(FirstHittingSampler(2), stop_id=1, min_entropy=0.01, entropy_window=16)
    x_init = torch.full((3, length), K)
    x_init[:, -1] = 0  # so that no row ends early
    with Elements() as counted:
        sampler.sample(denoiser, x_init, seeds=torch.arange(3))
    return counted.count


@pytest.mark.slow
def test_work_grows_like_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elements touched at 400 and at 800 tokens; reading all tokens per block gives a
    factor of 4.
    """
    assert elements(800) / elements(400) == pytest.approx(2, rel=0.02)
    real = Growth.leave

    def look(self: Growth, block: int) -> None:
        assert self.canvas.masked is not None
        real(self, block)

    monkeypatch.setattr(Growth, "leave", look)
    assert elements(800) / elements(400) > 2.5, "the twin that looks at whole rows"


def test_windows_of_a_canvas_cost_what_they_hold() -> None:
    draws, x_init = SeededDraws(torch.arange(2)), torch.full((2, 10_000), K)
    canvas = Canvas.open(masked_model(WORLD), draws, x_init)
    with Elements() as counted:
        canvas.window(500, 510)
    assert counted.count <= 100


def test_entropy_of_the_symbols_of_a_row() -> None:
    rows = torch.tensor([[7, 7, 7, 7], [1, 2, 1, 2], [9, 1, 5, 126_336], [3, 3, 3, 0]])
    uneven = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    wanted = torch.tensor([0, math.log(2), math.log(4), uneven], dtype=torch.float64)
    torch.testing.assert_close(unigram_entropy(rows), wanted)
