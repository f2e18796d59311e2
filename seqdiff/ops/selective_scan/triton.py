"""The scan on a CUDA device, by Triton kernels."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from seqdiff.ops.operators import compute_dtype
from seqdiff.ops.selective_scan.inputs import ScanInputs
from seqdiff.ops.selective_scan.operator import register_scan
from seqdiff.ops.selective_scan.triton_kernels import (
    chunk_flows,
    chunk_states,
    join_chunks,
    scan_gradients,
    scan_outputs,
    step_sizes,
)
from seqdiff.ops.triton_common import BLOCK, ceil_div, kind_of, launch, strided

SPAN = 4
"""Number of positions whose states the backward pass keeps in registers."""

TILE = 64
"""Number of positions whose step sizes a program computes."""

MAX_STATES = 64


def selective_scan_triton(inputs: ScanInputs) -> tuple[Tensor, Tensor]:
    """Run the scan on a CUDA device.

    The states of all positions, ``(Bt, D, N, L)``, are never stored together.

    Returns:
        The output in u's dtype and the last state in the compute dtype.

    Raises:
        ValueError: The tensors are not on a CUDA device, or there are more than 64 states.
    """
    if inputs.A.shape[1] > MAX_STATES:
        raise ValueError(
            f"selective_scan.A: backend 'triton' takes at most {MAX_STATES} states, "
            f"got {inputs.A.shape[1]}; use backend='reference'"
        )
    B, C = (m[:, None] if m.ndim == 3 else m for m in (inputs.B, inputs.C))
    D, bias = (None if v is None else v.contiguous() for v in (inputs.D, inputs.delta_bias))
    keep = torch.is_grad_enabled() and any(t.requires_grad for t in inputs.tensors().values())
    out, last, _ = torch.ops.seqdiff.selective_scan_triton(
        inputs.u,
        inputs.delta,
        inputs.A,
        B,
        C,
        D,
        inputs.z,
        bias,
        inputs.initial_state,
        inputs.delta_softplus,
        inputs.reverse,
        keep,
    )
    return out, last


class _Plan(NamedTuple):
    """How a scan is divided into programs.

    Attributes:
        batch: Number of rows.
        groups: Number of groups of channels that share one B and one C.
        blocks: Number of channel blocks, of `BLOCK` channels each, in a group.
        chunks: Number of chunks in a row.
        chunk: Number of positions in a chunk.
        sizes: What every kernel takes: channels, states, channels per group, blocks per group.
        shares: Number of groups that use the same B, and that use the same C; 0 for a map that is
            constant over positions.
        dtype: Dtype of the computation.
    """

    batch: int
    groups: int
    blocks: int
    chunks: int
    chunk: int
    sizes: tuple[int, int, int, int]
    shares: tuple[int, int]
    dtype: torch.dtype

    @property
    def grid(self) -> tuple[int, int, int]:
        """The launch grid of the kernels that process one chunk per program."""
        return self.batch, self.groups * self.blocks, self.chunks

    def options(self) -> dict[str, object]:
        """Return the compile-time arguments of every kernel.

        There is one warp for every 16 states, so that a lane holds 16 numbers.
        """
        width = triton.next_power_of_2(self.sizes[1])
        return {
            "BLOCK": BLOCK,
            "N_PAD": width,
            "KIND": kind_of(self.dtype),
            "num_warps": max(1, width // 16),
            "enable_fp_fusion": True,
        }

    def join(self, A: Tensor, states: Tensor, totals: Tensor, start: Tensor | None, left: bool):
        """Run `join_chunks` on ``states`` in place; return what leaves the last chunk."""
        end = A.new_empty(self.batch, *A.shape, dtype=self.dtype)
        arguments = [*strided(A), states, totals, *strided(start), end, self.chunks, self.sizes]
        launch(join_chunks, self.grid[:2], A, arguments, self.options() | {"LEFTWARDS": left})
        return end


def _plan(u: Tensor, A: Tensor, B: Tensor, C: Tensor, dtype: torch.dtype) -> _Plan:
    batch, channels, length = u.shape
    counts = [m.shape[1] if m.ndim == 4 else 1 for m in (B, C)]
    groups = math.lcm(*counts)
    blocks = ceil_div(channels // groups, BLOCK)
    chunk = _chunk(length)
    shares = [groups // n if m.ndim == 4 else 0 for m, n in zip((B, C), counts, strict=True)]
    sizes = (channels, A.shape[1], channels // groups, blocks)
    return _Plan(
        batch, groups, blocks, ceil_div(length, chunk), chunk, sizes, (shares[0], shares[1]), dtype
    )


def _chunk(length: int) -> int:
    """Choose the number of positions in a chunk.

    Longer chunks are fewer to join; shorter ones give more programs that run in parallel.
    """
    if length <= 8192:
        return 32
    return 64 if length <= 32768 else 128


def _edges(plan: _Plan, like: Tensor) -> tuple[Tensor, Tensor]:
    """Allocate a state and a sum of step sizes for every chunk."""
    channels, states = plan.sizes[:2]
    room = like.new_empty(plan.batch, plan.chunks, channels, states, dtype=plan.dtype)
    return room, like.new_empty(plan.batch, plan.chunks, channels, dtype=plan.dtype)


def _steps(delta: Tensor, bias: Tensor | None, softplus: bool, dtype: torch.dtype) -> Tensor:
    """Compute the step sizes, softplus(delta + bias), unless delta already holds them."""
    if bias is None and not softplus and delta.dtype == dtype:
        return delta
    batch, channels, length = delta.shape
    steps = torch.empty_like(delta, dtype=dtype)
    grid = (batch, ceil_div(channels, BLOCK), ceil_div(length, TILE))
    arguments = [*strided(delta), bias, *strided(steps), channels, length]
    options = {"SOFTPLUS": softplus, "SPAN": TILE, "BLOCK": BLOCK, "KIND": kind_of(dtype)}
    options["enable_fp_fusion"] = True
    launch(step_sizes, grid, delta, arguments, options)
    return steps


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
    dtype = compute_dtype(u, delta, A, B, C, D, z, bias, initial)
    plan = _plan(u, A, B, C, dtype)
    length, (share_B, share_C) = u.shape[2], plan.shares
    out, (starts, totals) = torch.empty_like(u), _edges(plan, u)
    options = plan.options() | {"REVERSE": reverse, "CHUNK": plan.chunk}
    steps = _steps(delta, bias, softplus, dtype)
    begin = [*strided(u, steps, A, B), starts, totals, length, plan.sizes]
    launch(chunk_states, plan.grid, u, begin, options | {"SHARE_B": share_B})
    last = plan.join(A, starts, totals, initial, left=False)
    finish = [
        *strided(u, steps, A, B, C), D, *strided(z), starts, *strided(out), length, plan.sizes
    ]  # fmt: skip
    launch(scan_outputs, plan.grid, u, finish, options | {"SHARE_B": share_B, "SHARE_C": share_C})
    return out, last, starts if keep else starts.new_empty(0, 0, 0, 0)


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
    starts: Tensor,
    softplus: bool,
    reverse: bool,
    d_out: Tensor | None,
    d_last: Tensor | None,
) -> list[Tensor]:
    plan = _plan(u, A, B, C, starts.dtype)
    length, (share_B, share_C) = u.shape[2], plan.shares
    d_out = torch.zeros_like(u) if d_out is None else d_out
    options = plan.options() | {"REVERSE": reverse, "CHUNK": plan.chunk}
    steps = _steps(delta, bias, softplus, plan.dtype)
    flows, totals = _edges(plan, u)
    du, d_delta = torch.empty_like(u), torch.empty_like(delta)
    dz = None if z is None else torch.empty_like(z)
    batch, chunks, channels, states = starts.shape
    marks = starts.new_empty(batch, chunks * plan.chunk // SPAN, channels, states)
    dA, (dD, d_bias) = torch.empty_like(starts), (torch.empty_like(totals) for _ in range(2))
    by_block = (batch, plan.groups * plan.blocks, length, states)
    maps = [starts.new_empty(by_block if s else starts.shape) for s in plan.shares]
    begin = [
        *strided(steps, A, C, z), *strided(d_out), flows, totals, length, plan.sizes
    ]  # fmt: skip
    launch(chunk_flows, plan.grid, u, begin, options | {"SHARE_C": share_C})
    d_initial = plan.join(A, flows, totals, d_last, left=True)
    finish = [
        *strided(u, steps, A, B, C), D, *strided(z), *strided(d_out), starts, flows,
        marks, *strided(du, d_delta, dz), (dA, *maps, dD, d_bias), length, plan.sizes,
    ]  # fmt: skip
    options |= {"SHARE_B": share_B, "SHARE_C": share_C, "SPAN": SPAN, "HAS_Z": z is not None}
    options["SOFTPLUS"] = softplus
    launch(scan_gradients, plan.grid, u, finish, options)
    dB, dC = (_sum_map(part, m) for part, m in zip(maps, (B, C), strict=True))
    dD, d_bias = (
        part.sum((0, 1)).to(part.dtype if v is None else v.dtype)
        for part, v in ((dD, D), (d_bias, bias))
    )
    dz = u.new_empty(0, 0, 0) if dz is None else dz
    d_initial = d_initial if initial is None else d_initial.to(initial.dtype)
    return [du, d_delta, dA.sum((0, 1)).to(A.dtype), dB, dC, dD, dz, d_bias, d_initial]


def _sum_map(part: Tensor, m: Tensor) -> Tensor:
    """Sum the programs' parts of the gradient of B or C."""
    if m.ndim == 2:
        return part.sum((0, 1)).to(m.dtype)
    batch, blocks, length, states = part.shape
    grouped = part.view(batch, m.shape[1], blocks // m.shape[1], length, states)
    return grouped.sum(2).mT.to(m.dtype)


def _saved_shape(u: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple:
    return u.shape[0], ceil_div(u.shape[2], _chunk(u.shape[2])), *A.shape


register_scan("selective_scan_triton", _forward, _backward, _saved_shape, states_adjacent=True)
