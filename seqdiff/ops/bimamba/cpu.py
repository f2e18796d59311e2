"""Mamba on the CPU as one PyTorch operator: both directions, over whole rows or token blocks.

The docstring of `seqdiff.ops.cpu_simd` explains token blocks, borders and tails.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from seqdiff.ops.bimamba.inputs import Direction
from seqdiff.ops.causal_conv.cpu import run_conv, run_conv_backward
from seqdiff.ops.cpu_simd.cuts import Cut
from seqdiff.ops.operators import differentiable_operator
from seqdiff.ops.selective_scan.cpu import (
    KernelInputs,
    empty_states,
    run_scan,
    run_scan_backward,
)

_WEIGHTS = len(Direction._fields)
_KEPT = 3


def mamba_cpu(
    xz: Tensor,
    fwd: Direction,
    rev: Direction | None,
    padding: Tensor | None,
    *,
    block_size: int | None = None,
    borders: tuple[Tensor, Tensor] | None = None,
    through: bool = False,
    mirrored: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run both directions on the CPU and add their outputs.

    Under autocast to bfloat16, the products with ``x_proj`` are computed in bfloat16. Convolution
    and scan are always computed in the dtype of the weights.

    Args:
        xz: Input and gate side by side, or the input alone if ``rev`` is None. All tensors have the
            same dtype, float32 or float64; under autocast, ``xz`` may also be in bfloat16.
        fwd: Weights of the direction from left to right.
        rev: Weights of the other direction; with None, only states and tails are computed.
        padding: True where the input of the scan is set to zero.
        block_size: Length of a token block; the whole row by default.
        borders: States and tails before every token block, or, if ``through``, before the first;
            zeros by default.
        through: Whether the direction from left to right continues from each token block into the
            next. ``block_size`` must then divide the length of the row.
        mirrored: Whether to swap the directions.

    Returns:
        The output ``(B, L, D)`` in the dtype of ``xz``, which is empty if ``rev`` is None; and the
        states and the tails at all borders, which are empty unless ``through``.
    """
    present = [*_all_present(fwd), *(() if rev is None else _all_present(rev))]
    given = (xz, *present, *(borders or ()))
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in given)
    size, half = block_size or xz.shape[1], torch.is_autocast_enabled("cpu")
    rows = xz.to(fwd.D.dtype)
    out, states, tails, *_ = torch.ops.seqdiff.mamba(
        rows, present, *(borders or (None, None)), padding, size, through, mirrored, half, keep
    )
    return out.mT.to(xz.dtype), states, tails


def _all_present(weights: Direction) -> list[Tensor]:
    """Return the weights, with zeros for a convolution without bias."""
    conv_weight, bias, *rest = weights
    return [conv_weight, torch.zeros_like(weights.D) if bias is None else bias, *rest]


def _gather_tails(x: Tensor, tail: Tensor, block_size: int) -> Tensor:
    """Collect the tails at all borders ``(B, n + 1, W - 1, D)``.

    Args:
        x: Inputs of n token blocks ``(B, L, D)``.
        tail: The ``W - 1`` inputs before x ``(B, W - 1, D)``.
        block_size: Length of a token block.
    """
    count, width = x.shape[1] // block_size + 1, tail.shape[1]
    tails = x.new_empty(len(x), count, width, x.shape[2])
    for column, early, before, within in _columns(count, width, block_size):
        tails[:, :early, column] = tail[:, before][:, :early]
        tails[:, early:, column] = x[:, within]
    return tails


def _spread_tails(d_tails: Tensor, block_size: int, dx: Tensor, d_tail: Tensor) -> None:
    """Add the gradients of the tails from ``_gather_tails`` to those of its arguments."""
    count, width = d_tails.shape[1:3]
    for column, early, before, within in _columns(count, width, block_size):
        d_tail[:, before][:, :early] += d_tails[:, :early, column]
        dx[:, within] += d_tails[:, early:, column]


