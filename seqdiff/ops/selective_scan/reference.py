"""The scan in plain PyTorch, as a reference for the kernels; it is slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from seqdiff.ops.selective_scan.inputs import ScanInputs


def selective_scan_reference(
    inputs: ScanInputs,
) -> tuple[Float[Tensor, "Bt D L"], Float[Tensor, "Bt D N"]]:
    """Run the recurrence position by position (Gu and Dao 2023, arXiv:2312.00752, equation 2).

    ``h_l = exp(delta_l A) h_{l-1} + delta_l B_l u_l`` and ``y_l = C_l h_l + D u_l``, gated by
    ``silu(z_l)``.

    Returns:
        The output in u's dtype and the last state in the compute dtype.
    """
    kind = inputs.compute_dtype
    u, A = inputs.u.to(kind), inputs.A.to(kind)
    delta = _step_sizes(inputs)
    B, C = (_per_channel(m.to(kind), u) for m in (inputs.B, inputs.C))
    state = u.new_zeros(*u.shape[:2], A.shape[1])
    if inputs.initial_state is not None:
        state = inputs.initial_state.to(kind)
    length = u.shape[2]
    outputs: list[Tensor] = [u[..., 0]] * length
    for place in reversed(range(length)) if inputs.reverse else range(length):
        step = delta[..., place, None]
        drive = step * B[..., place] * u[..., place, None]
        state = torch.exp(step * A) * state + drive
        outputs[place] = (state * C[..., place]).sum(-1)
    out = torch.stack(outputs, -1)
    if inputs.D is not None:
        out = out + inputs.D.to(kind)[:, None] * u
    if inputs.z is not None:
        out = out * F.silu(inputs.z.to(kind))
    return out.to(inputs.u.dtype), state


def _step_sizes(inputs: ScanInputs) -> Tensor:
    delta = inputs.delta.to(inputs.compute_dtype)
    if inputs.delta_bias is not None:
        delta = delta + inputs.delta_bias.to(delta.dtype)[:, None]
    return F.softplus(delta) if inputs.delta_softplus else delta


def _per_channel(matrix: Tensor, u: Tensor) -> Tensor:
    """Return B or C, in any of its shapes, as ``(Bt or 1, D or 1, N, L)``.

    Only a map with groups is copied.
    """
    if matrix.ndim == 2:
        return matrix[None, :, :, None].expand(1, -1, -1, u.shape[2])
    if matrix.ndim == 3:
        return matrix[:, None]
    return matrix.repeat_interleave(u.shape[1] // matrix.shape[1], dim=1)
