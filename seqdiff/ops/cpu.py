"""The CPU kernels as differentiable PyTorch operators."""

from __future__ import annotations

from torch import Tensor

from .reference import causal_conv1d_reference, selective_scan_reference
from .scan_inputs import ScanInputs


def selective_scan_cpu(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the scan on the CPU."""
    return selective_scan_reference(inputs)


def causal_conv1d_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool
) -> Tensor:
    """Run the convolution on the CPU."""
    return causal_conv1d_reference(x, weight, bias, "silu" if silu else None, reverse)
