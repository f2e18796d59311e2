"""The selective scan: one call, several kernels."""

from __future__ import annotations

import functools
import warnings

import torch
from jaxtyping import Float
from torch import Tensor

from seqdiff.ops.selective_scan.cuda import choose_for_cuda, require_triton
from seqdiff.ops.selective_scan.inputs import ScanInputs, check_scan_inputs
from seqdiff.ops.selective_scan.reference import selective_scan_reference

BACKENDS = ("auto", "reference", "cpu", "triton", "mamba_ssm")


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
        backend: ``"auto"`` takes the CPU kernel for CPU tensors, and for CUDA tensors
            mamba_ssm's or Triton's, see `choose_for_cuda`; ``"reference"``, ``"cpu"``,
            ``"triton"`` or ``"mamba_ssm"`` selects one.

    Returns:
        The output in u's dtype and, if asked for, the last state in float32 (float64 if any input
        is).

    Raises:
        ValueError: A shape, a dtype, a device or the backend is wrong.
        ImportError: The backend asked for, or any for a CUDA device, is not installed.
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
        from seqdiff.ops.selective_scan.cpu import selective_scan_cpu

        return selective_scan_cpu(inputs)
    if backend == "triton":
        require_triton("selective_scan", inputs.u)
        from seqdiff.ops.selective_scan.triton import selective_scan_triton

        return selective_scan_triton(inputs)
    from seqdiff.ops.selective_scan.cuda import selective_scan_mamba_ssm

    return selective_scan_mamba_ssm(inputs)


def _automatic(inputs: ScanInputs) -> str:
    """Choose by device; on one without any kernel, say once that the reference runs."""
    device = inputs.u.device
    if device.type == "cpu":
        return "cpu"
    if device.type == "cuda":
        plain = inputs.initial_state is None and inputs.compute_dtype != torch.float64
        return choose_for_cuda(device.index, plain)
    _warn_once(device.type)
    return "reference"


@functools.cache
def _warn_once(device: str) -> None:
    warnings.warn(
        f"selective_scan: there is no kernel for {device}; the slow PyTorch reference is used. "
        "To change this, move the tensors to the CPU",
        stacklevel=4,
    )
