"""Triton kernels of the selective scan, forward.

A row is cut into chunks that run side by side: `chunk_states` scans each from a state of zero,
`join_chunks` turns the results into the state before every chunk, `scan_outputs` scans again from
there. A program holds one chunk of BLOCK channels, the state as a tile (N, BLOCK). States of a
channel lie side by side in memory, as in A, so that the compiler gives a lane 4 states of some
channels: sums over states and over channels then both need few exchanges.
"""

from __future__ import annotations

import triton
import triton.language as tl

from seqdiff.ops.triton_math import place_of, sigmoid, softplus

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false


LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def locate(sizes, BLOCK: tl.constexpr, N_PAD: tl.constexpr):
    """The row, the block, the channels and the states of this program, with their masks."""
    channels, states, per_group, blocks = sizes[0], sizes[1], sizes[2], sizes[3]
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    within = (block % blocks) * BLOCK + tl.arange(0, BLOCK)
    d = ((block // blocks) * per_group + within).to(tl.int64)
    n = tl.arange(0, N_PAD)
    return row, block, d, n, (within < per_group) & (d < channels), n < states


@triton.jit
def decay_rates(A, sA, d, n, has_d, has_n, KIND: tl.constexpr):
    """A as a tile ``(N, BLOCK)``, scaled for exp2."""
    at = d[None, :] * sA[0] + n[:, None] * sA[1]
    return tl.load(A + at, mask=has_n[:, None] & has_d[None, :], other=0).to(KIND) * LOG2_E


@triton.jit
def map_start(M, sM, row, block, d, n, sizes, SHARE: tl.constexpr):
    """Pointers to B or C at position 0: ``(N, 1)`` of this block's group, or a constant tile."""
    if SHARE == 0:
        start = M + d[None, :] * sM[0] + n[:, None] * sM[1]
    else:
        group = block // sizes[3] // SHARE
        start = M + row * sM[0] + group * sM[1] + n[:, None].to(tl.int64) * sM[2]
    return start


@triton.jit
def load_map(start, sM, place, has_d, has_n, SHARE: tl.constexpr, KIND: tl.constexpr):
    """B or C at one position, ``(N, 1)`` or ``(N, BLOCK)``."""
    if SHARE == 0:
        value = tl.load(start, mask=has_n[:, None] & has_d[None, :], other=0)
    else:
        value = tl.load(start + place * sM[3], mask=has_n[:, None], other=0)
    return value.to(KIND)


@triton.jit
def load_step(start, s, place, bias, has, SOFTPLUS: tl.constexpr, KIND: tl.constexpr):
    """Step sizes at one position: as used, zero outside, and before softplus."""
    raw = tl.load(start + place * s[2], mask=has, other=0).to(KIND) + bias
    step = softplus(raw) if SOFTPLUS else raw
    return tl.where(has, step, 0), raw


@triton.jit
def load_channel(vector, d, has_d, KIND: tl.constexpr):
    """One number a channel, zero for None."""
    value = tl.zeros(d.shape, KIND)
    if vector is not None:
        value += tl.load(vector + d, mask=has_d, other=0).to(KIND)
    return value


@triton.jit
def row_start(tensor, s, row, d):
    """Pointers to the channels of one row at position 0."""
    return tensor + row * s[0] + d * s[1]


@triton.jit
def chunk_states(
    u, su, delta, sdelta, A, sA, B, sB, bias, local, totals, length, sizes,
    SHARE_B: tl.constexpr, SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, N_PAD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """The state after each chunk that starts from zero, and its sum of step sizes."""
    row, block, d, n, has_d, has_n = locate(sizes, BLOCK, N_PAD)
    chunk = tl.program_id(2)
    rates = decay_rates(A, sA, d, n, has_d, has_n, KIND)
    bias_d = load_channel(bias, d, has_d, KIND)
    u_row, delta_row = row_start(u, su, row, d), row_start(delta, sdelta, row, d)
    B_start = map_start(B, sB, row, block, d, n, sizes, SHARE_B)
    h = tl.zeros((N_PAD, BLOCK), KIND)
    total = tl.zeros((BLOCK,), KIND)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, length)):
        place = place_of(i, length, REVERSE)
        step, _ = load_step(delta_row, sdelta, place, bias_d, has_d, SOFTPLUS, KIND)
        x = tl.load(u_row + place * su[2], mask=has_d, other=0).to(KIND)
        b = load_map(B_start, sB, place, has_d, has_n, SHARE_B, KIND)
        h = tl.exp2(rates * step[None, :]) * h + b * (step * x)[None, :]
        total += step
    at = row * tl.num_programs(2) + chunk
    tile = (at * sizes[0] + d[None, :]) * sizes[1] + n[:, None]
    tl.store(local + tile, h, mask=has_n[:, None] & has_d[None, :])
    tl.store(totals + at * sizes[0] + d, total, mask=has_d)


@triton.jit
def join_chunks(
    A, sA, states, totals, start, s_start, end, chunks, sizes,
    LEFTWARDS: tl.constexpr, BLOCK: tl.constexpr, N_PAD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Replace what each chunk makes of zero by what reaches it; the end is what leaves the last.

    The same recurrence carries states rightwards and their gradients leftwards.
    """
    row, _, d, n, has_d, has_n = locate(sizes, BLOCK, N_PAD)
    has = has_n[:, None] & has_d[None, :]
    rates = decay_rates(A, sA, d, n, has_d, has_n, KIND)
    carry = tl.zeros((N_PAD, BLOCK), KIND)
    if start is not None:
        first = row * s_start[0] + d[None, :] * s_start[1] + n[:, None] * s_start[2]
        carry = tl.load(start + first, mask=has, other=0).to(KIND)
    for i in range(chunks):
        at = row * chunks + (chunks - 1 - i if LEFTWARDS else i)
        tile = states + (at * sizes[0] + d[None, :]) * sizes[1] + n[:, None]
        total = tl.load(totals + at * sizes[0] + d, mask=has_d, other=0)
        local = tl.load(tile, mask=has, other=0)
        tl.store(tile, carry, mask=has)
        carry = tl.exp2(rates * total[None, :]) * carry + local
    tl.store(end + (row * sizes[0] + d[None, :]) * sizes[1] + n[:, None], carry, mask=has)


@triton.jit
def scan_outputs(
    u, su, delta, sdelta, A, sA, B, sB, C, sC, D, z, sz, bias, starts, out, sout, length, sizes,
    SHARE_B: tl.constexpr, SHARE_C: tl.constexpr, SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, N_PAD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Scan each chunk from the state before it and write its outputs, skip and gate applied."""
    row, block, d, n, has_d, has_n = locate(sizes, BLOCK, N_PAD)
    chunk = tl.program_id(2)
    rates = decay_rates(A, sA, d, n, has_d, has_n, KIND)
    bias_d, skip = load_channel(bias, d, has_d, KIND), load_channel(D, d, has_d, KIND)
    u_row, delta_row = row_start(u, su, row, d), row_start(delta, sdelta, row, d)
    out_row = row_start(out, sout, row, d)
    B_start = map_start(B, sB, row, block, d, n, sizes, SHARE_B)
    C_start = map_start(C, sC, row, block, d, n, sizes, SHARE_C)
    at = row * tl.num_programs(2) + chunk
    tile = (at * sizes[0] + d[None, :]) * sizes[1] + n[:, None]
    h = tl.load(starts + tile, mask=has_n[:, None] & has_d[None, :], other=0)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, length)):
        place = place_of(i, length, REVERSE)
        step, _ = load_step(delta_row, sdelta, place, bias_d, has_d, SOFTPLUS, KIND)
        x = tl.load(u_row + place * su[2], mask=has_d, other=0).to(KIND)
        b = load_map(B_start, sB, place, has_d, has_n, SHARE_B, KIND)
        c = load_map(C_start, sC, place, has_d, has_n, SHARE_C, KIND)
        h = tl.exp2(rates * step[None, :]) * h + b * (step * x)[None, :]
        y = tl.sum(h * c, 0) + skip * x
        if z is not None:
            gate = tl.load(row_start(z, sz, row, d) + place * sz[2], mask=has_d, other=0).to(KIND)
            y *= gate * sigmoid(gate)
        tl.store(out_row + place * sout[2], y, mask=has_d)
