"""The CPU scan as a PyTorch operator: differentiable, and opaque to ``torch.compile``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from seqdiff.ops.cpu_simd.runtime import run_tasks, scan_kernel, view
from seqdiff.ops.selective_scan.cpu_buffers import add_up, gradient_room, saved_shape
from seqdiff.ops.selective_scan.inputs import ScanInputs


def selective_scan_cpu(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the scan on the CPU; nothing of the size of all states is ever held.

    Args:
        inputs: Checked arguments, on the CPU.

    Returns:
        The output in u's dtype and the last state in the compute dtype.
    """
    kind = inputs.compute_dtype
    given = {name: tensor.to(kind) for name, tensor in inputs.tensors().items()}
    B, C = _same_groups(given["B"], given["C"])
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in given.values())
    out, last, _ = torch.ops.seqdiff.selective_scan(
        given["u"],
        given["delta"],
        given["A"],
        B,
        C,
        given.get("D"),
        given.get("z"),
        given.get("delta_bias"),
        given.get("initial_state"),
        inputs.delta_softplus,
        inputs.reverse,
        keep,
    )
    return out.to(inputs.u.dtype), last


def _same_groups(B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Varying maps as ``(Bt, G, N, L)`` with one G; a constant ``(D, N)`` stays."""
    B, C = (m[:, None] if m.ndim == 3 else m for m in (B, C))
    if B.ndim == C.ndim == 4:
        groups = math.lcm(B.shape[1], C.shape[1])
        B, C = (
            m.repeat_interleave(groups // m.shape[1], 1) if m.shape[1] < groups else m
            for m in (B, C)
        )
    return B, C


def scan_arguments(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    softplus: bool,
    reverse: bool,
) -> tuple:
    """What both kernels take first."""
    constant_B, constant_C = B.ndim == 2, C.ndim == 2
    return (
        view(u, u, 3, reverse),
        view(delta, u, 3, reverse),
        view(A, u, 2),
        view(B[None, :, :, None] if constant_B else B, u, 4, reverse and not constant_B),
        view(C[None, :, :, None] if constant_C else C, u, 4, reverse and not constant_C),
        view(None if D is None else D[:, None], u, 2),
        view(z, u, 3, reverse),
        view(None if delta_bias is None else delta_bias[:, None], u, 2),
        softplus,
        constant_B,
        constant_C,
    )


@torch.library.custom_op("seqdiff::selective_scan", mutates_args=())
def _scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial: Tensor | None,
    softplus: bool,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    out = torch.empty_like(u)
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    last, saved = run_scan(*inputs, initial, softplus, reverse, keep, out, accumulate=False)
    return out, last, saved


def run_scan(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial: Tensor | None,
    softplus: bool,
    reverse: bool,
    keep: bool,
    out: Tensor,
    *,
    accumulate: bool,
) -> tuple[Tensor, Tensor]:
    """Write the scan's output into ``out``, or add it; arguments as `_scan` takes them.

    Returns:
        The last state, and what the backward needs if ``keep``.
    """
    last = A.new_empty(u.shape[0], *A.shape)
    saved = u.new_empty(saved_shape(u, A, B, C) if keep else (0, 0, 0, 0))
    arguments = scan_arguments(u, delta, A, B, C, D, z, delta_bias, softplus, reverse)
    places = (view(initial, u, 3), view(out, u, 3, reverse), accumulate)
    tasks = u.shape[0] * saved_shape(u, A, B, C)[2]
    kernel = scan_kernel("scan_forward", u.dtype)
    run_tasks(kernel, (*arguments, *places, view(last, u, 3), saved.numpy()), tasks)
    return last, saved


@_scan.register_fake
def _scan_fake(u, delta, A, B, C, D, z, delta_bias, initial, softplus, reverse, keep):
    last = A.new_empty(u.shape[0], *A.shape)
    saved = u.new_empty(saved_shape(u, A, B, C) if keep else (0, 0, 0, 0))
    return torch.empty_like(u), last, saved


@torch.library.custom_op("seqdiff::selective_scan_backward", mutates_args=())
def _scan_backward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    softplus: bool,
    reverse: bool,
    saved: Tensor,
    d_out: Tensor,
    d_last: Tensor | None,
) -> list[Tensor]:
    dz = u.new_empty(0, 0, 0) if z is None else torch.empty_like(z)
    inputs = (u, delta, A, B, C, D, z, delta_bias)
    du, d_delta, *rest = run_scan_backward(
        *inputs, softplus, reverse, saved, d_out, d_last, dz, accumulate=False
    )
    return [du, d_delta, dz, *rest]


def run_scan_backward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    softplus: bool,
    reverse: bool,
    saved: Tensor,
    d_out: Tensor,
    d_last: Tensor | None,
    dz: Tensor,
    *,
    accumulate: bool,
) -> list[Tensor]:
    """Write the gate's gradient into ``dz``, or add it; arguments as `_scan_backward` takes them.

    Returns:
        The gradients of u, delta, A, B, C, D, the bias and the initial state.
    """
    room = gradient_room(u, delta, A, B, C)
    (du, d_delta), maps, fixed, sums = room
    rest = (
        saved.numpy(),
        view(d_out, u, 3, reverse),
        view(d_last, u, 3),
        *(view(g, u, 3, reverse) for g in (du, d_delta, dz)),
        accumulate,
        *(view(g, u, 5, reverse) for g in maps),
        *(view(g, u, 3) for g in (*fixed, *sums)),
    )
    arguments = scan_arguments(u, delta, A, B, C, D, z, delta_bias, softplus, reverse)
    kernel = scan_kernel("scan_backward", u.dtype)
    run_tasks(kernel, (*arguments, *rest), u.shape[0] * saved.shape[2])
    return add_up(B, C, room)


@_scan_backward.register_fake
def _scan_backward_fake(
    u, delta, A, B, C, D, z, delta_bias, softplus, reverse, saved, d_out, d_last
):
    dz = u.new_empty(0, 0, 0) if z is None else torch.empty_like(z)
    channel = u.new_empty(u.shape[1])
    maps = [m.new_empty(m.shape) for m in (B, C)]
    initial = u.new_empty(u.shape[0], *A.shape)
    return [
        torch.empty_like(u),
        torch.empty_like(delta),
        dz,
        A.new_empty(A.shape),
        *maps,
        channel,
        torch.empty_like(channel),
        initial,
    ]


def _scan_context(ctx, inputs, output):
    u, delta, A, B, C, D, z, delta_bias, initial, softplus, reverse, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(u, delta, A, B, C, D, z, delta_bias, output[2])
    ctx.options = (softplus, reverse)
    ctx.started = initial is not None


def _scan_gradients(ctx, d_out, d_last, d_saved):
    *tensors, saved = ctx.saved_tensors
    D, z, delta_bias = tensors[5:]
    if d_out is None:
        d_out = torch.zeros_like(tensors[0])
    du, d_delta, dz, dA, dB, dC, dD, d_bias, d_initial = torch.ops.seqdiff.selective_scan_backward(
        *tensors, *ctx.options, saved, d_out, d_last
    )
    return (
        du, d_delta, dA, dB, dC,
        None if D is None else dD,
        None if z is None else dz,
        None if delta_bias is None else d_bias,
        d_initial if ctx.started else None,
        None, None, None,
    )  # fmt: skip


_scan.register_autograd(_scan_gradients, setup_context=_scan_context)
