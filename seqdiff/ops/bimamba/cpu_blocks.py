"""Mamba over rows cut into blocks, on the CPU, as one PyTorch operator with its own backward."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqdiff.ops.bimamba.cpu import all_present, maps_back, maps_of
from seqdiff.ops.bimamba.cpu_block_run import (
    Cut,
    Inputs,
    empty_states,
    run_block_conv,
    run_block_conv_backward,
    run_block_scan,
    run_block_scan_backward,
)
from seqdiff.ops.bimamba.inputs import Direction
from seqdiff.ops.selective_scan.cpu_blocks import CHUNK
from seqdiff.ops.selective_scan.cpu_buffers import saved_shape


def gather_tails(x: Tensor, tail: Tensor, block_size: int) -> Tensor:
    """The ``W - 1`` inputs before every border ``(B, n + 1, W - 1, D)``.

    Args:
        x: Inputs of n blocks ``(B, L, D)``.
        tail: Inputs before them ``(B, W - 1, D)``.
        block_size: Tokens of a block.
    """
    count, width = x.shape[1] // block_size + 1, tail.shape[1]
    tails = x.new_empty(len(x), count, width, x.shape[2])
    for column, early, before, within in _columns(count, width, block_size):
        tails[:, :early, column] = tail[:, before][:, :early]
        tails[:, early:, column] = x[:, within]
    return tails


def spread_tails(d_tails: Tensor, block_size: int, dx: Tensor, d_tail: Tensor) -> None:
    """Add the gradients of what ``gather_tails`` gave to those of what it was given."""
    count, width = d_tails.shape[1:3]
    for column, early, before, within in _columns(count, width, block_size):
        d_tail[:, before][:, :early] += d_tails[:, :early, column]
        dx[:, within] += d_tails[:, early:, column]


def _columns(count: int, width: int, size: int) -> Iterator[tuple[int, int, slice, slice]]:
    """For each of a tail's inputs: at how many borders it lies before x, and where, here or there.

    Input c of the tail before border s lies at position ``s size + c - width``.
    """
    for column in range(width):
        early = min(count, -(-(width - column) // size))
        first = early * size + column - width
        before, within = (
            slice(column, width, size),
            slice(first, first + (count - early) * size, size),
        )
        yield column, early, before, within


_WEIGHTS = len(Direction._fields)


def mamba_blocks_cpu(
    xz: Tensor,
    fwd: Direction,
    rev: Direction | None,
    block_size: int,
    borders: tuple[Tensor, Tensor],
    padding: Tensor | None,
    *,
    through: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run ``seqdiff.ops.bimamba.blocks`` for one floating dtype on the CPU.

    Args:
        xz: Input and gate; the input alone where ``rev`` is None.
        fwd: Weights of the direction from left to right.
        rev: Weights of the other; None where nobody reads the output.
        block_size: Tokens of a block.
        borders: States and tails before every block, or before the first if through.
        padding: True where the input of the scan is to be zero.
        through: Whether blocks follow each other.

    Returns:
        The output ``(B, L, D)`` and, if through, the states and tails of all borders.
    """
    weights = [*all_present(fwd), *(() if rev is None else all_present(rev))]
    given = (xz, *weights, *borders)
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    out, states, tails, *_ = torch.ops.seqdiff.mamba_blocks(
        xz, weights, *borders, padding, block_size, through, keep
    )
    return out.mT, states, tails


def _ways(xz: Tensor, weights: list[Tensor]) -> tuple[Direction, Direction | None]:
    rev = Direction(*weights[_WEIGHTS:]) if len(weights) > _WEIGHTS else None
    return Direction(*weights[:_WEIGHTS]), rev


def _halves(xz: Tensor, own: Direction) -> tuple[Tensor, Tensor | None]:
    """Input and, where there is one, gate as ``(B, D, L)``."""
    channels = len(own.D)
    return xz[..., :channels].mT, xz[..., channels:].mT if xz.shape[2] > channels else None


