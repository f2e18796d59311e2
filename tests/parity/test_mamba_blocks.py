"""Mamba by blocks and from block borders: the CPU's operator against separate operators."""

import pytest
import torch
from torch import Tensor

from seqdiff.ops.bimamba.blocks import Borders, mamba_borders, mamba_from, mamba_through
from seqdiff.ops.bimamba.directions import mamba_direction
from seqdiff.ops.bimamba.inputs import Direction
from tests.gaps import largest_gap
from tests.parity.test_mamba_both_ways import weights

RTOL = {torch.float32: 1e-4, torch.float64: 1e-11}

CASES = {
    "short blocks": {"block_size": 3},
    "blocks of one": {"block_size": 1},
    "chunks inside blocks": {"block_size": 150, "length": 450},
    "several blocks a chunk": {"block_size": 50, "length": 300, "channels": 9},
    "many channels": {"block_size": 16, "length": 48, "channels": 150, "states": 16, "rank": 5},
    "six states": {"block_size": 4, "length": 20, "states": 6},
    "one state, short filter": {"block_size": 2, "states": 1, "taps": 2},
    "no filter": {"block_size": 2, "taps": 1},
    "padded": {"block_size": 5, "length": 30, "padded": True},
    "no bias": {"block_size": 7, "length": 21, "conv_bias": False},
}


