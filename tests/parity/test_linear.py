"""Matrix products in blocks of rows against PyTorch's."""

import pytest
import torch
import torch.nn.functional as F

from seqdiff.ops.linear import linear
from seqdiff.ops.linear.dispatch import BLOCK, _multiply
from tests.gaps import largest_gap


def numbers(function, shape, columns, *, strided):
    """Output, both gradients, and the gradients of their squares."""
    random = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=random)
    weight = torch.randn(columns, shape[-1], generator=random)
    if strided:
        x, weight = x.mT.contiguous().mT, weight.mT.contiguous().mT
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    out = function(*leaves)
    grads = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
    second = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves)
    return [out.detach(), *(g.detach() for g in grads), *second]


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize(
    ("shape", "columns"), [((2, BLOCK, 5), 7), ((3, 230, 11), 4), ((2 * BLOCK + 1, 3), 1)], ids=str
)
def test_equals_pytorch(shape, columns, strided):
    got = numbers(lambda x, w: linear(x, w, None), shape, columns, strided=strided)
    wanted = numbers(F.linear, shape, columns, strided=strided)
    assert largest_gap(got, wanted) < 1e-5
    broken = numbers(lambda x, w: linear(x, w.flip(0, 1), None), shape, columns, strided=strided)
    assert largest_gap(broken, wanted) > 1e-2


def test_gradients_are_those_of_finite_differences():
    x, weight = torch.randn(BLOCK + 2, 2).double(), torch.randn(3, 2).double()
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    assert torch.autograd.gradcheck(_multiply, leaves, fast_mode=True)


def test_a_bias_is_added_once():
    x, weight, bias = torch.randn(600, 4), torch.randn(5, 4), torch.randn(5)
    torch.testing.assert_close(linear(x, weight, bias), linear(x, weight, None) + bias)
