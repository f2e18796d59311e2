"""The scan on the CPU, over whole rows or rows cut into blocks.

Nothing of the size of all states is ever held: only the state before every chunk is kept.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from seqdiff.ops.cpu_simd.cuts import Cut
from seqdiff.ops.cpu_simd.runtime import run_tasks, view
from seqdiff.ops.cpu_simd.vectors import LANES
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


class KernelInputs(NamedTuple):
    """What the kernels read, named as in ``selective_scan``, all of one dtype."""

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None
    z: Tensor | None
    bias: Tensor | None
    softplus: bool = True

    @property
    def groups(self) -> int:
        """Groups of channels that share one B and one C."""
        return max(m.shape[1] if m.ndim == 4 else 1 for m in (self.B, self.C))

    @property
    def tasks_of_group(self) -> int:
        """How many tasks a group of one row has."""
        return -(-(self.u.shape[1] // self.groups) // (LANES * TILES))

    @property
    def tasks(self) -> int:
        """How many tasks all rows have."""
        return self.u.shape[0] * self.groups * self.tasks_of_group

    def saved_shape(self, size) -> tuple:
        """Shape of the states inside blocks of ``size`` tokens, which the backward needs.

        The size may be symbolic, as the length is under ``torch.compile``.
        """
        batch, _, length = self.u.shape
        chunks = -(-length // size) * ((size - 1) // CHUNK)
        rows, width = self.groups * self.tasks_of_group, TILES * self.A.shape[1] * LANES
        return (batch, chunks, rows, width) if chunks else (0, 0, 0, 0)

    def arguments(self, cut: Cut) -> tuple:
        """What both kernels take first."""
        u, delta, A, B, C, D, z, bias, softplus = self
        constant_B, constant_C = B.ndim == 2, C.ndim == 2
        reverse = cut.reverse
        return (
            view(u, u, 3, reverse),
            view(delta, u, 3, reverse),
            view(A, u, 2),
            view(B[None, :, :, None] if constant_B else B, u, 4, reverse and not constant_B),
            view(C[None, :, :, None] if constant_C else C, u, 4, reverse and not constant_C),
            view(None if D is None else D[:, None], u, 2),
            view(z, u, 3, reverse),
            view(None if bias is None else bias[:, None], u, 2),
            softplus,
            constant_B,
            constant_C,
            *cut.arguments(u.shape[2]),
            cut.through,
        )


def empty_states(like: Tensor, batch: int, count: int, A: Tensor) -> Tensor:
    """Room for states at borders ``(B, n, D, N)``, channels adjacent."""
    return like.new_empty(batch, count, A.shape[1], A.shape[0]).mT


def _adjacent(borders: Tensor | None) -> Tensor | None:
    """States at borders with channels adjacent, as the kernels want them."""
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
    """Write the scan's output into ``out``, or add it; if through, fill all borders but the first.

    Args:
        inputs: What the scan reads.
        cut: How rows are cut.
        borders: States before every block, and behind the last one if through; None for zeros,
            which are not filled.
        out: ``(B, D, L)``; None if nobody reads it.
        keep: Whether a backward follows.
        add: Whether to add.

    Returns:
        States inside blocks, for the backward.
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
    """Write the gate's gradient into ``dz``, or add it, and those of borders into ``flows``.

    Args:
        inputs: See ``run_scan``.
        cut: See ``run_scan``.
        borders: See ``run_scan``.
        saved: What the forward kept.
        d_out: Gradient of the output; None for zero.
        flows: Gradients of the borders; if through, given, and the first is completed.
        dz: Gradient of the gate; None without one.
        add: Whether to add.

    Returns:
        The gradients of u, delta, A, B, C, D and the bias.
    """
    u, delta, A, B, C = inputs[:5]
    (batch, channels, length), states = u.shape, A.shape[1]
    du, d_delta = torch.empty_like(u), torch.empty_like(delta)
    by_place = (batch, inputs.groups, inputs.tasks_of_group, states, length)
    maps = [u.new_empty(by_place if m.ndim == 4 else (0,) * 5) for m in (B, C)]
    fixed = [u.new_empty((batch, channels, states) if m.ndim == 2 else (0,) * 3) for m in (B, C)]
    dA, dD, d_bias = (u.new_empty(batch, channels, width) for width in (states, 1, 1))
    arguments = (
        *inputs.arguments(cut),
        view(_adjacent(borders), u, 4),
        saved.numpy(),
        view(d_out, u, 3, cut.reverse),
        view(flows, u, 4),
        *(view(g, u, 3, cut.reverse) for g in (du, d_delta, dz)),
        add,
        *(view(g, u, 5, cut.reverse) for g in maps),
        *(view(g, u, 3) for g in (*fixed, dA, dD, d_bias)),
    )
    run_tasks(scan_backward, u, arguments, inputs.tasks)
    dB, dC = (
        v.sum(2) if m.ndim == 4 else f.sum(0) for m, v, f in zip((B, C), maps, fixed, strict=True)
    )
    return [du, d_delta, dA.sum(0), dB, dC, dD.sum((0, 2)), d_bias.sum((0, 2))]


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
    """One block as long as the row, whose borders are the initial and the last state."""
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
    *grads, d_bias = run_scan_backward(inputs, cut, borders, saved, d_out, flows, dz, add=False)
    dz = u.new_empty(0, 0, 0) if dz is None else dz
    return [*grads, dz, d_bias, flows[:, 0].contiguous()]


def _saved_shape(u: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple:
    return KernelInputs(u, u, A, B, C, None, None, None).saved_shape(u.shape[2])


register_scan("selective_scan", _forward, _backward, _saved_shape, states_adjacent=False)
