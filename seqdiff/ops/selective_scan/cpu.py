"""The scan on the CPU, over whole rows or over their token blocks.

The docstring of `seqdiff.ops.cpu_simd` explains the words used here. The states of all positions,
``(Bt, D, N, L)``, are never stored together. The forward pass keeps the state before every chunk,
and the backward pass recomputes the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from seqdiff.ops.cpu_simd.cuts import Cut
from seqdiff.ops.cpu_simd.runtime import copy, run_tasks, view
from seqdiff.ops.cpu_simd.vectors import LANES
from seqdiff.ops.cpu_simd.wide import WIDE
from seqdiff.ops.selective_scan.cpu_kernels import scan_backward, scan_forward
from seqdiff.ops.selective_scan.cpu_parts import CHUNK, TILES
from seqdiff.ops.selective_scan.inputs import ScanInputs
from seqdiff.ops.selective_scan.operator import register_scan


def selective_scan_cpu(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the scan on the CPU.

    Returns:
        The output in u's dtype and the last state in the compute dtype.
    """
    kind = inputs.compute_dtype
    given = {name: tensor.to(kind) for name, tensor in inputs.tensors().items()}
    B, C = _same_groups(given["B"], given["C"], given["u"])
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


def _same_groups(B: Tensor, C: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Reshape B and C to ``(Bt, G, N, L)`` with the same G.

    A map that is constant over positions, ``(D, N)``, is repeated without a copy, and every channel
    is then a group of its own.
    """
    maps = []
    for m in (B, C):
        if m.ndim == 2:
            m = m[None, :, :, None].expand(u.shape[0], *m.shape, u.shape[2])
        maps.append(m[:, None] if m.ndim == 3 else m)
    groups = math.lcm(maps[0].shape[1], maps[1].shape[1])
    B, C = (
        m.repeat_interleave(groups // m.shape[1], 1) if m.shape[1] < groups else m for m in maps
    )
    return B, C


class KernelInputs(NamedTuple):
    """The inputs of the kernels, named as in ``selective_scan`` and all of one dtype.

    Instead of delta, they may hold the low-rank step sizes dt ``(Bt, R, L)`` and their projection
    ``(D, R)``, from which the kernels compute delta where they need it. All channels are then one
    group.
    """

    u: Tensor
    delta: Tensor | None
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    bias: Tensor | None
    softplus: bool = True
    dt: Tensor | None = None
    dt_proj: Tensor | None = None

    @property
    def groups(self) -> int:
        """Number of groups of channels that share one B and one C."""
        return self.B.shape[1]

    @property
    def tasks_of_group(self) -> int:
        """Number of tasks for one group of one row."""
        return -(-(self.u.shape[1] // self.groups) // (LANES * TILES))

    @property
    def states(self) -> int:
        """Number of states of a channel with those that kernels add, see `cpu_parts`."""
        return -(-self.A.shape[1] // WIDE) * WIDE

    @property
    def tasks(self) -> int:
        """Number of tasks for all rows."""
        return self.u.shape[0] * self.groups * self.tasks_of_group

    def saved_shape(self, size) -> tuple:
        """Return the shape of the states that the backward pass needs.

        These are the states before the chunks that start inside a token block.

        Args:
            size: Length of a token block. It may be symbolic under ``torch.compile``, as the length
                of the row may be.
        """
        batch, _, length = self.u.shape
        chunks = -(-length // size) * ((size - 1) // CHUNK)
        rows, width = self.groups * self.tasks_of_group, TILES * LANES * self.states
        return (batch, chunks, rows, width) if chunks else (0, 0, 0, 0)

    def arguments(self, cut: Cut) -> tuple:
        """Return the first arguments of both kernels."""
        u, delta, A, B, C, D, z, bias, softplus, dt, dt_proj = self
        reverse = cut.reverse
        return (
            view(u, u, 3, reverse),
            view(delta, u, 3, reverse),
            view(None if dt is None else dt[:, None], u, 4, reverse),
            copy(dt_proj, u, 2),
            copy(A, u, 2),
            view(B, u, 4, reverse),
            view(C, u, 4, reverse),
            copy(None if D is None else D[:, None], u, 2),
            view(z, u, 3, reverse),
            copy(None if bias is None else bias[:, None], u, 2),
            softplus,
            *cut.arguments(u.shape[2]),
            cut.through,
        )


def empty_states(like: Tensor, batch: int, count: int, A: Tensor) -> Tensor:
    """Allocate the states at ``count`` borders ``(B, n, D, N)``, with adjacent channels."""
    return like.new_empty(batch, count, A.shape[1], A.shape[0]).mT


def _adjacent(borders: Tensor | None) -> Tensor | None:
    """Copy the states at borders if their channels are not adjacent, as the kernels require."""
    if borders is None or borders.stride(2) == 1:
        return borders
    return borders.mT.contiguous().mT


def run_scan(
    inputs: KernelInputs,
    cut: Cut,
    borders: Tensor | None,
    out: Tensor | None,
    keep: bool,
    *,
    add: bool,
) -> Tensor:
    """Run the forward kernel.

    Args:
        inputs: Inputs of the scan.
        cut: How rows are divided into token blocks.
        borders: The states before every token block. If ``cut.through``, only the first is read;
            the others, including the one after the last token block, are filled. With None, the
            scan starts from zero and writes no states.
        out: Receives the output ``(B, D, L)``; None if it is not needed.
        keep: Whether a backward pass follows.
        add: Whether to add to ``out`` instead of overwriting it.

    Returns:
        The states that the backward pass needs, see ``KernelInputs.saved_shape``.
    """
    u = inputs.u
    saved = u.new_empty(inputs.saved_shape(cut.size) if keep else (0,) * 4)
    arguments = (
        *inputs.arguments(cut),
        view(_adjacent(borders), u, 4),
        view(out, u, 3, cut.reverse),
        add,
        saved.numpy(),
    )
    run_tasks(scan_forward, u, arguments, inputs.tasks)
    return saved


def run_scan_backward(
    inputs: KernelInputs,
    cut: Cut,
    borders: Tensor | None,
    saved: Tensor,
    d_out: Tensor | None,
    flows: Tensor | None,
    dz: Tensor | None,
    *,
    add: bool,
) -> list[Tensor]:
    """Run the backward kernel.

    Args:
        inputs: See ``run_scan``.
        cut: See ``run_scan``.
        borders: See ``run_scan``.
        saved: What ``run_scan`` returned.
        d_out: Gradient of the output; None for zeros.
        flows: Gradients of ``borders``. They are filled; but if ``cut.through``, they are given,
            and what reaches the first border through the scan is added to its gradient.
        dz: Receives the gradient of the gate; None if there is no gate.
        add: Whether to add to ``dz`` instead of overwriting it.

    Returns:
        The gradients of u, delta, A, D, the bias and ``dt_proj``, and last that of dt, B and C side
        by side ``(Bt, G, R + 2 N, L)``. That of delta or of ``dt_proj`` is empty if it is not among
        the inputs.
    """
    u, delta, A = inputs[:3]
    (batch, channels, length), states = u.shape, A.shape[1]
    rank = 0 if inputs.dt_proj is None else inputs.dt_proj.shape[1]
    du = torch.empty_like(u)
    d_delta = u.new_empty(0, 0, 0) if delta is None else torch.empty_like(delta)
    places = (batch, inputs.groups, inputs.tasks_of_group)
    maps = u.new_empty(*places, rank + 2 * states, length)
    d_dt, dB, dC = maps.split((rank, states, states), dim=3)
    d_dt_proj, dA, dD, d_bias = (
        u.new_empty(batch, channels, width) for width in (rank, states, 1, 1)
    )
    arguments = (
        *inputs.arguments(cut),
        view(_adjacent(borders), u, 4),
        saved.numpy(),
        view(d_out, u, 3, cut.reverse),
        view(flows, u, 4),
        *(view(g, u, 3, cut.reverse) for g in (du, d_delta, dz)),
        add,
        view(d_dt, u, 5, cut.reverse),
        view(d_dt_proj, u, 3),
        *(view(g, u, 5, cut.reverse) for g in (dB, dC)),
        *(view(g, u, 3) for g in (dA, dD, d_bias)),
    )
    run_tasks(scan_backward, u, arguments, inputs.tasks)
    sums = (dA.sum(0), dD.sum((0, 2)), d_bias.sum((0, 2)), d_dt_proj.sum(0))
    return [du, d_delta, *sums, maps.sum(2)]


def _forward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
    softplus: bool,
    reverse: bool,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan the row as one token block; the states at its borders are the initial and the last."""
    inputs = KernelInputs(u, delta, A, B, C, D, z, bias, softplus)
    out, borders = torch.empty_like(u), empty_states(u, len(u), 2, A)
    borders[:, 0] = 0 if initial is None else initial
    cut = Cut(u.shape[2], reverse, through=True)
    saved = run_scan(inputs, cut, borders, out, keep, add=False)
    return out, borders[:, 1].contiguous(), saved


def _backward(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    bias: Tensor | None,
    initial: Tensor | None,
    saved: Tensor,
    softplus: bool,
    reverse: bool,
    d_out: Tensor | None,
    d_last: Tensor | None,
) -> list[Tensor]:
    inputs = KernelInputs(u, delta, A, B, C, D, z, bias, softplus)
    borders = None if initial is None else initial[:, None]
    flows = empty_states(u, len(u), 2, A).zero_()
    if d_last is not None:
        flows[:, 1] = d_last
    dz = None if z is None else torch.empty_like(z)
    cut = Cut(u.shape[2], reverse, through=True)
    du, d_delta, dA, dD, d_bias, _, maps = run_scan_backward(
        inputs, cut, borders, saved, d_out, flows, dz, add=False
    )
    dz = u.new_empty(0, 0, 0) if dz is None else dz
    dB, dC = (m.clone(memory_format=torch.contiguous_format) for m in maps.chunk(2, dim=2))
    return [du, d_delta, dA, dB, dC, dD, dz, d_bias, flows[:, 0].contiguous()]


def _saved_shape(u: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple:
    return KernelInputs(u, u, A, B, C, None, None, None).saved_shape(u.shape[2])


register_scan("selective_scan", _forward, _backward, _saved_shape, states_adjacent=False)
