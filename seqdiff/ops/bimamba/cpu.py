"""Both directions of Mamba on the CPU as one PyTorch operator with a backward of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from seqdiff.ops.bimamba.inputs import Direction
from seqdiff.ops.causal_conv.cpu import run_conv, run_conv_backward
from seqdiff.ops.selective_scan.cpu import run_scan, run_scan_backward


def mamba_both_ways_cpu(
    xz: Tensor, fwd: Direction, rev: Direction, padding: Tensor | None, mirrored: bool
) -> Tensor:
    """``seqdiff.ops.bimamba.directions.mamba_both_ways`` for one floating dtype on the CPU."""
    tensors = [*all_present(fwd), *all_present(rev)]
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in (xz, *tensors))
    return torch.ops.seqdiff.mamba_both_ways(xz, tensors, padding, mirrored, keep)[0].mT


def all_present(weights: Direction) -> list[Tensor]:
    """The weights with a bias of zero where there is none."""
    bias = weights.conv_bias
    bias = torch.zeros_like(weights.D) if bias is None else bias
    conv_weight, _, *rest = weights
    return [conv_weight, bias, *rest]


def halves(xz: Tensor) -> tuple[Tensor, Tensor]:
    """Input and gate as ``(B, D, L)``."""
    x, z = xz.chunk(2, dim=-1)
    return x.mT, z.mT


def maps_of(mapped: Tensor, states: int) -> tuple[Tensor, Tensor]:
    """B and C as ``(B, 1, N, L)``, views of the projected channels ``(B, L, R + 2 N)``."""
    B, C = mapped[..., -2 * states : -states], mapped[..., -states:]
    return B.mT[:, None], C.mT[:, None]


@torch.library.custom_op("seqdiff::mamba_both_ways", mutates_args=())
def _both_ways(
    xz: Tensor, weights: list[Tensor], padding: Tensor | None, mirrored: bool, keep: bool
) -> list[Tensor]:
    """The sum, then, if ``keep``, each direction's convolved input, maps, steps and states."""
    half = len(weights) // 2
    out = torch.empty_like(halves(xz)[0])
    kept = []
    for way, own in enumerate((Direction(*weights[:half]), Direction(*weights[half:]))):
        kept += _one_way(xz, own, padding, mirrored != bool(way), keep, out, accumulate=bool(way))
    return [out, *(kept if keep else [])]


def _one_way(
    xz: Tensor,
    own: Direction,
    padding: Tensor | None,
    reverse: bool,
    keep: bool,
    out: Tensor,
    *,
    accumulate: bool,
) -> list[Tensor]:
    x, z = halves(xz)
    u = run_conv(x, own.conv_weight, own.conv_bias, True, reverse)
    if padding is not None:
        u.masked_fill_(padding[:, None], 0)
    mapped = u.mT @ own.x_proj.mT
    delta = mapped[..., : own.dt_proj.shape[1]] @ own.dt_proj.mT
    inputs = (u, delta.mT, own.A, *maps_of(mapped, own.A.shape[1]), own.D, z, own.dt_bias)
    _, states = run_scan(*inputs, None, True, reverse, keep, out, accumulate=accumulate)
    return [u, mapped, delta, states]