def _columns(count: int, width: int, size: int) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield the source of each of the ``width`` inputs of a tail, over all borders.

    Input c of the tail at border s is at position ``s * size + c - width`` of x. At the first
    borders, this is negative and the input comes from the given tail.

    Yields:
        The number c of the input, the number of borders at which it comes from the given tail, its
        positions in the given tail, and its positions in x.
    """
    for column in range(width):
        early = min(count, -(-(width - column) // size))
        first = early * size + column - width
        before, within = (
            slice(column, width, size),
            slice(first, first + (count - early) * size, size),
        )
        yield column, early, before, within


def _ways(
    xz: Tensor, weights: list[Tensor], block_size: int, through: bool, mirrored: bool
) -> list[tuple[Direction, Cut, Cut]]:
    """Return for each direction its weights and the token blocks of its convolution and scan."""
    fwd = Direction(*weights[:_WEIGHTS])
    conv = Cut(xz.shape[1] if through else block_size, mirrored)
    ways = [(fwd, conv, Cut(block_size, mirrored, through))]
    if len(weights) > _WEIGHTS:
        back = Cut(block_size, not mirrored)
        ways.append((Direction(*weights[_WEIGHTS:]), back, back))
    return ways


def _halves(xz: Tensor, own: Direction) -> tuple[Tensor, Tensor | None]:
    """Return the input and the gate, if there is one, as ``(B, D, L)``."""
    channels = len(own.D)
    return xz[..., :channels].mT, xz[..., channels:].mT if xz.shape[2] > channels else None


def _scan_inputs(own: Direction, u: Tensor, mapped: Tensor, z: Tensor | None) -> KernelInputs:
    """Return the scan's inputs; dt, B and C are views of the projection ``(B, L, R + 2 N)``."""
    rank, states = own.dt_proj.shape[1], own.A.shape[1]
    dt, B, C = mapped.mT.split((rank, states, states), dim=1)
    maps = (B[:, None], C[:, None])
    return KernelInputs(*(u, None, own.A, *maps, own.D, z, own.dt_bias), dt=dt, dt_proj=own.dt_proj)


def _product(left: Tensor, right: Tensor, half: bool) -> Tensor:
    """Multiply two matrices, in bfloat16 if ``half``; the result has the dtype of ``left``."""
    with torch.autocast("cpu", enabled=False):
        if not half:
            return left @ right
        return (left.bfloat16() @ right.bfloat16()).to(left.dtype)


