"""The CUDA kernel of the mamba_ssm package behind our call."""

from __future__ import annotations

import torch
from torch import Tensor

from .scan_inputs import ScanInputs


def selective_scan_mamba_ssm(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run mamba_ssm's kernel; the reverse direction flips its sequences and flips back.

    Args:
        inputs: Checked arguments, on a CUDA device.

    Returns:
        The output in u's dtype and the last state in float32.

    Raises:
        ValueError: The call needs what that kernel lacks: an initial state or float64.
        ImportError: mamba_ssm is not installed.
    """
    if inputs.u.device.type != "cuda":
        raise ValueError(
            f"selective_scan.backend 'mamba_ssm' needs CUDA tensors, got {inputs.u.device}; "
            "use backend='auto'"
        )
    if inputs.initial_state is not None:
        raise ValueError(
            "selective_scan.initial_state is not supported by backend 'mamba_ssm'; "
            "use backend='triton'"
        )
    if inputs.compute_dtype == torch.float64:
        raise ValueError(
            "selective_scan: backend 'mamba_ssm' has no float64 kernel; use backend='triton'"
        )
    try:
        from mamba_ssm.ops.selective_scan_interface import (  # pyright: ignore[reportMissingImports]
            selective_scan_fn,
        )
    except ImportError as error:
        raise ImportError(
            "selective_scan: backend 'mamba_ssm' is not installed; run `pip install -e '.[cuda]'`"
        ) from error
    u, delta, z, B, C = (
        _oriented(v, inputs.reverse)
        for v in (inputs.u, inputs.delta.to(inputs.u.dtype), inputs.z, inputs.B, inputs.C)
    )
    out, last_state = selective_scan_fn(
        u,
        delta,
        inputs.A.float(),
        B,
        C,
        None if inputs.D is None else inputs.D.float(),
        z,
        None if inputs.delta_bias is None else inputs.delta_bias.float(),
        inputs.delta_softplus,
        return_last_state=True,
    )
    return (out.flip(-1) if inputs.reverse else out).to(inputs.u.dtype), last_state


def _oriented(tensor: Tensor | None, reverse: bool) -> Tensor | None:
    """Flip what runs over positions; a constant ``(D, N)`` map does not."""
    return tensor.flip(-1) if reverse and tensor is not None and tensor.ndim > 2 else tensor
