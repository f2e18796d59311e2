"""The CPU kernels as PyTorch operators: differentiable, and opaque to ``torch.compile``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .cpu_runtime import conv_kernel, run_tasks, scan_kernel, view
from .cpu_scan import CHUNK, LANES, TILES, blocks_per_group
from .scan_inputs import ScanInputs


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


def _groups(B: Tensor, C: Tensor) -> int:
    return max(m.shape[1] if m.ndim == 4 else 1 for m in (B, C))


def _saved_shape(u: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[int, int, int, int]:
    groups = _groups(B, C)
    rows = groups * blocks_per_group(u.shape[1], groups)
    return u.shape[0], -(-u.shape[2] // CHUNK), rows, TILES * A.shape[1] * LANES


def _scan_arguments(
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
    out, last, saved = _scan_fake(
        u, delta, A, B, C, D, z, delta_bias, initial, softplus, reverse, keep
    )
    arguments = _scan_arguments(u, delta, A, B, C, D, z, delta_bias, softplus, reverse)
    rest = (view(initial, u, 3), view(out, u, 3, reverse), view(last, u, 3), saved.numpy())
    tasks = u.shape[0] * _saved_shape(u, A, B, C)[2]
    run_tasks(scan_kernel("scan_forward", u.dtype), (*arguments, *rest), tasks)
    return out, last, saved


@_scan.register_fake
def _scan_fake(u, delta, A, B, C, D, z, delta_bias, initial, softplus, reverse, keep):
    last = A.new_empty(u.shape[0], *A.shape)
    saved = u.new_empty(_saved_shape(u, A, B, C) if keep else (0, 0, 0, 0))
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
    batch, channels, length = u.shape
    groups, states = _groups(B, C), A.shape[1]
    blocks = saved.shape[2] // groups
    grads = [torch.empty_like(t) for t in (u, delta)]
    grads.append(u.new_empty(0, 0, 0) if z is None else torch.empty_like(z))
    per_row = u.new_empty(batch, channels, states)
    varying = u.new_empty(batch, groups, blocks, states, length)
    maps, fixed = [], []
    for m in (B, C):
        maps.append(torch.empty_like(varying) if m.ndim == 4 else u.new_empty((0,) * 5))
        fixed.append(torch.empty_like(per_row) if m.ndim == 2 else u.new_empty(0, 0, 0))
    dA, d_initial = torch.empty_like(per_row), torch.empty_like(per_row)
    dD, d_bias = u.new_empty(batch, channels, 1), u.new_empty(batch, channels, 1)
    arguments = _scan_arguments(u, delta, A, B, C, D, z, delta_bias, softplus, reverse)
    rest = (
        saved.numpy(),
        view(d_out, u, 3, reverse),
        view(d_last, u, 3),
        *(view(g, u, 3, reverse) for g in grads),
        view(dA, u, 3),
        *(view(g, u, 5, reverse) for g in maps),
        *(view(g, u, 3) for g in fixed),
        view(dD, u, 3),
        view(d_bias, u, 3),
        view(d_initial, u, 3),
    )
    run_tasks(scan_kernel("scan_backward", u.dtype), (*arguments, *rest), batch * saved.shape[2])
    dB, dC = (
        v.sum(2) if m.ndim == 4 else f.sum(0) for m, v, f in zip((B, C), maps, fixed, strict=True)
    )
    return [*grads, dA.sum(0), dB, dC, dD.sum((0, 2)), d_bias.sum((0, 2)), d_initial]


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


def causal_conv1d_cpu(
    x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool
) -> Tensor:
    """Run the convolution on the CPU, in float32 or, if any input is in it, float64.

    Args:
        x: Input ``(B, D, L)``.
        weight: Filter ``(D, W)``.
        bias: ``(D,)``.
        silu: Whether SiLU follows.
        reverse: Look right instead of left.

    Returns:
        The filtered input in x's dtype.
    """
    given = [t for t in (x, weight, bias) if t is not None]
    kind = torch.float64 if any(t.dtype == torch.float64 for t in given) else torch.float32
    offset = None if bias is None else bias.to(kind)
    out = torch.ops.seqdiff.causal_conv1d(x.to(kind), weight.to(kind), offset, silu, reverse)
    return out.to(x.dtype)


@torch.library.custom_op("seqdiff::causal_conv1d", mutates_args=())
def _conv(x: Tensor, weight: Tensor, bias: Tensor | None, silu: bool, reverse: bool) -> Tensor:
    out = torch.empty_like(x)
    offset = view(None if bias is None else bias[:, None], x, 2)
    arguments = (view(x, x, 3, reverse), view(weight, x, 2), offset, silu, view(out, x, 3, reverse))
    run_tasks(conv_kernel("conv_forward", x.dtype), arguments, x.shape[0] * -(-x.shape[1] // LANES))
    return out


@_conv.register_fake
def _conv_fake(x, weight, bias, silu, reverse):
    return torch.empty_like(x)


@torch.library.custom_op("seqdiff::causal_conv1d_backward", mutates_args=())
def _conv_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    silu: bool,
    reverse: bool,
    d_out: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x)
    d_weight = x.new_empty(x.shape[0], *weight.shape)
    d_bias = x.new_empty(x.shape[0], x.shape[1], 1)
    offset = view(None if bias is None else bias[:, None], x, 2)
    arguments = (
        view(x, x, 3, reverse), view(weight, x, 2), offset, silu, view(d_out, x, 3, reverse),
        view(dx, x, 3, reverse), view(d_weight, x, 3), view(d_bias, x, 3),
    )  # fmt: skip
    run_tasks(
        conv_kernel("conv_backward", x.dtype), arguments, x.shape[0] * -(-x.shape[1] // LANES)
    )
    return dx, d_weight.sum(0), d_bias.sum((0, 2))


@_conv_backward.register_fake
def _conv_backward_fake(x, weight, bias, silu, reverse, d_out):
    return torch.empty_like(x), weight.new_empty(weight.shape), weight.new_empty(weight.shape[0])


def _conv_context(ctx, inputs, output):
    x, weight, bias, silu, reverse = inputs
    ctx.save_for_backward(x, weight, bias)
    ctx.options = (silu, reverse)


def _conv_gradients(ctx, d_out):
    x, weight, bias = ctx.saved_tensors
    dx, d_weight, d_bias = torch.ops.seqdiff.causal_conv1d_backward(
        x, weight, bias, *ctx.options, d_out
    )
    return dx, d_weight, None if bias is None else d_bias, None, None


_conv.register_autograd(_conv_gradients, setup_context=_conv_context)