def _forward(
    xz: Tensor,
    weights: list[Tensor],
    states: Tensor | None,
    tails: Tensor | None,
    padding: Tensor | None,
    block_size: int,
    through: bool,
    mirrored: bool,
    half: bool,
    keep: bool,
) -> list[Tensor]:
    """Return the output, the states and the tails at borders, and, if ``keep``, what is saved.

    Each direction saves `_KEPT` tensors for the backward pass.
    """
    batch, length, _ = xz.shape
    ways = _ways(xz, weights, block_size, through, mirrored)
    fwd = ways[0][0]
    out = torch.empty_like(_halves(xz, fwd)[0]) if len(ways) > 1 else None
    ends, kept = xz.new_empty(0), []
    if through:
        assert states is not None  # the caller passes both or neither
        assert tails is not None
        given, states = states, empty_states(xz, batch, length // block_size + 1, fwd.A)
        states[:, 0] = given[:, 0]
        ends = _gather_tails(_halves(xz, fwd)[0].mT, tails[:, 0], block_size)
    for own, conv_cut, scan_cut in ways:
        first = own is fwd
        x, z = _halves(xz, own)
        filters = (own.conv_weight, own.conv_bias, True, conv_cut, tails if first else None)
        u = run_conv(x, *filters)
        if padding is not None:
            u.masked_fill_(padding[:, None], 0)
        mapped = _product(u.mT, own.x_proj.mT, half)
        inputs = _scan_inputs(own, u, mapped, z)
        borders = states if first else None
        kept += [u, mapped, run_scan(inputs, scan_cut, borders, out, keep, add=not first)]
    out = xz.new_empty(0, 0, 0) if out is None else out
    borders = states if through and states is not None else xz.new_empty(0)
    return [out, borders, ends, *(kept if keep else [])]


def _forward_fake(xz, weights, states, tails, padding, block_size, through, mirrored, half, keep):
    batch, length, _ = xz.shape
    ways = _ways(xz, weights, block_size, through, mirrored)
    fwd, kept, count = ways[0][0], [], length // block_size + 1
    x = _halves(xz, fwd)[0]
    for own, _, _ in ways:
        mapped = xz.new_empty(batch, length, own.x_proj.shape[0])
        saved = _scan_inputs(own, x, mapped, None).saved_shape(block_size)
        kept += [torch.empty_like(x), mapped, xz.new_empty(saved)]
    return [
        torch.empty_like(x) if len(ways) > 1 else xz.new_empty(0, 0, 0),
        empty_states(xz, batch, count, fwd.A) if through else xz.new_empty(0),
        xz.new_empty(batch, count, *tails.shape[2:]) if through else xz.new_empty(0),
        *(kept if keep else []),
    ]


def _backward(
    xz: Tensor,
    weights: list[Tensor],
    borders: Tensor | None,
    tails: Tensor | None,
    kept: list[Tensor],
    padding: Tensor | None,
    block_size: int,
    through: bool,
    mirrored: bool,
    half: bool,
    d_out: Tensor | None,
    d_borders: Tensor | None,
    d_ends: Tensor | None,
) -> list[Tensor]:
    """Return the gradients of ``xz``, of every weight, and of the given states and tails."""
    d_xz, grads, d_tails = torch.empty_like(xz), [], None
    ways = _ways(xz, weights, block_size, through, mirrored)
    fwd, flows = ways[0][0], None
    if borders is not None:
        flows = empty_states(xz, len(xz), borders.shape[1], fwd.A)
        if through:
            flows = flows.zero_() if d_borders is None else flows.copy_(d_borders)
    for own, conv_cut, scan_cut in ways:
        first = own is fwd
        if d_out is None and not first:
            grads += [torch.zeros_like(w) for w in weights[_WEIGHTS:]]
            continue
        u, mapped, saved = kept[:_KEPT] if first else kept[_KEPT:]
        (x, z), (dx, dz) = _halves(xz, own), _halves(d_xz, own)
        inputs = _scan_inputs(own, u, mapped, z)
        states = (borders, flows) if first else (None, None)
        du, _, dA, dD, d_dt_bias, d_dt_proj, d_mapped = run_scan_backward(
            inputs, scan_cut, states[0], saved, d_out, states[1], dz, add=not first
        )
        d_mapped = d_mapped[:, 0].mT.flatten(0, 1)
        du = du.mT.flatten(0, 1)
        if half:
            du += _product(d_mapped, own.x_proj, half)
        else:
            du.addmm_(d_mapped, own.x_proj)
        du = du.view(u.mT.shape)
        d_x_proj = _product(d_mapped.mT, u.mT.flatten(0, 1), half)
        if padding is not None:
            du.masked_fill_(padding[..., None], 0)
        filters = (own.conv_weight, own.conv_bias, True, conv_cut, tails if first else None)
        d_weight, d_bias, d_before = run_conv_backward(x, *filters, du.mT, dx, add=not first)
        d_tails = d_before if first else d_tails
        grads += [d_weight, d_bias, d_x_proj, d_dt_proj, d_dt_bias, dA, dD]
    if through and d_ends is not None and d_tails is not None:
        _spread_tails(d_ends, block_size, _halves(d_xz, fwd)[0].mT, d_tails[:, 0])
    d_states = xz.new_empty(0) if flows is None else flows[:, :1].clone() if through else flows
    return [d_xz, *grads, d_states, xz.new_empty(0) if d_tails is None else d_tails]


def _backward_fake(
    xz, weights, borders, tails, kept, padding, block_size, through, mirrored, half, *gradients
):
    d_states, d_tails = xz.new_empty(0), xz.new_empty(0)
    if borders is not None:
        count = 1 if through else borders.shape[1]
        d_states = empty_states(xz, len(xz), count, weights[_WEIGHTS - 2])
        d_tails = tails.new_empty(tails.shape)
    return [torch.empty_like(xz), *(w.new_empty(w.shape) for w in weights), d_states, d_tails]


def _remember(inputs, output):
    xz, weights, states, tails, padding, size, through, mirrored, half, _ = inputs
    borders = output[1] if through else states
    tensors = (xz, list(weights), borders, tails, list(output[3:]), padding)
    return tensors, (size, through, mirrored, half)


differentiable_operator(
    "mamba",
    _forward,
    _forward_fake,
    _backward,
    _backward_fake,
    remember=_remember,
    differentiable=4,
)