@_both_ways.register_fake
def _both_ways_fake(xz, weights, padding, mirrored, keep):
    from seqdiff.ops.selective_scan.cpu_buffers import saved_shape

    batch, length, width = xz.shape
    half = len(weights) // 2
    out = torch.empty_like(halves(xz)[0])
    kept = []
    for own in (Direction(*weights[:half]), Direction(*weights[half:])):
        mapped = xz.new_empty(batch, length, own.x_proj.shape[0])
        delta = xz.new_empty(batch, length, width // 2)
        shape = saved_shape(out, own.A, *maps_of(mapped, own.A.shape[1]))
        kept += [torch.empty_like(out), mapped, delta, xz.new_empty(shape)]
    return [out, *(kept if keep else [])]


@torch.library.custom_op("seqdiff::mamba_both_ways_backward", mutates_args=())
def _both_ways_backward(
    xz: Tensor,
    weights: list[Tensor],
    kept: list[Tensor],
    padding: Tensor | None,
    mirrored: bool,
    d_out: Tensor,
) -> list[Tensor]:
    """The gradients of ``xz`` and of every weight."""
    half = len(weights) // 2
    d_xz = xz.new_empty(xz.shape)
    grads = []
    for way, own in enumerate((Direction(*weights[:half]), Direction(*weights[half:]))):
        own_kept = kept[4 * way : 4 * way + 4]
        reverse = mirrored != bool(way)
        grads += _one_way_back(
            xz, own, own_kept, padding, reverse, d_out, d_xz, accumulate=bool(way)
        )
    return [d_xz, *grads]


def _one_way_back(
    xz: Tensor,
    own: Direction,
    kept: list[Tensor],
    padding: Tensor | None,
    reverse: bool,
    d_out: Tensor,
    d_xz: Tensor,
    *,
    accumulate: bool,
) -> Direction:
    u, mapped, delta, states = kept
    (x, z), (dx, dz) = halves(xz), halves(d_xz)
    inputs = (u, delta.mT, own.A, *maps_of(mapped, own.A.shape[1]), own.D, z, own.dt_bias)
    du, d_delta, dA, dB, dC, dD, d_dt_bias, _ = run_scan_backward(
        *inputs, True, reverse, states, d_out, None, dz, accumulate=accumulate
    )
    du, d_x_proj, d_dt_proj = maps_back(own, u, mapped, du, d_delta, dB, dC)
    if padding is not None:
        du.masked_fill_(padding[..., None], 0)
    d_conv_weight, d_conv_bias = run_conv_backward(
        x, own.conv_weight, own.conv_bias, True, reverse, du.mT, dx, accumulate=accumulate
    )
    return Direction(d_conv_weight, d_conv_bias, d_x_proj, d_dt_proj, d_dt_bias, dA, dD)


def maps_back(
    own: Direction,
    u: Tensor,
    mapped: Tensor,
    du: Tensor,
    d_delta: Tensor,
    dB: Tensor,
    dC: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """From the scan's gradients through the projections that depend on its input.

    Returns:
        The whole gradient of u, ``(B, L, D)``, and those of ``x_proj`` and ``dt_proj``.
    """
    rank, width = own.dt_proj.shape[1], own.A.shape[1]
    # With the rank, the smallest side, in front, PyTorch's products are up to five times faster.
    dt, d_delta = mapped[..., :rank], d_delta.mT.flatten(0, 1)
    d_dt_proj = torch.bmm(dt.mT, d_delta.view(*u.mT.shape)).sum(0).mT.contiguous()
    d_mapped = torch.empty_like(mapped)
    d_mapped[..., :rank] = (own.dt_proj.mT @ d_delta.mT).mT.view_as(dt)
    for target, grad in zip(maps_of(d_mapped, width), (dB, dC), strict=True):
        target.copy_(grad)
    flat, channels = d_mapped.flatten(0, 1), u.mT.flatten(0, 1)
    du = du.mT.flatten(0, 1).addmm_(flat, own.x_proj).view(u.mT.shape)
    return du, flat.mT @ channels, d_dt_proj


@_both_ways_backward.register_fake
def _both_ways_backward_fake(xz, weights, kept, padding, mirrored, d_out):
    return [xz.new_empty(xz.shape), *(w.new_empty(w.shape) for w in weights)]


def _context(ctx, inputs, output):
    xz, weights, padding, ctx.mirrored, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.weights = len(weights)
    ctx.save_for_backward(xz, padding, *weights, *output[1:])


def _gradients(ctx, grads):
    xz, padding, *rest = ctx.saved_tensors
    weights, kept = rest[: ctx.weights], rest[ctx.weights :]
    if grads[0] is None:
        return None, [None] * len(weights), None, None, None
    d_xz, *d_weights = torch.ops.seqdiff.mamba_both_ways_backward(
        xz, weights, kept, padding, ctx.mirrored, grads[0]
    )
    return d_xz, d_weights, None, None, None


_both_ways.register_autograd(_gradients, setup_context=_context)
