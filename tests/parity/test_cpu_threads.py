"""Threads that run the CPU kernels: same results on each kind, and no signal or error is lost."""

import os
import signal
import sys

import pytest
import torch

from seqdiff.ops.causal_conv import causal_conv1d
from seqdiff.ops.causal_conv.cpu_kernels import conv_forward
from seqdiff.ops.cpu_simd import runtime

SIGNALS = 100


class AlarmError(Exception):
    """Raised by the handler of a signal."""


@pytest.fixture(autouse=True)
def threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def gradients(x, weight):
    leaves = [x.clone().requires_grad_(), weight.clone().requires_grad_()]
    out = causal_conv1d(*leaves, None)
    return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves)]


@pytest.fixture(scope="module")
def inputs():
    random = torch.Generator().manual_seed(0)
    return torch.randn(3, 40, 512, generator=random), torch.randn(40, 4, generator=random)


def test_each_kind_of_threads_gives_the_bits_of_one_thread(inputs, monkeypatch):
    torch.set_num_threads(1)
    wanted = gradients(*inputs)
    torch.set_num_threads(2)
    if sys.platform == "linux":
        assert runtime._parallel_region() is not None
    for got, one in zip(gradients(*inputs), wanted, strict=True):
        assert torch.equal(got, one)
    monkeypatch.setattr(runtime, "_parallel_region", lambda: None)
    for got, one in zip(gradients(*inputs), wanted, strict=True):
        assert torch.equal(got, one)
    assert runtime._pools


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(inputs):
    wanted = causal_conv1d(*inputs, None)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(30)  # kills a child that waits
            code = 0 if torch.equal(causal_conv1d(*inputs, None), wanted) else 1
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_an_exception_from_a_signal_is_raised(inputs):
    sent = 0

    def handle(*_):
        nonlocal sent
        sent += 1
        raise AlarmError

    before = signal.signal(signal.SIGALRM, handle)
    raised = 0
    try:
        while sent < SIGNALS:
            already = sent
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.002)
                while sent == already:
                    causal_conv1d(*inputs, None)
            except AlarmError:
                raised += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert raised == SIGNALS


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_wrong_arguments_of_a_kernel_are_an_error(inputs):
    causal_conv1d(*inputs, None)  # compiles the kernel
    with pytest.raises(TypeError, match="not enough arguments"):
        runtime.run_tasks(conv_forward, inputs[0], ("wrong",), 8)