def case(
    block_size: int,
    length: int = 12,
    channels: int = 21,
    states: int = 5,
    rank: int = 2,
    taps: int = 4,
    *,
    conv_bias: bool = True,
    padded: bool = False,
    from_borders: bool = False,
) -> list[Tensor | None]:
    """Input, borders and 14 weights; the last block of a row that is read from borders
    is shorter.
    """
    random = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    ways = [weights(channels, rank, states, seed, conv_bias=conv_bias) for seed in (1, 2)]
    ways = [way._replace(conv_weight=way.conv_weight[:, :taps]) for way in ways]
    blocks = length // block_size if from_borders else 1
    if from_borders and block_size > 1:
        length -= block_size // 2
    absent = torch.arange(length) >= torch.tensor([length, length // 3])[:, None]
    xz = normal(2, length, 2 * channels)
    if padded:
        xz = xz.masked_fill(absent[..., None], 0)
    borders = normal(2, blocks, channels, states), normal(2, blocks, taps - 1, channels)
    return [absent if padded else None, xz, *borders, *ways[0], *ways[1]]


def numbers(function, given, block_size, dtype, backend, **changed) -> list[Tensor]:
    """The result of a function, and all gradients of a randomly weighted sum."""
    absent, *tensors = given
    leaves = [None if t is None else t.to(dtype).requires_grad_() for t in tensors]
    xz, states, tails = leaves[:3]
    ways = Direction(*leaves[3:10]), Direction(*leaves[10:])
    start = changed.get("start", Borders)(states, tails)
    if function is mamba_borders:
        xz, ways = xz[..., : xz.shape[2] // 2], ways[:1]
    out = function(xz, *ways, block_size, start, absent, backend=backend)
    flat = [out] if isinstance(out, Tensor) else []
    if not flat:
        flat = [*out] if isinstance(out, Borders) else [out[0], *out[1]]
    random = torch.Generator().manual_seed(3)
    weight = [torch.randn(o.shape, generator=random, dtype=torch.float64).to(dtype) for o in flat]
    present = [leaf for leaf in leaves if leaf is not None]
    grads = torch.autograd.grad(flat, present, weight, materialize_grads=True)
    return [t.detach() for t in (*flat, *grads) if t.numel()]


@pytest.mark.parametrize("function", [mamba_through, mamba_borders, mamba_from])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", CASES)
def test_equals_separate_operators(name, dtype, function):
    size = CASES[name]["block_size"]
    given = case(**CASES[name], from_borders=function is mamba_from)
    got = numbers(function, given, size, dtype, "auto")
    wanted = numbers(function, given, size, dtype, "reference")
    assert len(got) == len(wanted) > 12
    assert largest_gap(got, wanted) < RTOL[dtype]
    if function is not mamba_borders:
        other_size = size - 1 if size > 1 else given[1].shape[1]
        if function is mamba_through and given[1].shape[1] % other_size == 0:
            other = numbers(function, given, other_size, dtype, "auto")[0]
            assert (other - wanted[0]).abs().max() > 1e-2
    no_start = {"start": lambda states, tails: Borders(0 * states, tails)}
    broken = numbers(function, given, size, dtype, "auto", **no_start)
    assert largest_gap(broken, wanted) > 1e-2


@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_borders_are_the_states_of_an_unbroken_scan(backend):
    """Every second border of blocks of three is a border of blocks of six; the outputs differ."""
    _, xz, states, tails, *rest = case(3, 24)
    ways, start = (Direction(*rest[:7]), Direction(*rest[7:])), Borders(states, tails)
    y, fine = mamba_through(xz, *ways, 3, start, backend=backend)
    other, coarse = mamba_through(xz, *ways, 6, start, backend=backend)
    for short, long in zip(fine, coarse, strict=True):
        torch.testing.assert_close(short[:, ::2], long, rtol=1e-11, atol=1e-11)
        assert (short[:, 1:-1:2] - long[:, 1:]).abs().max() > 1e-2
    assert (y - other).abs().max() > 1e-2
    torch.testing.assert_close(
        mamba_borders(xz[..., :21], ways[0], 3, start, backend=backend)[0], fine[0]
    )


def test_one_block_from_nothing_is_both_directions():
    _, xz, states, tails, *rest = case(12)
    ways = Direction(*rest[:7]), Direction(*rest[7:])
    start = Borders(torch.zeros_like(states), torch.zeros_like(tails))
    wanted = mamba_direction(xz, ways[0]) + mamba_direction(xz, ways[1], reverse=True)
    for got in (mamba_through(xz, *ways, 12, start)[0], mamba_from(xz, *ways, 20, start)):
        torch.testing.assert_close(got, wanted, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("function", [mamba_through, mamba_from])
def test_gradients_are_those_of_finite_differences(function):
    given = case(2, 4, 3, 2, 1, from_borders=function is mamba_from)[1:]

    def flat(xz: Tensor, states: Tensor, tails: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        ways = Direction(*rest[:7]), Direction(*rest[7:])
        out = function(xz, *ways, 2, Borders(states, tails))
        return (out,) if isinstance(out, Tensor) else (out[0], *out[1])

    assert torch.autograd.gradcheck(flat, [t.requires_grad_() for t in given if t is not None])


def test_under_autocast_borders_stay_in_float32():
    absent, *tensors = case(3)
    tensors = [t.float() for t in tensors]
    ways, start = (Direction(*tensors[3:10]), Direction(*tensors[10:])), Borders(*tensors[1:3])
    whole, borders = mamba_through(tensors[0], *ways, 3, start, absent)
    inside = Borders(*(m[:, :-1] for m in borders))
    apart = mamba_from(tensors[0], *ways, 3, inside, absent)
    with torch.autocast("cpu", torch.bfloat16):
        got, coarse = mamba_through(tensors[0], *ways, 3, start, absent)
        alone = mamba_borders(tensors[0][..., :21], ways[0], 3, start, absent)
        from_borders = mamba_from(tensors[0], *ways, 3, inside, absent)
    for out, wanted in ((got, whole), (coarse.states, borders.states), (from_borders, apart)):
        assert out.dtype == torch.float32
        assert 1e-4 < (out - wanted).abs().max() / wanted.abs().max() < 3e-2
    assert torch.equal(alone.states, coarse.states)
    assert torch.equal(coarse.tails, borders.tails)


@pytest.mark.parametrize("function", [mamba_through, mamba_borders, mamba_from])
def test_under_autocast_gradients_are_close(function):
    given = case(3, padded=True, from_borders=function is mamba_from)
    with torch.autocast("cpu", torch.bfloat16):
        got = numbers(function, given, 3, torch.float32, "auto")
    wanted = numbers(function, given, 3, torch.float64, "reference")
    gaps = [largest_gap([half], [exact]) for half, exact in zip(got, wanted, strict=True)]
    assert 1e-5 < gaps[0] and max(gaps) < 4e-2


WRONG = [
    (lambda g: g | {"block_size": 5}, r"block_size must divide the length 12, got 5"),
    (lambda g: g | {"states": g["states"][:, :, :5]}, r"states must have shape \(2, 1, 21, 5\)"),
    (
        lambda g: g | {"tails": g["tails"].mT},
        r"tails must have shape \(2, 1, 3, 21\), got \(2, 1, 21",
    ),
    (lambda g: g | {"fwd": g["fwd"]._replace(D=g["fwd"].D[:3])}, r"D must have shape \(21,\)"),
]


@pytest.mark.parametrize(("change", "message"), WRONG)
def test_wrong_arguments_are_named(change, message):
    _, xz, states, tails, *rest = case(3)
    ways = {"fwd": Direction(*rest[:7]), "rev": Direction(*rest[7:])}
    given = change({"xz": xz, "block_size": 3, "states": states, "tails": tails, **ways})
    start, size, fwd = Borders(given["states"], given["tails"]), given["block_size"], given["fwd"]
    with pytest.raises(ValueError, match=rf"^mamba_(through(\.start)?|direction)\.{message}"):
        mamba_through(xz, fwd, ways["rev"], size, start)
    with pytest.raises(ValueError, match=rf"^mamba_(borders(\.start)?|direction)\.{message}"):
        mamba_borders(xz[..., :21], fwd, size, start)
    with pytest.raises(ValueError, match=r"^mamba_(from(\.borders)?|direction)\."):
        mamba_from(xz, fwd, ways["rev"], size, start)


@pytest.mark.parametrize("function", [mamba_through, mamba_borders, mamba_from])
@pytest.mark.parametrize("half", [False, True])
def test_operator_is_registered_whole(function, half):
    # 64 channels fill a block, and a short block of tokens has as many chunks as the others, so
    # that all memory kept for the backward is written.
    through, gated = function is not mamba_from, function is not mamba_borders
    size = 130 if through else 100
    absent, xz, *rest = case(size, 2 * size, 64, padded=True, from_borders=not through)
    numbers(function, [absent, xz, *rest], size, torch.float64, "auto")  # registers the operator
    states, tails, *tensors = [t.requires_grad_() for t in rest]
    xz = (xz if gated else xz[..., :64].contiguous()).requires_grad_()
    tensors = tensors if gated else tensors[:7]
    arguments = (xz, tensors, states, tails, absent, size, through, False, half, True)
    torch.library.opcheck(torch.ops.seqdiff.mamba, arguments)
    with torch.no_grad():
        out, borders, ends, *kept = torch.ops.seqdiff.mamba(*arguments)
        flows = [torch.ones_like(t) if t.numel() else None for t in (out, borders, ends)]
        before = borders if through else states
        back = (xz, tensors, before, tails, kept, absent, size, through, False, half, *flows)
        torch.library.opcheck(torch.ops.seqdiff.mamba_backward, back)
