"""The CPU operator for both directions against the same computation by separate operators."""

import pytest
import torch
from torch import Tensor

from seqdiff.ops.bimamba.directions import mamba_both_ways, mamba_direction
from seqdiff.ops.bimamba.inputs import Direction, check_direction
from tests.gaps import largest_gap

RTOL = {torch.float32: 3e-5, torch.float64: 1e-11}


def weights(channels: int, rank: int, states: int, seed: int, *, conv_bias: bool) -> Direction:
    """Random weights of one direction, float64."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    return Direction(
        normal(channels, 4),
        normal(channels) if conv_bias else None,
        normal(rank + 2 * states, channels) / channels**0.5,
        normal(channels, rank) / rank**0.5,
        normal(channels) - 2,
        -normal(channels, states).exp(),
        normal(channels),
    )


def case(
    batch: int = 2,
    length: int = 70,
    channels: int = 21,
    rank: int = 2,
    states: int = 5,
    *,
    conv_bias: bool = True,
    padded: bool = False,
) -> tuple[Tensor, Direction, Direction, Tensor | None]:
    """Random arguments; the second row is padded with non-zero values at both ends and inside."""
    random = torch.Generator().manual_seed(7)
    xz = torch.randn(batch, length, 2 * channels, generator=random, dtype=torch.float64)
    padding = None
    if padded:
        padding = torch.zeros(batch, length, dtype=torch.bool)
        padding[1, :9] = padding[1, -17:] = padding[1, 30:33] = True
    ways = (weights(channels, rank, states, seed, conv_bias=conv_bias) for seed in (1, 2))
    return xz, *ways, padding


def separately(xz, fwd, rev, padding, *, mirrored):
    """The expected result, computed without our kernels."""
    options = {"backend": "reference"}
    first = mamba_direction(xz, fwd, padding, reverse=mirrored, **options)
    return first + mamba_direction(xz, rev, padding, reverse=not mirrored, **options)


def numbers(function, given, mirrored, dtype) -> list[Tensor]:
    """Output and every gradient."""
    xz, fwd, rev, padding = given
    leaves = [None if t is None else t.to(dtype).requires_grad_() for t in (xz, *fwd, *rev)]
    ways = Direction(*leaves[1:8]), Direction(*leaves[8:])
    out = function(leaves[0], *ways, padding, mirrored=mirrored)
    random = torch.Generator().manual_seed(3)
    d_out = torch.randn(out.shape, generator=random, dtype=torch.float64).to(dtype)
    present = [leaf for leaf in leaves if leaf is not None]
    return [out.detach(), *torch.autograd.grad(out, present, d_out)]


CASES = {
    "plain": {},
    "no_conv_bias": {"conv_bias": False},
    "padded": {"padded": True},
    "length_1": {"length": 1},
    "length_2": {"length": 2},
    "length_3": {"length": 3},
    "several_blocks": {"channels": 150, "states": 16, "rank": 5, "length": 130},
    "six_states": {"states": 6, "length": 20},
    "one_row_one_state": {"batch": 1, "states": 1, "rank": 1, "channels": 16},
}


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("name", CASES)
def test_equals_two_directions(name, dtype, mirrored):
    given = case(**CASES[name])
    got = numbers(mamba_both_ways, given, mirrored, dtype)
    wanted = numbers(separately, given, mirrored, dtype)
    assert largest_gap(got, wanted) < RTOL[dtype]
    if given[0].shape[1] > 1:
        other_way = numbers(separately, given, not mirrored, dtype)
        assert largest_gap(got, other_way) > 1e-2


def test_gradients_are_those_of_finite_differences():
    given = case(1, 6, 3, 1, 2)

    def function(*leaves: Tensor) -> Tensor:
        return mamba_both_ways(leaves[0], Direction(*leaves[1:8]), Direction(*leaves[8:]))

    leaves = [t.requires_grad_() for t in (given[0], *given[1], *given[2]) if t is not None]
    assert torch.autograd.gradcheck(function, leaves)


def calls(monkeypatch, run) -> int:
    """Count the calls of the combined operator."""
    import seqdiff.ops.bimamba.cpu as module

    real, count = module.mamba_cpu, []

    def counted(*arguments, **options):
        count.append(1)
        return real(*arguments, **options)

    monkeypatch.setattr(module, "mamba_cpu", counted)
    run()
    return len(count)


def test_the_operator_is_taken_where_it_fits_and_nowhere_else(monkeypatch):
    xz, fwd, rev, _ = case(length=5)
    single = [Direction(*(None if t is None else t.float() for t in way)) for way in (fwd, rev)]
    assert calls(monkeypatch, lambda: mamba_both_ways(xz, fwd, rev)) == 1
    assert calls(monkeypatch, lambda: mamba_both_ways(xz.float(), *single, backend="cpu")) == 1
    assert calls(monkeypatch, lambda: mamba_both_ways(xz, fwd, rev, backend="reference")) == 0
    with torch.autocast("cpu", torch.bfloat16):
        assert calls(monkeypatch, lambda: mamba_both_ways(xz.float(), *single)) == 1
        assert calls(monkeypatch, lambda: mamba_both_ways(xz.bfloat16(), *single)) == 1
        assert calls(monkeypatch, lambda: mamba_both_ways(xz, fwd, rev)) == 0
    with torch.autocast("cpu", torch.float16):
        assert calls(monkeypatch, lambda: mamba_both_ways(xz.float(), *single)) == 0


def test_only_some_weights_train():
    xz, fwd, rev, _ = case(length=20)
    wanted = numbers(separately, (xz, fwd, rev, None), False, torch.float64)
    own = rev._replace(x_proj=rev.x_proj.clone().requires_grad_())
    out = mamba_both_ways(xz, fwd, own)
    random = torch.Generator().manual_seed(3)
    d_out = torch.randn(out.shape, generator=random, dtype=torch.float64)
    (got,) = torch.autograd.grad(out, own.x_proj, d_out)
    assert largest_gap([got], [wanted[11]]) < RTOL[torch.float64]


BAD = {
    "A": lambda m: m[:5],
    "conv_weight": lambda m: m[:3],
    "conv_bias": lambda m: m[:3],
    "dt_proj": lambda m: m[:5],
    "dt_bias": lambda m: m[:3],
    "D": lambda m: m[:3],
    "x_proj": lambda m: m[:-1],
}


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("name", BAD)
def test_wrong_shapes_are_named(name, backend):
    xz, fwd, rev, _ = case(length=9)
    wrong = rev._replace(**{name: BAD[name](getattr(rev, name))})
    with pytest.raises(ValueError, match=rf"^mamba_direction\.{name} must have shape .*got"):
        mamba_both_ways(xz, fwd, wrong, backend=backend)
    away = rev._replace(**{name: getattr(rev, name).to("meta")})
    with pytest.raises(ValueError, match=rf"^mamba_direction\.{name} must be on xz's device cpu"):
        mamba_both_ways(xz, fwd, away, backend=backend)


@pytest.mark.parametrize("cut", [lambda v: v[..., :41], lambda v: v[:, :0], lambda v: v[0]])
def test_wrong_inputs_are_named(cut):
    xz, fwd, _, _ = case(length=9)
    with pytest.raises(ValueError, match=r"^mamba_direction\.xz must have shape"):
        check_direction(cut(xz), fwd, None)
    with pytest.raises(ValueError, match=r"^mamba_direction\.padding must have shape \(2, 9\)"):
        check_direction(xz, fwd, torch.zeros(1, 9, dtype=torch.bool))


def under_autocast(*arguments, **options) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return mamba_both_ways(*arguments, **options)


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("name", ["padded", "several_blocks", "length_1"])
def test_under_autocast_only_products_are_rounded(name, mirrored):
    given = case(**CASES[name])
    got = numbers(under_autocast, given, mirrored, torch.float32)
    wanted = numbers(separately, given, mirrored, torch.float64)
    assert {half.dtype for half in got} == {torch.float32}
    gaps = [largest_gap([half], [exact]) for half, exact in zip(got, wanted, strict=True)]
    assert max(gaps) < 3e-2, "bfloat16 has 8 bits"
    assert gaps[0] > 1e-5, "the product of the forward pass is in bfloat16"
    assert torch.equal(got[4].bfloat16().float(), got[4]), "and so is that of x_proj's gradient"
    assert gaps[8] < 1e-6, "convolution and gate, which make the gradient of D, are in float32"


def test_a_backward_pass_under_autocast_is_that_of_its_forward_pass():
    given = case(padded=True)
    xz, fwd, rev, padding = given
    leaves = [None if t is None else t.float().requires_grad_() for t in (xz, *fwd, *rev)]
    out = mamba_both_ways(leaves[0], Direction(*leaves[1:8]), Direction(*leaves[8:]), padding)
    wanted = torch.autograd.grad(out.sum(), leaves, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(out.sum(), leaves)
    assert all(torch.equal(got, grad) for got, grad in zip(found, wanted, strict=True))


def test_bfloat16_activations_under_autocast():
    xz, *ways, _ = case()
    fwd, rev = (Direction(*(t.float() for t in way if t is not None)) for way in ways)
    rows = xz.bfloat16().requires_grad_()
    half = under_autocast(rows, fwd, rev)
    half.sum().backward()
    assert half.dtype == rows.grad.dtype == torch.bfloat16
    whole = xz.bfloat16().float().requires_grad_()
    single = mamba_both_ways(whole, fwd, rev)
    single.sum().backward()
    assert largest_gap([half.float(), rows.grad.float()], [single, whole.grad]) < 3e-2


def test_autocast_keeps_one_graph():
    xz, *ways, _ = case()
    fwd, rev = (Direction(*(t.float() for t in way if t is not None)) for way in ways)
    compiled = torch.compile(mamba_both_ways, fullgraph=True, backend="aot_eager")
    found = []
    for function in (mamba_both_ways, compiled):
        rows = xz.float().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            out = function(rows, fwd, rev)
        found.append((out, *torch.autograd.grad(out.sum(), rows)))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("half", [False, True])
def test_operator_is_registered_whole(half):
    # 64 channels fill a block, so that all memory kept for the backward is written.
    xz, fwd, rev, padding = case(padded=True, channels=64)
    mamba_both_ways(xz, fwd, rev, padding)  # registers the operator
    tensors = [t.requires_grad_() for t in (*fwd, *rev) if t is not None]
    arguments = (xz.requires_grad_(), tensors, None, None, padding, 70, False, False, half, True)
    torch.library.opcheck(torch.ops.seqdiff.mamba, arguments)
    with torch.no_grad():
        _, _, _, *kept = torch.ops.seqdiff.mamba(*arguments)
        d_out = torch.ones(2, 64, 70, dtype=torch.float64)
        back = (xz, tensors, None, None, kept, padding, 70, False, False, half, d_out, None, None)
        torch.library.opcheck(torch.ops.seqdiff.mamba_backward, back)
