"""Calling the CPU kernels on rows cut into blocks of tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from seqdiff.blocks import num_blocks
from seqdiff.ops.cpu_simd.runtime import block_conv_kernel, block_scan_kernel, run_tasks, view
from seqdiff.ops.cpu_simd.vectors import LANES
from seqdiff.ops.selective_scan.cpu import scan_arguments
from seqdiff.ops.selective_scan.cpu_blocks import CHUNK, TILES
from seqdiff.ops.selective_scan.cpu_buffers import add_up, gradient_room, saved_shape


class Cut(NamedTuple):
    """How rows are cut and read.

    Attributes:
        size: Tokens of a block.
        reverse: Whether rows are read from right to left.
        through: Whether the scan does not begin anew in every block.
    """

    size: int
    reverse: bool
    through: bool

    def lead(self, length: int) -> int:
        """Tokens of the block that is read first."""
        return (
            length - (num_blocks(length, self.size) - 1) * self.size if self.reverse else self.size
        )


class Inputs(NamedTuple):
    """What the scan reads, named as in ``selective_scan``; delta passes softplus."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor
    z: Tensor | None
    bias: Tensor


SMALL = 1 << 15
"""Elements below which a second thread takes longer to wake than one to do all."""


def _run(kernel: Callable[..., None], arguments: tuple, x: Tensor, tasks: int) -> None:
    """`run_tasks`, on this thread alone if ``x`` is small: it then takes all tasks."""
    run_tasks(kernel, arguments, tasks if x.numel() >= SMALL else 1)


def empty_states(like: Tensor, batch: int, count: int, A: Tensor) -> Tensor:
    """Room for states at borders ``(B, n, D, N)``, channels adjacent."""
    return like.new_empty(batch, count, A.shape[1], A.shape[0]).mT


def _adjacent(borders: Tensor | None) -> Tensor | None:
    """States at borders with channels adjacent, as the kernels want them."""
    if borders is None or borders.stride(2) == 1:
        return borders
    return borders.mT.contiguous().mT


def run_block_scan(
    inputs: Inputs, cut: Cut, borders: Tensor | None, out: Tensor | None, keep: bool, *, add: bool
) -> Tensor:
    """Write the scan's output into ``out``, or add it; if through, fill all borders but the first.

    Args:
        inputs: What the scan reads.
        cut: How rows are cut.
        borders: States before every block, and behind the last one if through.
        out: ``(B, D, L)``; None if nobody reads it.
        keep: Whether a backward follows.
        add: Whether to add.

    Returns:
        States inside blocks, for the backward.
    """
    u, _, A, B, C = inputs[:5]
    batch, _, length = u.shape
    rows = saved_shape(u, A, B, C)[2]
    chunks = num_blocks(length, cut.size) * ((cut.size - 1) // CHUNK)
    saved = u.new_empty(
        (batch, chunks, rows, TILES * A.shape[1] * LANES) if keep and chunks else (0,) * 4
    )
    arguments = (
        *scan_arguments(*inputs, True, cut.reverse),
        cut.size,
        cut.lead(length),
        cut.through,
        view(_adjacent(borders), u, 4),
        view(out, u, 3, cut.reverse),
        add,
        saved.numpy(),
    )
    _run(block_scan_kernel("block_scan_forward", u.dtype), arguments, u, batch * rows)
    return saved


def run_block_scan_backward(
    inputs: Inputs,
    cut: Cut,
    borders: Tensor | None,
    saved: Tensor,
    d_out: Tensor | None,
    flows: Tensor | None,
    dz: Tensor | None,
    *,
    add: bool,
) -> list[Tensor]:
    """Write the gate's gradient into ``dz``, or add it, and those of borders into ``flows``.

    Args:
        inputs: See ``run_block_scan``.
        cut: Likewise.
        borders: Likewise.
        saved: What the forward kept.
        d_out: Gradient of the output; None for zero.
        flows: Gradients of the borders; if through, given, and the first is completed.
        dz: Gradient of the gate; None without one.
        add: Whether to add.

    Returns:
        The gradients of u, delta, A, B, C, D and the bias.
    """
    u, delta, A, B, C = inputs[:5]
    room = gradient_room(u, delta, A, B, C)
    (du, d_delta), maps, fixed, sums = room
    arguments = (
        *scan_arguments(*inputs, True, cut.reverse),
        cut.size,
        cut.lead(u.shape[2]),
        cut.through,
        view(_adjacent(borders), u, 4),
        saved.numpy(),
        view(d_out, u, 3, cut.reverse),
        view(flows, u, 4),
        *(view(g, u, 3, cut.reverse) for g in (du, d_delta, dz)),
        add,
        *(view(g, u, 5, cut.reverse) for g in maps),
        *(view(g, u, 3) for g in (*fixed, *sums)),
    )
    tasks = u.shape[0] * saved_shape(u, A, B, C)[2]
    _run(block_scan_kernel("block_scan_backward", u.dtype), arguments, u, tasks)
    return add_up(B, C, room)[:-1]


def run_block_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, cut: Cut, tails: Tensor | None
) -> Tensor:
    """The filtered input with SiLU.

    Args:
        x: ``(B, D, L)``.
        weight: Filter ``(D, W)``.
        bias: ``(D,)``.
        cut: How rows are cut.
        tails: Inputs before every block ``(B, n, W - 1, D)``; None for zeros.
    """
    out = torch.empty_like(x)
    arguments = (
        *_conv_arguments(x, weight, bias, cut, tails),
        view(out, x, 3, cut.reverse),
    )
    tasks = x.shape[0] * -(-x.shape[1] // LANES)
    _run(block_conv_kernel("block_conv_forward", x.dtype), arguments, x, tasks)
    return out


def run_block_conv_backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cut: Cut,
    tails: Tensor | None,
    d_out: Tensor,
    dx: Tensor,
    *,
    add: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Write x's gradient into ``dx``, or add it; other arguments as in ``run_block_conv``.

    Returns:
        The gradients of the filter, of the bias and of the tails.
    """
    d_weight = x.new_empty(x.shape[0], *weight.shape)
    d_bias = x.new_empty(x.shape[0], x.shape[1], 1)
    d_tails = None if tails is None else x.new_empty(tails.shape)
    arguments = (
        *_conv_arguments(x, weight, bias, cut, tails),
        view(d_out, x, 3, cut.reverse),
        view(dx, x, 3, cut.reverse),
        add,
        view(d_weight, x, 3),
        view(d_bias, x, 3),
        view(d_tails, x, 4),
    )
    tasks = x.shape[0] * -(-x.shape[1] // LANES)
    _run(block_conv_kernel("block_conv_backward", x.dtype), arguments, x, tasks)
    return d_weight.sum(0), d_bias.sum((0, 2)), d_tails


def _conv_arguments(
    x: Tensor, weight: Tensor, bias: Tensor | None, cut: Cut, tails: Tensor | None
) -> tuple:
    if tails is not None and tails.stride(-1) != 1:
        tails = tails.contiguous()
    offset = view(None if bias is None else bias[:, None], x, 2)
    places = (view(x, x, 3, cut.reverse), view(weight, x, 2), offset, True)
    return (*places, cut.size, cut.lead(x.shape[2]), view(tails, x, 4))
