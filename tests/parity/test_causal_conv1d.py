"""The convolution's CPU kernel against PyTorch's, and PyTorch's against an explicit sum."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from seqdiff.ops.causal_conv.dispatch import causal_conv1d, check_conv_inputs
from tests.gaps import largest_gap

RTOL = {torch.float32: 2e-5, torch.float64: 1e-12}


def arguments(
    batch=2, channels=21, length=70, taps=4, *, dtype=torch.float64, layout="channels_last", seed=0
):
    """Random x, weight and bias."""
    random = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    if layout == "channels_last":
        x = normal(batch, length, channels).transpose(1, 2)
    elif layout == "slice":
        x = normal(batch, length, 2 * channels)[..., :channels].transpose(1, 2)
    else:
        x = normal(batch, channels, length)
    return x, normal(channels, taps), normal(channels)


def run(x, weight, bias, activation, reverse, backend):
    """Output and every gradient."""
    leaves = [v.detach().requires_grad_() for v in (x, weight, bias) if v is not None]
    filled = leaves if bias is not None else [*leaves, None]
    out = causal_conv1d(*filled, activation, reverse=reverse, backend=backend)
    random = torch.Generator().manual_seed(9)
    weights = torch.randn(out.shape, generator=random, dtype=torch.float64).to(out)
    return [out.detach(), *torch.autograd.grad((out * weights).sum(), leaves)]


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("reverse", [False, True])
def test_equals_the_written_out_sum(backend, reverse):
    x, weight, bias = arguments(2, 3, 11, 4)
    wanted = np.zeros(x.shape)
    for b, d, place in np.ndindex(*x.shape):
        total = bias[d].item()
        for w in range(4):
            source = place + (3 - w) if reverse else place - (3 - w)
            if 0 <= source < 11:
                total += (weight[d, w] * x[b, d, source]).item()
        wanted[b, d, place] = total
    out = causal_conv1d(x, weight, bias, reverse=reverse, backend=backend)
    np.testing.assert_allclose(out.numpy(), wanted, rtol=1e-12, atol=1e-13)
    other_way = causal_conv1d(x, weight, bias, reverse=not reverse, backend=backend)
    assert np.abs(other_way.numpy() - wanted).max() > 0.1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("layout", ["channels_last", "channels_first", "slice"])
def test_cpu_equals_reference(dtype, activation, layout):
    for length in (1, 2, 3, 63, 64, 65, 130):
        for reverse in (False, True):
            given = arguments(length=length, channels=32, dtype=dtype, layout=layout)
            got = run(*given, activation, reverse, "cpu")
            wanted = run(*given, activation, reverse, "reference")
            assert largest_gap(got, wanted) < RTOL[dtype]


@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 40),
    length=st.integers(1, 140),
    taps=st.integers(1, 7),
    seed=st.integers(0, 2**31),
    with_bias=st.booleans(),
    silu=st.booleans(),
    reverse=st.booleans(),
)
@settings(max_examples=40)
def test_cpu_equals_reference_on_any_shape(with_bias, silu, reverse, **shape):
    x, weight, bias = arguments(**shape)
    given = (x, weight, bias if with_bias else None, "silu" if silu else None, reverse)
    assert largest_gap(run(*given, "cpu"), run(*given, "reference")) < 1e-10


def test_the_comparison_sees_a_broken_twin():
    x, weight, bias = arguments(dtype=torch.float32)
    wanted = run(x, weight, bias, "silu", False, "reference")
    twins = [
        run(x, weight, bias, "silu", True, "cpu"),
        run(x, weight.flip(1), bias, "silu", False, "cpu"),
        run(x, weight, bias, None, False, "cpu"),
        run(x, weight, torch.zeros_like(bias), "silu", False, "cpu"),
    ]
    for twin in twins:
        assert largest_gap(twin, wanted) > 100 * RTOL[torch.float32]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_gradcheck(activation, reverse):
    leaves = [v.requires_grad_() for v in arguments(2, 3, 6, 3)]

    def convolve(*values: Tensor) -> Tensor:
        return causal_conv1d(*values, activation, reverse=reverse, backend="cpu")

    assert torch.autograd.gradcheck(convolve, leaves)


def test_reverse_is_the_flipped_twin():
    x, weight, bias = arguments()
    wanted = causal_conv1d(x.flip(-1), weight, bias, "silu").flip(-1)
    torch.testing.assert_close(causal_conv1d(x, weight, bias, "silu", reverse=True), wanted)


def test_bits_do_not_depend_on_threads():
    before = torch.get_num_threads()
    given = arguments(3, 60, 150, dtype=torch.float32)
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(run(*given, "silu", True, "cpu"))
    finally:
        torch.set_num_threads(before)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


def test_bfloat16_is_computed_in_float32():
    x, weight, bias = arguments(dtype=torch.bfloat16)
    out = causal_conv1d(x, weight, bias, "silu")
    wanted = causal_conv1d(x.double(), weight.double(), bias.double(), "silu")
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out, wanted.bfloat16(), rtol=8e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(2, 3)}, r"causal_conv1d\.x must have shape"),
        ({"weight": torch.zeros(3, 1, 4)}, r"\.weight must have shape \(channels=21"),
        ({"bias": torch.zeros(3)}, r"\.bias must have shape \(21,\), got \(3,\)"),
        ({"weight": torch.zeros(21, 4, dtype=torch.int32)}, r"\.weight must be one of float64"),
        ({"activation": "gelu"}, r"\.activation must be None or 'silu', got 'gelu'"),
    ],
)
def test_wrong_inputs_are_named(change, message):
    x, weight, bias = arguments()
    given = {"x": x, "weight": weight, "bias": bias, "activation": None} | change
    with pytest.raises(ValueError, match=message):
        check_conv_inputs(**given)


def test_wrong_backends_are_named():
    x, weight, bias = arguments()
    with pytest.raises(ValueError, match=r"backend must be one of .*'reference'.*got 'cuda'"):
        causal_conv1d(x, weight, bias, backend="cuda")
    with pytest.raises(ValueError, match="'cpu' needs CPU tensors, got meta"):
        causal_conv1d(x.to("meta"), weight.to("meta"), bias.to("meta"), backend="cpu")
