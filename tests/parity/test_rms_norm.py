"""The CPU's RMSNorm against PyTorch's."""

import inspect

import pytest
import torch
import torch.nn.functional as F

from seqdiff.ops.rms_norm.dispatch import rms_norm
from tests.gaps import largest_gap

RTOL = {torch.float32: 1e-5, torch.float64: 1e-13}


def numbers(function, shape, dtype, *, strided=False):
    """Output and both gradients."""
    random = torch.Generator().manual_seed(0)
    x, d_out = (torch.randn(shape, generator=random, dtype=torch.float64) for _ in range(2))
    weight = torch.randn(shape[-1], generator=random, dtype=torch.float64)
    x, weight, d_out = (t.to(dtype) for t in (3 * x, weight, d_out))
    if strided:
        x, d_out = (t.transpose(0, 1) for t in (x, d_out))
        weight = torch.stack((weight, weight), -1)[:, 0]
    x.requires_grad_()
    weight.requires_grad_()
    out = function(x, weight)
    return [out.detach(), *torch.autograd.grad(out, (x, weight), d_out)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["f32", "f64"])
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 16), (3, 17), (2, 40, 118), (40, 15), (200, 5), (2, 130, 32)], ids=str
)
def test_equals_pytorch(shape, dtype):
    got = numbers(lambda x, w: rms_norm(x, w, 1e-5), shape, dtype)
    wanted = numbers(lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), shape, dtype)
    assert largest_gap(got, wanted) < RTOL[dtype]
    if shape != (1, 1):
        centred = numbers(lambda x, w: F.layer_norm(x, w.shape, w, None, 1e-5), shape, dtype)
        assert largest_gap(got, centred) > 1e-3


def test_takes_any_strides():
    shape = (3, 5, 20)
    got = numbers(lambda x, w: rms_norm(x, w, 1e-5), shape, torch.float64, strided=True)
    wanted = numbers(
        lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), shape, torch.float64, strided=True
    )
    assert largest_gap(got, wanted) < RTOL[torch.float64]


def test_a_tiny_vector_keeps_to_eps():
    x = torch.full((2, 8), 1e-30)
    assert torch.allclose(rms_norm(x, torch.ones(8), 1e-5), x / 1e-5**0.5, rtol=1e-5, atol=0)


def test_gradients_are_those_of_finite_differences():
    x, weight = torch.randn(2, 5, 7, dtype=torch.float64), torch.randn(7, dtype=torch.float64)
    leaves = [x.requires_grad_(), weight.requires_grad_()]
    assert torch.autograd.gradcheck(lambda *v: rms_norm(*v, 1e-5), leaves)


def test_operator_describes_itself_truly_and_threads_do_not_change_a_bit():
    x, weight = torch.randn(300, 20, requires_grad=True), torch.randn(20, requires_grad=True)
    wanted = numbers(lambda x, w: rms_norm(x, w, 1e-5), (300, 20), torch.float32)
    torch.library.opcheck(torch.ops.seqdiff.rms_norm, (x, weight, 1e-5))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        got = numbers(lambda x, w: rms_norm(x, w, 1e-5), (300, 20), torch.float32)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(g, w) for g, w in zip(got, wanted, strict=True))


def test_empty_and_half_precision_take_pytorch_s():
    assert rms_norm(torch.empty(0, 4), torch.ones(4), 1e-5).shape == (0, 4)
    x = torch.randn(3, 4).bfloat16()
    wanted = F.rms_norm(x, (4,), torch.ones(4).bfloat16(), 1e-5)
    assert torch.equal(rms_norm(x, torch.ones(4).bfloat16(), 1e-5), wanted)
    with pytest.raises(ValueError, match=r"rms_norm.weight must have shape \(4,\) .*got \(3,\)"):
        inspect.unwrap(rms_norm)(x, torch.ones(3), 1e-5)  # bypasses the tests' shape checker
    with pytest.raises(ValueError, match=r"rms_norm.weight must have shape .* got \(4,\) on meta"):
        rms_norm(x, torch.ones(4, device="meta").bfloat16(), 1e-5)
    with pytest.raises(ValueError, match=r"rms_norm.eps must be positive, got 0.0"):
        rms_norm(x, torch.ones(4).bfloat16(), 0.0)
