"""Matrix products by oneDNN against PyTorch's."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from seqdiff.ops.linear import Linear, linear
from seqdiff.ops.linear.dispatch import ROWS
from tests.gaps import largest_gap


def numbers(function, shape, columns, *, strided, biased):
    """Output, the gradients, and the gradients of their squares."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=random)
    weight = torch.randn(columns, shape[-1], generator=random)
    bias = torch.randn(columns, generator=random) if biased else None
    if strided:
        x, weight = x.mT.contiguous().mT, weight.mT.contiguous().mT
    leaves = [m.requires_grad_() for m in (x, weight, bias) if m is not None]
    out = function(x, weight, bias)
    grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)
    return [out.detach(), *(g.detach() for g in grads), *second]


def calls_onednn(call):
    """Whether the call multiplies with oneDNN's operator."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return any("mkldnn::_linear_pointwise" in event.key for event in profile.key_averages())


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(
    ("shape", "columns"), [((2, ROWS, 5), 7), ((3, 230, 11), 4), ((ROWS, 3), 1)], ids=str
)
def test_equals_pytorch(shape, columns, strided, biased):
    given = (shape, columns)
    got = numbers(linear, *given, strided=strided, biased=biased)
    wanted = numbers(F.linear, *given, strided=strided, biased=biased)
    assert largest_gap(got, wanted) < 1e-5
    broken = numbers(
        lambda x, w, b: linear(x, w.flip(0, 1), b), *given, strided=strided, biased=biased
    )
    assert largest_gap(broken, wanted) > 1e-2


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch without oneDNN")
def test_only_many_rows_of_float32_are_multiplied_by_onednn():
    x, weight = torch.randn(ROWS, 4), torch.randn(5, 4)
    assert calls_onednn(lambda: linear(x, weight))
    assert not calls_onednn(lambda: linear(x[1:], weight))
    assert not calls_onednn(lambda: linear(x.double(), weight.double()))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x, weight).dtype == torch.bfloat16


def test_the_layer_has_the_parameters_and_the_output_of_pytorchs():
    ours, theirs = Linear(4, 5), torch.nn.Linear(4, 5)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(2, ROWS, 4)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("enabled", [False, True])
def test_transforms_of_functions_see_the_layer(enabled):
    x, weight = torch.randn(2, ROWS, 4), torch.randn(5, 4)

    def transformed(function):
        def total(w, rows):
            return function(rows, w).square().sum()

        per_row = torch.func.vmap(torch.func.grad(total), (None, 0))(weight, x)
        change = torch.func.jvp(lambda w: function(x, w), (weight,), (weight,))[1]
        with forward_ad.dual_level():
            dual = function(forward_ad.make_dual(x, x), weight)
            tangent = forward_ad.unpack_dual(dual).tangent
        return [per_row, change, tangent]

    with torch.set_grad_enabled(enabled):
        assert largest_gap(transformed(linear), transformed(F.linear)) < 1e-5
