"""The selective scan: one call, several kernels."""

from __future__ import annotations

import functools
import importlib
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from .reference import selective_scan_reference
from .scan_inputs import ScanInputs, check_scan_inputs

BACKENDS = ("auto", "reference", "cpu", "mamba_ssm")


def selective_scan(
    u: Float[Tensor, "Bt D L"],
    delta: Float[Tensor, "Bt D L"],
    A: Float[Tensor, "D N"],
    B: Float[Tensor, "Bt N L"] | Float[Tensor, "Bt G N L"] | Float[Tensor, "D N"],
    C: Float[Tensor, "Bt N L"] | Float[Tensor, "Bt H N L"] | Float[Tensor, "D N"],
    D: Float[Tensor, " D"] | None = None,
    z: Float[Tensor, "Bt D L"] | None = None,
    delta_bias: Float[Tensor, " D"] | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: Float[Tensor, "Bt D N"] | None = None,
    reverse: bool = False,
    backend: str = "auto",
) -> Float[Tensor, "Bt D L"] | tuple[Float[Tensor, "Bt D L"], Float[Tensor, "Bt D N"]]:
    """Run the input-dependent linear state space of Mamba over a sequence.

    With ``d = softplus(delta + delta_bias)``: ``h_l = exp(d_l A) h_{l-1} + d_l B_l u_l`` and
    ``out_l = (C_l h_l + D u_l) silu(z_l)`` (Gu and Dao 2023, arXiv:2312.00752, section 3). Every
    tensor may have any strides; channels adjacent in memory (a transposed ``(Bt, L, D)``) are the
    fastest layout on the CPU. Gradients flow to every tensor and through both states.

    Args:
        u: Input.
        delta: Step sizes before bias and softplus.
        A: Decay rates, normally negative.
        B: Input map: shared by all channels, by group of channels, or constant over positions.
        C: Output map, in any of B's forms.
        D: Skip weight; none adds nothing.
        z: Gate; none leaves the output ungated.
        delta_bias: Added to delta before softplus.
        delta_softplus: Whether delta passes through softplus.
        return_last_state: Also return the state after the last position read.
        initial_state: State before the first position read; zero when absent.
        reverse: Read from right to left, so equal to flipping every sequence, scanning and
            flipping back; the last state is then the one after position 0.
        backend: ``"auto"`` takes the CPU kernel for CPU tensors and mamba_ssm's for CUDA ones;
            ``"reference"``, ``"cpu"`` or ``"mamba_ssm"`` insist.

    Returns:
        The output in u's dtype and, if asked for, the last state in float32 (float64 if any input
        is).

    Raises:
        ValueError: A shape, a dtype, a device or the backend is wrong.
        ImportError: The backend asked for is not installed.
    """
    inputs = ScanInputs(u, delta, A, B, C, D, z, delta_bias, initial_state, delta_softplus, reverse)
    check_scan_inputs(inputs)
    if backend not in BACKENDS:
        raise ValueError(f"selective_scan.backend must be one of {BACKENDS}, got {backend!r}")
    chosen = _automatic(inputs) if backend == "auto" else backend
    out, last_state = _run(chosen, inputs)
    return (out, last_state) if return_last_state else out


def _run(backend: str, inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    if backend == "reference":
        return selective_scan_reference(inputs)
    if backend == "cpu":
        if inputs.u.device.type != "cpu":
            raise ValueError(
                f"selective_scan.backend 'cpu' needs CPU tensors, got {inputs.u.device}; "
                "use backend='auto'"
            )
        from .cpu_scan_op import selective_scan_cpu

        return selective_scan_cpu(inputs)
    from .mamba_ssm import selective_scan_mamba_ssm

    return selective_scan_mamba_ssm(inputs)


def _automatic(inputs: ScanInputs) -> str:
    """Choose by device; a missing kernel is named once, with the command that installs it."""
    if inputs.u.device.type == "cpu":
        return "cpu"
    if inputs.u.device.type == "cuda" and _has_mamba_ssm():
        if inputs.initial_state is None and inputs.compute_dtype != torch.float64:
            return "mamba_ssm"
        _warn_once("mamba_ssm has no initial_state and no float64", "pass backend='reference'")
        return "reference"
    remedy = "run `pip install seqdiff[cuda]`"
    if inputs.u.device.type != "cuda":
        remedy = "move the tensors to the CPU"
    _warn_once(f"no fused kernel for {inputs.u.device.type} is installed", remedy)
    return "reference"


@functools.cache
def _has_mamba_ssm() -> bool:
    """Whether its kernel imports: a build for another torch is found but does not."""
    try:
        importlib.import_module("mamba_ssm.ops.selective_scan_interface")
    except (ImportError, OSError):
        return False
    return True


@functools.cache
def _warn_once(reason: str, remedy: str) -> None:
    warnings.warn(
        f"selective_scan: {reason}; the slow PyTorch reference is used. To change this, {remedy}",
        stacklevel=4,
    )
