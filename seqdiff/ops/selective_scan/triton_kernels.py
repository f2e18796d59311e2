"""Triton kernels of the selective scan.

A row (a sequence of the batch) is divided into chunks that are processed in parallel.
`chunk_states` scans each chunk from a state of zero, `join_chunks` turns the results into the state
before every chunk, and `scan_outputs` scans each chunk again from that state. A program processes
one chunk of a channel block, which is BLOCK channels of one group; channels of a group share B and
C. It holds the state as a matrix (N, BLOCK). The states of a channel are adjacent in memory, as in
A, so the compiler gives each lane of a warp 4 states of some channels. Sums over states and sums
over channels then both need few exchanges between lanes.

In the backward pass, `chunk_flows` propagates gradients from right to left through each chunk from
zero, and `join_chunks` joins them. `scan_gradients` then goes through each chunk twice: from left
to right, to store the state before every span of SPAN positions, and from right to left, span by
span, with the states of the current span in registers. No atomics are used. Programs write their
parts of a sum separately and the parts are summed afterwards, so results are reproducible.

Positions are counted in the order in which they are read, so from the right if REVERSE. A tensor is
followed by the tuple of its strides. Masks begin with ``has``. SHARE_B and SHARE_C are the number
of groups that use the same B or C, or 0 for a map that is constant over positions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from seqdiff.ops.triton_common import sigmoid

# pyright: reportMissingImports=false, reportOperatorIssue=false, reportGeneralTypeIssues=false


LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def softplus(x):
    """Compute log(1 + exp(x)), accurately also where 1 + exp(x) rounds to 1."""
    e = tl.exp(tl.minimum(x, 20.0, propagate_nan=tl.PropagateNan.ALL))
    w = 1 + e
    small = w == 1
    return tl.where(x > 20, x, tl.where(small, e, tl.log(w) * (e / tl.where(small, 1, w - 1))))


@triton.jit
def softplus_slope(y):
    """Compute the derivative of softplus from its value y: 1 - exp(-y), also where y is small."""
    series = 1 - y / 4 * (1 - y / 5 * (1 - y / 6))
    series = y * (1 - y / 2 * (1 - y / 3 * series))
    return tl.where(y < 0.05, series, 1 - tl.exp(-y))


@triton.jit
def place_of(i, length, REVERSE: tl.constexpr):
    """Return the index in memory of position i, clipped to the row."""
    clipped = tl.minimum(i, length - 1)
    return (length - 1 - clipped if REVERSE else clipped).to(tl.int64)


@triton.jit
def inside(mask, i, length):
    """Return the mask if position i is inside the row, else False."""
    return mask & (tl.zeros(mask.shape, tl.int32) + i < length)


@triton.jit
def locate(sizes, BLOCK: tl.constexpr, N_PAD: tl.constexpr):
    """Return the row, the channel block, the channels, the states and the masks of the latter."""
    channels, states, per_group, blocks = sizes[0], sizes[1], sizes[2], sizes[3]
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    within = (block % blocks) * BLOCK + tl.arange(0, BLOCK)
    d = ((block // blocks) * per_group + within).to(tl.int64)
    n = tl.arange(0, N_PAD)
    return row, block, d, n, (within < per_group) & (d < channels), n < states


@triton.jit
def decay_rates(A, sA, d, n, has_d, has_n, KIND: tl.constexpr):
    """Load A as ``(N, BLOCK)``, scaled for exp2."""
    at = d[None, :] * sA[0] + n[:, None] * sA[1]
    return tl.load(A + at, mask=has_n[:, None] & has_d[None, :], other=0).to(KIND) * LOG2_E


@triton.jit
def map_start(M, sM, row, block, d, n, sizes, SHARE: tl.constexpr):
    """Return pointers to B or C at position 0: ``(N, 1)``, or ``(N, BLOCK)`` if constant."""
    if SHARE == 0:
        start = M + d[None, :] * sM[0] + n[:, None] * sM[1]
    else:
        group = block // sizes[3] // SHARE
        start = M + row * sM[0] + group * sM[1] + n[:, None].to(tl.int64) * sM[2]
    return start


@triton.jit
def load_map(start, sM, place, has_d, has_n, SHARE: tl.constexpr, KIND: tl.constexpr):
    """Load B or C at one position: ``(N, 1)``, or ``(N, BLOCK)`` if constant."""
    if SHARE == 0:
        value = tl.load(start, mask=has_n[:, None] & has_d[None, :], other=0)
    else:
        value = tl.load(start + place * sM[3], mask=has_n[:, None], other=0)
    return value.to(KIND)


@triton.jit
def load_step(start, s, place, has):
    """Return the step sizes at one position, zero where masked."""
    return tl.load(start + place * s[2], mask=has, other=0)


@triton.jit
def load_channel(vector, d, has_d, KIND: tl.constexpr):
    """Load one number per channel; None gives zeros."""
    value = tl.zeros(d.shape, KIND)
    if vector is not None:
        value += tl.load(vector + d, mask=has_d, other=0).to(KIND)
    return value


@triton.jit
def row_start(tensor, s, row, d):
    """Return pointers to the channels of one row at position 0."""
    return tensor + row * s[0] + d * s[1]


@triton.jit
def step_sizes(
    delta, sdelta, bias, steps, s_steps, channels, length,
    SOFTPLUS: tl.constexpr, SPAN: tl.constexpr, BLOCK: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute the step sizes of one tile, SPAN positions by BLOCK channels.

    The other kernels read each of them three times in a training step, and a program spends as long
    on one softplus as on the states of a channel.
    """
    row = tl.program_id(0).to(tl.int64)
    d = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)[None, :]
    i = (tl.program_id(2) * SPAN + tl.arange(0, SPAN)).to(tl.int64)[:, None]
    has = (i < length) & (d < channels)
    at = delta + row * sdelta[0] + d * sdelta[1] + i * sdelta[2]
    step = tl.load(at, mask=has, other=0).to(KIND)
    if bias is not None:
        step += tl.load(bias + d, mask=d < channels, other=0).to(KIND)
    if SOFTPLUS:
        step = softplus(step)
    tl.store(steps + row * s_steps[0] + d * s_steps[1] + i * s_steps[2], step, mask=has)


