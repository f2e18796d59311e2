"""CUDA backends of the scan: the choice of ``backend="auto"``, and the kernel of mamba_ssm."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

from seqdiff.ops.selective_scan.inputs import ScanInputs

P = ParamSpec("P")
R = TypeVar("R")

FASTEST: dict[str, str] = {"NVIDIA H100 80GB HBM3": "triton"}
"""The faster of "triton" and "mamba_ssm" for each device name, by ``benchmarks.caduceus_step``.

On a device that is not listed, mamba_ssm is used if installed.
"""


def _constant_in_a_graph(function: Callable[P, R]) -> Callable[P, R]:
    """Mark a function whose result ``torch.compile`` may treat as a constant.

    `torch.compiler.assume_constant_result` does the same, but would import the tracer right away.
    """
    function.__dict__["_dynamo_marked_constant"] = True
    return function


@_constant_in_a_graph
def choose_for_cuda(index: int | None, plain: bool) -> str:
    """Choose the scan's kernel.

    Args:
        index: Number of the device.
        plain: Whether mamba_ssm's kernel supports the arguments, which it does without an initial
            state and float64.

    Returns:
        "triton" or "mamba_ssm".

    Raises:
        ImportError: No backend that supports the arguments is installed.
    """
    usable = [name for name in ("mamba_ssm", "triton") if _installed(name)]
    if not plain:
        usable = [name for name in usable if name != "mamba_ssm"]
    if not usable:
        raise ImportError(
            "selective_scan: CUDA tensors need a kernel and Triton is not installed; "
            "run `pip install triton`, or pass backend='reference' for the slow PyTorch loop"
        )
    best = FASTEST.get(torch.cuda.get_device_name(index)) if len(usable) > 1 else None
    return best or usable[0]


def require_triton(owner: str, tensor: Tensor) -> None:
    """Check that Triton is installed and supports the device of a tensor.

    Raises:
        ImportError: Triton is not installed.
        ValueError: The tensor is not on a CUDA device. CPU tensors are allowed if Triton's
            interpreter is on.
    """
    if not has_triton():
        raise ImportError(f"{owner}: backend 'triton' is not installed; run `pip install triton`")
    interpreted = tensor.device.type == "cpu" and os.environ.get("TRITON_INTERPRET") == "1"
    if tensor.device.type != "cuda" and not interpreted:
        raise ValueError(
            f"{owner}.backend 'triton' needs CUDA tensors, got {tensor.device}; "
            "use backend='auto', or set TRITON_INTERPRET=1 to debug the kernels on the CPU"
        )


@_constant_in_a_graph
def has_triton() -> bool:
    """Whether Triton is installed."""
    return _installed("triton")


def _installed(name: str) -> bool:
    """Whether the package of a backend can be used.

    mamba_ssm is imported to find out, since one that was built for another version of PyTorch is
    present but fails to import.
    """
    if name == "triton":
        return importlib.util.find_spec("triton") is not None
    try:
        importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    except (ImportError, OSError):
        return False
    return True


def selective_scan_mamba_ssm(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the kernel of mamba_ssm; with ``reverse``, the sequences are flipped before and after.

    Returns:
        The output in u's dtype and the last state in float32.

    Raises:
        ValueError: The tensors are not on a CUDA device, there is an initial state, or an input is
            float64. The kernel supports none of these.
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
    """Flip a tensor along positions if ``reverse``; a constant ``(D, N)`` map has none."""
    return tensor.flip(-1) if reverse and tensor is not None and tensor.ndim > 2 else tensor