def _scan_inputs(
    own: Direction, u: Tensor, mapped: Tensor, delta: Tensor, z: Tensor | None
) -> Inputs:
    return Inputs(u, delta.mT, own.A, *maps_of(mapped, own.A.shape[1]), own.D, z, own.dt_bias)


@torch.library.custom_op("seqdiff::mamba_blocks", mutates_args=())
def _blocks(
    xz: Tensor,
    weights: list[Tensor],
    states: Tensor,
    tails: Tensor,
    padding: Tensor | None,
    block_size: int,
    through: bool,
    keep: bool,
) -> list[Tensor]:
    """Output, borders' states and tails, then, if ``keep``, what each direction keeps."""
    fwd, rev = _ways(xz, weights)
    batch, length, _ = xz.shape
    x = _halves(xz, fwd)[0]
    out = None if rev is None else torch.empty_like(x)
    borders, ends = states, xz.new_empty(0)
    if through:
        borders = empty_states(xz, batch, length // block_size + 1, fwd.A)
        borders[:, 0] = states[:, 0]
        ends = gather_tails(x.mT, tails[:, 0], block_size)
    cuts = Cut(length if through else block_size, False, False), Cut(block_size, False, through)
    kept = _one_way(xz, fwd, cuts, borders, tails, padding, out, keep, add=False)
    if rev is not None:
        back = Cut(block_size, True, False)
        kept += _one_way(xz, rev, (back, back), None, None, padding, out, keep, add=True)
    out = xz.new_empty(0, 0, 0) if out is None else out
    return [out, borders if through else xz.new_empty(0), ends, *(kept if keep else [])]


def _one_way(
    xz: Tensor,
    own: Direction,
    cuts: tuple[Cut, Cut],
    borders: Tensor | None,
    tails: Tensor | None,
    padding: Tensor | None,
    out: Tensor | None,
    keep: bool,
    *,
    add: bool,
) -> list[Tensor]:
    x, z = _halves(xz, own)
    u = run_block_conv(x, own.conv_weight, own.conv_bias, cuts[0], tails)
    if padding is not None:
        u.masked_fill_(padding[:, None], 0)
    mapped = u.mT @ own.x_proj.mT
    delta = mapped[..., : own.dt_proj.shape[1]] @ own.dt_proj.mT
    inputs = _scan_inputs(own, u, mapped, delta, z)
    return [u, mapped, delta, run_block_scan(inputs, cuts[1], borders, out, keep, add=add)]


@_blocks.register_fake
def _blocks_fake(xz, weights, states, tails, padding, block_size, through, keep):
    fwd, rev = _ways(xz, weights)
    x, batch, length = _halves(xz, fwd)[0], xz.shape[0], xz.shape[1]
    count, kept = length // block_size + 1, []
    for own in (fwd,) if rev is None else (fwd, rev):
        mapped = xz.new_empty(batch, length, own.x_proj.shape[0])
        rows, width = saved_shape(x, own.A, *maps_of(mapped, own.A.shape[1]))[2:]
        chunks = -(-length // block_size) * ((block_size - 1) // CHUNK)
        saved = xz.new_empty((batch, chunks, rows, width) if chunks else (0,) * 4)
        kept += [torch.empty_like(x), mapped, xz.new_empty(batch, length, len(own.D)), saved]
    return [
        xz.new_empty(0, 0, 0) if rev is None else torch.empty_like(x),
        empty_states(xz, batch, count, fwd.A) if through else xz.new_empty(0),
        xz.new_empty(batch, count, *tails.shape[2:]) if through else xz.new_empty(0),
        *(kept if keep else []),
    ]


@torch.library.custom_op("seqdiff::mamba_blocks_backward", mutates_args=())
def _blocks_backward(
    xz: Tensor,
    weights: list[Tensor],
    borders: Tensor,
    tails: Tensor,
    kept: list[Tensor],
    padding: Tensor | None,
    block_size: int,
    through: bool,
    d_out: Tensor | None,
    d_borders: Tensor | None,
    d_ends: Tensor | None,
) -> list[Tensor]:
    """The gradients of ``xz``, of the given states and tails, and of every weight."""
    fwd, rev = _ways(xz, weights)
    d_xz, length = torch.empty_like(xz), xz.shape[1]
    flows = empty_states(xz, len(xz), borders.shape[1], fwd.A)
    if through:
        flows = flows.zero_() if d_borders is None else flows.copy_(d_borders)
    cuts = Cut(length if through else block_size, False, False), Cut(block_size, False, through)
    grads, d_tails = _one_way_back(
        xz, fwd, cuts, borders, tails, kept[:4], padding, d_out, flows, d_xz, add=False
    )
    if rev is not None and d_out is not None:
        back = Cut(block_size, True, False)
        grads += _one_way_back(
            xz, rev, (back, back), None, None, kept[4:], padding, d_out, None, d_xz, add=True
        )[0]
    elif rev is not None:
        grads += [torch.zeros_like(w) for w in weights[_WEIGHTS:]]
    assert d_tails is not None  # as tails were given
    if through and d_ends is not None:
        spread_tails(d_ends, block_size, _halves(d_xz, fwd)[0].mT, d_tails[:, 0])
    return [d_xz, flows[:, :1].clone() if through else flows, d_tails, *grads]


def _one_way_back(
    xz: Tensor,
    own: Direction,
    cuts: tuple[Cut, Cut],
    borders: Tensor | None,
    tails: Tensor | None,
    kept: list[Tensor],
    padding: Tensor | None,
    d_out: Tensor | None,
    flows: Tensor | None,
    d_xz: Tensor,
    *,
    add: bool,
) -> tuple[list, Tensor | None]:
    u, mapped, delta, saved = kept
    (x, z), (dx, dz) = _halves(xz, own), _halves(d_xz, own)
    inputs = _scan_inputs(own, u, mapped, delta, z)
    du, d_delta, dA, dB, dC, dD, d_dt_bias = run_block_scan_backward(
        inputs, cuts[1], borders, saved, d_out, flows, dz, add=add
    )
    du, d_x_proj, d_dt_proj = maps_back(own, u, mapped, du, d_delta, dB, dC)
    if padding is not None:
        du.masked_fill_(padding[..., None], 0)
    filters = (x, own.conv_weight, own.conv_bias, cuts[0], tails)
    d_weight, d_bias, d_tails = run_block_conv_backward(*filters, du.mT, dx, add=add)
    return [d_weight, d_bias, d_x_proj, d_dt_proj, d_dt_bias, dA, dD], d_tails


@_blocks_backward.register_fake
def _blocks_backward_fake(
    xz, weights, borders, tails, kept, padding, block_size, through, d_out, d_borders, d_ends
):
    count = 1 if through else borders.shape[1]
    states = empty_states(xz, len(xz), count, weights[_WEIGHTS - 2])
    return [
        torch.empty_like(xz),
        states,
        tails.new_empty(tails.shape),
        *(w.new_empty(w.shape) for w in weights),
    ]


def _context(ctx, inputs, output):
    xz, weights, states, tails, padding, ctx.block_size, ctx.through, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.weights = len(weights)
    borders = output[1] if ctx.through else states
    ctx.save_for_backward(xz, borders, tails, padding, *weights, *output[3:])


def _gradients(ctx, grads):
    xz, borders, tails, padding, *rest = ctx.saved_tensors
    weights, kept = rest[: ctx.weights], rest[ctx.weights :]
    d_xz, d_states, d_tails, *d_weights = torch.ops.seqdiff.mamba_blocks_backward(
        xz, weights, borders, tails, kept, padding, ctx.block_size, ctx.through, *grads[:3]
    )
    return d_xz, d_weights, d_states, d_tails, None, None, None, None


_blocks.register_autograd(_gradients, setup_context=_context)
