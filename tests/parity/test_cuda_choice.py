"""Choice of the kernel for a CUDA tensor, tested without a device."""

import pytest
import torch

from seqdiff.ops.causal_conv.dispatch import causal_conv1d
from seqdiff.ops.selective_scan import cuda
from seqdiff.ops.selective_scan.cuda import choose_for_cuda
from seqdiff.ops.selective_scan.dispatch import selective_scan
from tests.parity.scan_cases import arguments


@pytest.fixture
def installed(monkeypatch):
    """Pretend that exactly these packages are installed."""

    def pretend(*names: str) -> None:
        monkeypatch.setattr(cuda, "_installed", names.__contains__)

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Device A")
    return pretend


def test_nothing_is_claimed_that_was_not_measured():
    assert set(cuda.FASTEST.values()) <= {"triton", "mamba_ssm"}


def test_an_unmeasured_device_takes_mamba_ssm_where_it_can_run_the_call(installed):
    installed("triton", "mamba_ssm")
    assert choose_for_cuda(0, True) == "mamba_ssm"
    assert choose_for_cuda(0, False) == "triton"
    installed("triton")
    assert choose_for_cuda(0, True) == "triton"
    installed("mamba_ssm")
    assert choose_for_cuda(0, True) == "mamba_ssm"


def test_a_measured_device_takes_what_was_faster(installed, monkeypatch):
    installed("triton", "mamba_ssm")
    monkeypatch.setitem(cuda.FASTEST, "Device A", "triton")
    assert choose_for_cuda(0, True) == "triton"
    monkeypatch.setitem(cuda.FASTEST, "Device A", "mamba_ssm")
    assert choose_for_cuda(0, True) == "mamba_ssm"
    assert choose_for_cuda(0, False) == "triton"


def test_the_reference_is_never_taken_unasked(installed):
    installed()
    with pytest.raises(ImportError, match=r"Triton is not installed; run `pip install triton`"):
        choose_for_cuda(0, True)
    installed("mamba_ssm")
    with pytest.raises(ImportError, match="pass backend='reference' for the slow"):
        choose_for_cuda(0, False)


def test_triton_says_what_it_lacks(installed, monkeypatch):
    x, weight = torch.zeros(1, 2, 3), torch.zeros(2, 4)
    given = arguments(1, 2, 3, 2)
    installed()
    with pytest.raises(ImportError, match="selective_scan: backend 'triton' is not installed"):
        selective_scan(**given, backend="triton")
    with pytest.raises(ImportError, match="causal_conv1d: backend 'triton' is not installed"):
        causal_conv1d(x, weight, backend="triton")
    pytest.importorskip("triton")
    installed("triton")
    wide = arguments(1, 2, 3, 65)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="at most 64 states, got 65"):
            selective_scan(**wide, backend="triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match=r"selective_scan\.backend 'triton' needs CUDA tensors"):
        selective_scan(**given, backend="triton")
    with pytest.raises(ValueError, match=r"causal_conv1d\.backend 'triton' needs CUDA tensors"):
        causal_conv1d(x, weight, backend="triton")
