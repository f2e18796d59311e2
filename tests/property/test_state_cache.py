"""BlockMamba's cache: equal to recomputing, block by block, for any rows, in constant memory."""

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import BlockCache, BlockMamba
from seqdiff.backbones.caduceus.block_diffusion import StateCache
from seqdiff.types import Inputs
from tests.block_mamba_twin import build, draw, twin

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
SIZES = {"d_state": 6, "norm": "layer"}


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


def size_of(cache: StateCache) -> int:
    return sum(part.untyped_storage().nbytes() for layer in cache.borders for part in layer)


def recomputed(network: BlockMamba, x_t: Tensor, x0: Tensor, block_size: int, first: int) -> Tensor:
    """The logits of the block that starts at ``first``."""
    row = torch.cat((x0[:, :first], x_t[:, first : first + block_size]), 1)
    return network.block_logits(Inputs(row), x0[:, : row.shape[1]], block_size)[:, first:]


@pytest.mark.parametrize("block_size", [1, 3, 4])
def test_cached_logits_are_recomputed_ones(block_size: int) -> None:
    network = build(dtype=torch.float32, **SIZES)
    x_t, x0 = draw(23)
    cache = network.block_cache(2, block_size, window=block_size)
    assert isinstance(cache, BlockCache)
    for first in range(0, 23, block_size):
        assert cache.length == first
        block = x_t[:, first : first + block_size]
        wanted = recomputed(network, x_t, x0, block_size, first)
        torch.testing.assert_close(cache.logits(block), wanted, **CLOSE)
        where = block < 2
        torch.testing.assert_close(cache.logits(block, where), wanted[where], **CLOSE)
        if block.shape[1] == block_size:
            before = cache
            cache = cache.take(torch.arange(2))
            cache.append(x0[:, first : first + block_size])
            if first:  # broken twin: a cache without the last block
                assert (before.logits(block) - wanted).abs().max() < 1e-4
                assert (cache.logits(block) - wanted).abs().max() > 1e-3


@pytest.mark.parametrize("block_size", [1, 4])
def test_rows_may_leave_return_and_part(block_size: int) -> None:
    network = build(dtype=torch.float32, num_classes=3, **SIZES)
    x_t, x0 = draw(6 * block_size, batch=3)
    label = torch.tensor([0, -1, 2])
    cache = network.block_cache(3, block_size, label=label)
    cache.append(x0[:, : 3 * block_size])  # several blocks at once
    rows = torch.tensor([2, 0, 2])
    other = cache.take(rows)
    assert (other.length, other.label.tolist()) == (3 * block_size, [2, 0, 2])
    # tokens that differ from those of the rows
    other.append(x0[:, 3 * block_size : 4 * block_size])
    mixed = torch.cat((x0[rows, : 3 * block_size], x0[:, 3 * block_size :]), 1)
    last = x_t[:, 4 * block_size : 5 * block_size]

    def wanted(x0: Tensor, label: Tensor, behind: int) -> Tensor:
        row = torch.cat((x0[:, :behind], last), 1)
        logits = network.block_logits(Inputs(row, label=label), row.clamp_max(3), block_size)
        return logits[:, behind:]

    torch.testing.assert_close(
        other.logits(last), wanted(mixed, label[rows], 4 * block_size), **CLOSE
    )
    torch.testing.assert_close(cache.logits(last), wanted(x0, label, 3 * block_size), **CLOSE)
    assert (cache.logits(last) - other.logits(last)).abs().amin(0).max() > 1e-3


@pytest.mark.parametrize("block_size", [1, 2, 5])
def test_states_of_training_are_those_of_generation(block_size: int) -> None:
    """In float32 to 1e-5 of their size; the states of noisy blocks are far away."""
    network = build(dtype=torch.float32, **SIZES)
    x_t, x0 = draw(20)
    _, kept = twin(network, x_t, x0, block_size)
    _, wrong = twin(network, x_t, x0, block_size, "noisy state")
    one, several = (network.block_cache(2, block_size) for _ in range(2))
    for number in range(1, 20 // block_size):
        one.append(x0[:, (number - 1) * block_size : number * block_size])
        if number % 2 == 0:
            several.append(x0[:, (number - 2) * block_size : number * block_size])
        for cache in (one, several)[: 2 - number % 2]:
            for borders, states, noisy in zip(cache.borders, kept, wrong, strict=True):
                size = states[:, number].abs().max()
                gap = (borders.states[:, 0] - states[:, number]).abs().max()
                assert gap < 1e-5 * size
                assert (borders.states[:, 0] - noisy[:, number]).abs().max() > 1e-2 * size


def test_memory_does_not_grow_with_length() -> None:
    network = build(dtype=torch.float32, **SIZES)
    cache = network.block_cache(3, 4)
    cache.append(draw(4, batch=3)[1])
    small = size_of(cache)
    for _ in range(3):
        cache.append(draw(400, batch=3)[1])
        assert size_of(cache) == small
    assert size_of(cache.take(torch.tensor([1]))) * 3 == small
    assert small == 4 * 3 * 12 * 2 * (6 + 3)  # bytes, rows, channels, layers, state and tail


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c: c.append(draw(6)[1]), "StateCache.x0 must hold a multiple of 4 tokens per row"),
        (lambda c: c.append(draw(4)[1][:, :0]), "StateCache.x0 must hold a multiple of 4 tokens"),
        (lambda c: c.logits(draw(5)[0]), "StateCache.x_t must hold at most 4 tokens per row and"),
        (lambda c: c.logits(draw(4, batch=3)[0]), "StateCache.x_t must have 2 rows, got 3; take"),
    ],
)
def test_refuses_tokens_that_do_not_fit(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(build(dtype=torch.float32).block_cache(2, 4))
