"""The selective scan, and the choice of its kernel."""

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
    """Run the input-dependent linear state space model of Mamba over a sequence.

    With ``d = softplus(delta + delta_bias)``: ``h_l = exp(d_l A) h_{l-1} + d_l B_l u_l`` and
    ``out_l = (C_l h_l + D u_l) silu(z_l)`` (Gu and Dao 2023, arXiv:2312.00752, section 3).
    Tensors may have any strides; on the CPU, the fastest layout has adjacent channels (a transposed
    ``(Bt, L, D)``). All tensors have gradients, including the initial and the last state.

    Args:
        u: Input.
        delta: Step sizes before bias and softplus.
        A: Decay rates, normally negative.
        B: Input map: one for all channels, one for each group of channels, or constant over
            positions with one for each channel.
        C: Output map, in any of the shapes that B may have.
        D: Skip weight; None for no skip connection.
        z: Gate; None for no gate.
        delta_bias: Added to delta before softplus.
        delta_softplus: Whether delta passes through softplus.
        return_last_state: Also return the state after the last position read.
        initial_state: State before the first position read; zeros by default.
        reverse: Read positions from right to left, as if the sequences were flipped before and
            after. The last state is then the one after position 0.
        backend: ``"auto"`` uses the CPU kernel for CPU tensors, and the kernel of mamba_ssm or
            Triton for CUDA tensors, see `choose_for_cuda`. ``"reference"``, ``"cpu"``, ``"triton"``
            and ``"mamba_ssm"`` select one.

    Returns:
        The output in u's dtype and, if ``return_last_state``, the last state in float32 (float64 if
        any input is float64).

    Raises:
        ValueError: A shape, a dtype, a device or the backend is wrong.
        ImportError: The selected backend is not installed, or no backend for CUDA tensors is.
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
    """Choose the backend for the device; warn once if only the slow reference supports it."""
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