@triton.jit
def chunk_states(
    u, su, steps, s_steps, A, sA, B, sB, local, totals, length, sizes,
    SHARE_B: tl.constexpr, REVERSE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, N_PAD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute the state after a chunk that starts from zero, and the sum of its step sizes."""
    row, block, d, n, has_d, has_n = locate(sizes, BLOCK, N_PAD)
    chunk = tl.program_id(2)
    rates = decay_rates(A, sA, d, n, has_d, has_n, KIND)
    u_row, step_row = row_start(u, su, row, d), row_start(steps, s_steps, row, d)
    B_start = map_start(B, sB, row, block, d, n, sizes, SHARE_B)
    h = tl.zeros((N_PAD, BLOCK), KIND)
    total = tl.zeros((BLOCK,), KIND)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, length)):
        place = place_of(i, length, REVERSE)
        step = load_step(step_row, s_steps, place, has_d)
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
    """Combine the chunks of a row, which were processed independently.

    On entry, ``states`` holds the state that each chunk produces from zero. On exit, it holds the
    state before each chunk, given that ``start`` is the state before the first; ``end`` receives
    the state after the last. If LEFTWARDS, the same recurrence joins the gradients of the states
    from right to left.
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
    u, su, steps, s_steps, A, sA, B, sB, C, sC, D, z, sz, starts, out, sout, length, sizes,
    SHARE_B: tl.constexpr, SHARE_C: tl.constexpr, REVERSE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, N_PAD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Scan a chunk from the state before it, and write its outputs with skip and gate applied."""
    row, block, d, n, has_d, has_n = locate(sizes, BLOCK, N_PAD)
    chunk = tl.program_id(2)
    rates = decay_rates(A, sA, d, n, has_d, has_n, KIND)
    skip = load_channel(D, d, has_d, KIND)
    u_row, step_row = row_start(u, su, row, d), row_start(steps, s_steps, row, d)
    out_row = row_start(out, sout, row, d)
    B_start = map_start(B, sB, row, block, d, n, sizes, SHARE_B)
    C_start = map_start(C, sC, row, block, d, n, sizes, SHARE_C)
    at = row * tl.num_programs(2) + chunk
    tile = (at * sizes[0] + d[None, :]) * sizes[1] + n[:, None]
    h = tl.load(starts + tile, mask=has_n[:, None] & has_d[None, :], other=0)
    for i in range(chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, length)):
        place = place_of(i, length, REVERSE)
        step = load_step(step_row, s_steps, place, has_d)
        x = tl.load(u_row + place * su[2], mask=has_d, other=0).to(KIND)
        b = load_map(B_start, sB, place, has_d, has_n, SHARE_B, KIND)
        c = load_map(C_start, sC, place, has_d, has_n, SHARE_C, KIND)
        h = tl.exp2(rates * step[None, :]) * h + b * (step * x)[None, :]
        y = tl.sum(h * c, 0) + skip * x
        if z is not None:
            gate = tl.load(row_start(z, sz, row, d) + place * sz[2], mask=has_d, other=0).to(KIND)
            y *= gate * sigmoid(gate)
        tl.store(out_row + place * sout[2], y, mask=has_d)


@triton.jit
def ungated(d_out, s_dout, z, sz, row, d, place, has, KIND: tl.constexpr):
    """Load the gradient of the output, and return that of the output before the gate."""
    g = tl.load(row_start(d_out, s_dout, row, d) + place * s_dout[2], mask=has, other=0).to(KIND)
    if z is not None:
        gate = tl.load(row_start(z, sz, row, d) + place * sz[2], mask=has, other=0).to(KIND)
        g *= gate * sigmoid(gate)
    return g


@triton.jit
def chunk_flows(
    steps, s_steps, A, sA, C, sC, z, sz, d_out, s_dout, local, totals, length, sizes,
    SHARE_C: tl.constexpr, REVERSE: tl.constexpr,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr, N_PAD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of the state before a chunk from the chunk's outputs alone.

    Also compute the sum of its step sizes.
    """
    row, block, d, n, has_d, has_n = locate(sizes, BLOCK, N_PAD)
    chunk = tl.program_id(2)
    rates = decay_rates(A, sA, d, n, has_d, has_n, KIND)
    step_row = row_start(steps, s_steps, row, d)
    C_start = map_start(C, sC, row, block, d, n, sizes, SHARE_C)
    flow = tl.zeros((N_PAD, BLOCK), KIND)
    total = tl.zeros((BLOCK,), KIND)
    first, stop = chunk * CHUNK, tl.minimum(chunk * CHUNK + CHUNK, length)
    for k in range(stop - first):
        place = place_of(stop - 1 - k, length, REVERSE)
        step = load_step(step_row, s_steps, place, has_d)
        c = load_map(C_start, sC, place, has_d, has_n, SHARE_C, KIND)
        g = ungated(d_out, s_dout, z, sz, row, d, place, has_d, KIND)
        flow = tl.exp2(rates * step[None, :]) * (flow + c * g[None, :])
        total += step
    at = row * tl.num_programs(2) + chunk
    tile = (at * sizes[0] + d[None, :]) * sizes[1] + n[:, None]
    tl.store(local + tile, flow, mask=has_n[:, None] & has_d[None, :])
    tl.store(totals + at * sizes[0] + d, total, mask=has_d)


@triton.jit
def advance(h, i, x, spot, length, SHARE_B: tl.constexpr, REVERSE: tl.constexpr,
            KIND: tl.constexpr):  # fmt: skip
    """Return the state after position i; beyond the row, it is unchanged."""
    u_row, su, step_row, s_steps, B_start, sB, rates = x
    has_d, has_n = spot
    has = inside(has_d, i, length)
    place = place_of(i, length, REVERSE)
    step = load_step(step_row, s_steps, place, has)
    drive = step * tl.load(u_row + place * su[2], mask=has, other=0).to(KIND)
    b = load_map(B_start, sB, place, has_d, has_n, SHARE_B, KIND)
    return tl.exp2(rates * step[None, :]) * h + b * drive[None, :]


@triton.jit
def ungate(g, h, c, skipped, gates, place, has, KIND: tl.constexpr):
    """Return the gradient before the gate, and write that of the gate, which needs the output."""
    z_row, sz, dz_row, sdz = gates
    gate = tl.load(z_row + place * sz[2], mask=has, other=0).to(KIND)
    s = sigmoid(gate)
    slope = s * (1 + gate * (1 - s))
    tl.store(dz_row + place * sdz[2], g * (tl.sum(h * c, 0) + skipped) * slope, mask=has)
    return g * gate * s


@triton.jit
def put_map(total, part, row_part, place, states, has, SHARE: tl.constexpr):
    """Add to the gradient of a constant map, or write that of a varying one at one position."""
    if SHARE == 0:
        total += part
    else:
        tl.store(row_part + place * states, tl.sum(part, 1), mask=has)
    return total


@triton.jit
def retreat(
    flow, h, before, totals, i, x, y, spot, length, states, HAS_Z: tl.constexpr,
    SHARE_B: tl.constexpr, SHARE_C: tl.constexpr, SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr,
    KIND: tl.constexpr,
):  # fmt: skip
    """Write the gradients at position i; return that of the state before it, and the sums."""
    u_row, su, step_row, s_steps, B_start, sB, rates = x
    C_start, sC, skip, out_row, s_out, gates, du_row, sdu, d_delta_row, s_ddelta, dB, dC = y
    has_d, has_n = spot
    dA, dB_sum, dC_sum, dD, d_bias = totals
    has, has_map = inside(has_d, i, length), inside(has_n, i, length)
    place = place_of(i, length, REVERSE)
    step = load_step(step_row, s_steps, place, has)
    v = tl.load(u_row + place * su[2], mask=has, other=0).to(KIND)
    b = load_map(B_start, sB, place, has_d, has_n, SHARE_B, KIND)
    c = load_map(C_start, sC, place, has_d, has_n, SHARE_C, KIND)
    g = tl.load(out_row + place * s_out[2], mask=has, other=0).to(KIND)
    if HAS_Z:
        g = ungate(g, h, c, skip * v, gates, place, has, KIND)
    flow += c * g[None, :]
    dB_sum = put_map(dB_sum, flow * (step * v)[None, :], dB, place, states, has_map, SHARE_B)
    dC_sum = put_map(dC_sum, h * g[None, :], dC, place, states, has_map, SHARE_C)
    from_b = tl.sum(flow * b, 0)
    tl.store(du_row + place * sdu[2], from_b * step + skip * g, mask=has)
    flow *= tl.exp2(rates * step[None, :])
    decayed = flow * before
    d_step = from_b * v + tl.sum(decayed * rates, 0) * (1 / LOG2_E)
    if SOFTPLUS:
        d_step *= softplus_slope(step)
    d_step = tl.where(has, d_step, 0)
    tl.store(d_delta_row + place * s_ddelta[2], d_step, mask=has)
    return flow, (dA + decayed * step[None, :], dB_sum, dC_sum, dD + g * v, d_bias + d_step)


@triton.jit
def scan_gradients(
    u, su, steps, s_steps, A, sA, B, sB, C, sC, D, z, sz, d_out, s_dout,
    starts, flows, marks, du, sdu, d_delta, s_ddelta, dz, sdz, parts, length, sizes,
    HAS_Z: tl.constexpr,
    SHARE_B: tl.constexpr, SHARE_C: tl.constexpr, SOFTPLUS: tl.constexpr, REVERSE: tl.constexpr,
    CHUNK: tl.constexpr, SPAN: tl.constexpr,
    BLOCK: tl.constexpr, N_PAD: tl.constexpr, KIND: tl.constexpr,
):  # fmt: skip
    """Compute all gradients of one chunk.

    Those that are summed over programs go to ``parts``, which holds dA ``(rows, chunks, D, N)``; dB
    and dC, each ``(rows, blocks, L, N)`` if the map varies and like dA if it is constant; and dD
    and d_bias ``(rows, chunks, D)``.
    """
    row, block, d, n, has_d, has_n = locate(sizes, BLOCK, N_PAD)
    chunk, at = tl.program_id(2), row * tl.num_programs(2) + tl.program_id(2)
    has, spot = has_n[:, None] & has_d[None, :], (has_d, has_n)
    x = (
        row_start(u, su, row, d), su, row_start(steps, s_steps, row, d), s_steps,
        map_start(B, sB, row, block, d, n, sizes, SHARE_B), sB,
        decay_rates(A, sA, d, n, has_d, has_n, KIND),
    )  # fmt: skip
    gates = (row_start(z, sz, row, d), sz, row_start(dz, sdz, row, d), sdz) if HAS_Z else ()
    here = (row * tl.num_programs(1) + block) * length * sizes[1] + n
    y = (
        map_start(C, sC, row, block, d, n, sizes, SHARE_C), sC, load_channel(D, d, has_d, KIND),
        row_start(d_out, s_dout, row, d), s_dout, gates, row_start(du, sdu, row, d), sdu,
        row_start(d_delta, s_ddelta, row, d), s_ddelta, parts[1] + here, parts[2] + here,
    )  # fmt: skip
    tile = d[None, :] * sizes[1] + n[:, None]
    area = (row * 0 + sizes[1]) * sizes[0]  # row is 64 bits wide, so the product is too
    first, spans = chunk * CHUNK, tl.cdiv(tl.minimum(length - chunk * CHUNK, CHUNK), SPAN)
    marks += at * (CHUNK // SPAN) * area + tile
    h = tl.load(starts + at * area + tile, mask=has, other=0)
    for i in range(spans * SPAN):
        if i % SPAN == 0:
            tl.store(marks + (i // SPAN) * area, h, mask=has)
        h = advance(h, first + i, x, spot, length, SHARE_B, REVERSE, KIND)
    tl.debug_barrier()
    flow = tl.load(flows + at * area + tile, mask=has, other=0)
    none, nothing = tl.zeros((N_PAD, BLOCK), KIND), tl.zeros((BLOCK,), KIND)
    totals = (none, none, none, nothing, nothing)
    for k in range(spans):
        i = first + (spans - 1 - k) * SPAN
        states = (tl.load(marks + (spans - 1 - k) * area, mask=has, other=0),)
        for j in tl.static_range(SPAN):
            states = states + (  # noqa: RUF005
                advance(states[j], i + j, x, spot, length, SHARE_B, REVERSE, KIND),
            )
        for j in tl.static_range(SPAN):
            flow, totals = retreat(
                flow, states[SPAN - j], states[SPAN - 1 - j], totals, i + SPAN - 1 - j,
                x, y, spot, length, sizes[1], HAS_Z, SHARE_B, SHARE_C, SOFTPLUS, REVERSE, KIND,
            )  # fmt: skip
    tl.store(parts[0] + at * area + tile, totals[0], mask=has)
    if SHARE_B == 0:
        tl.store(parts[1] + at * area + tile, totals[1], mask=has)
    if SHARE_C == 0:
        tl.store(parts[2] + at * area + tile, totals[2], mask=has)
    tl.store(parts[3] + at * sizes[0] + d, totals[3], mask=has_d)
    tl.store(parts[4] + at * sizes[0] + d, totals[4], mask=has_d)
