"""Numba kernels of the selective scan, forward and backward.

The docstring of `seqdiff.ops.cpu_simd` explains the words used here, and that of `cpu_parts` those
of the scan.

The lanes of a SIMD vector hold adjacent channels. Inputs with adjacent channels therefore need no
transposition, and the sum of the output over the state is a sum of vectors. A task is one row and
one channel block. It processes the sequence in chunks of `CHUNK` positions, which fit in the
fastest caches. Every task writes its own part of the gradients that are summed over rows and
channels, so the results do not depend on the order in which threads run tasks.

Rows may be divided into token blocks, see `Cuts`. If ``through``, the scan continues over all token
blocks and writes its state at every border. Otherwise it starts every token block from the given
state at the border before it, or from zero. A chunk holds one or several whole token blocks or a
part of one. A row that is not divided is one token block.

The backward kernel takes chunks from last to first and recomputes their states. Let ``a_l`` be the
decay ``exp(delta_l A)`` and G_l the gradient of the state after position l. Then
``G_l = C_l dy_l + a_{l+1} G_{l+1}``, ``dB = delta u G``, ``dC = dy h``, ``d(delta u) = B G`` and
``d(delta A) = G a_l h_{l-1}``.
"""

from __future__ import annotations

import math

from seqdiff.ops.cpu_simd.cuts import Cuts
from seqdiff.ops.cpu_simd.jit import inlined, inner
from seqdiff.ops.cpu_simd.math import exp2
from seqdiff.ops.cpu_simd.tiles import (
    buffer,
    expect_tile,
    put_tile,
    read_tile,
    sigmoid,
    silu_slope,
    softplus,
    write_tile,
)
from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    add,
    fma,
    full_like,
    load,
    mul,
    next_task,
    peek,
    splat,
    store,
    sum_lanes,
)
from seqdiff.ops.cpu_simd.wide import (
    WIDE,
    add_folded,
    fma_each,
    fold_wide,
    load_wide,
    repeat,
    splat_each,
)
from seqdiff.ops.selective_scan.cpu_parts import (
    CHUNK,
    TILES,
    Gradients,
    Scan,
    count_blocks,
    count_groups_of_cuts,
    expect_inputs,
    find_group_of_cuts,
    find_piece,
    load_border,
    make_maps,
    make_sums,
    make_tile,
    pad_states,
    place,
    read_map,
    read_maps,
    saved_place,
    store_border,
    write_map,
    write_sums,
)

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


_LN2 = math.log(2.0)


@inner
def project(maps, tile, count, delta):
    """Compute the raw ``delta`` of a tile from the low-rank step sizes of the chunk."""
    step, rank = len(maps.dt) // CHUNK, len(maps.dt_proj) // (TILES * LANES)
    at = tile * rank * LANES
    for i in range(count):
        x = full_like(load(maps.dt_proj, at), 0.0)
        for r in range(rank):
            value = splat(peek(maps.dt, i * step + r))
            x = fma(value, load(maps.dt_proj, at + r * LANES), x)
        store(delta, i * LANES, x)


@inner
def project_back(maps, tile, count, d_delta, sums, scratch):
    """Add to the gradients of the low-rank step sizes and of their projection."""
    step, rank = len(maps.dt) // CHUNK, len(maps.dt_proj) // (TILES * LANES)
    for r in range(rank):
        at = (tile * rank + r) * LANES
        weight, total = load(maps.dt_proj, at), load(sums.dt_proj, at)
        for i in range(count):
            slope = load(d_delta, i * LANES)
            total = fma(slope, splat(peek(maps.dt, i * step + r)), total)
            store(scratch, i * LANES, mul(slope, weight))
        store(sums.dt_proj, at, total)
        for i in range(0, count, LANES):
            k = r * CHUNK + i
            store(sums.dt, k, add(load(sums.dt, k), sum_lanes(scratch, i * LANES, LANES)))


@inlined
def make_steps(delta, bias, start, count, use_softplus, steps):
    """Add the bias to the raw ``delta`` in place, and compute the step sizes of a tile."""
    offset = load(bias, start)
    for i in range(count):
        x = add(load(delta, i * LANES), offset)
        store(delta, i * LANES, x)
        store(steps, i * LANES, softplus(x) if use_softplus else x)


@inlined
def enter(u, steps, skip, start, count, driven, y):
    """Compute the driven input ``step * u`` of a tile, and initialise its output to ``D * u``."""
    weight = load(skip, start)
    for i in range(count):
        value = load(u, i * LANES)
        store(driven, i * LANES, mul(load(steps, i * LANES), value))
        store(y, i * LANES, mul(weight, value))


@inlined
def advance(maps, n, at, h, steps, driven, begin, end, y):
    """Advance `WIDE` states over the positions from ``begin`` to ``end``, and add ``C h`` to y.

    Args:
        maps: From `read_maps` and `read_map`.
        n: Number of the first state.
        at: Where that state's vectors begin in the buffers of states.
        h: The states.
        steps: Step sizes of the chunk.
        driven: Driven inputs of the chunk.
        begin: First position, counted from the start of the chunk.
        end: The position after the last.
        y: Outputs of the chunk.

    Returns:
        The states after the last position.
    """
    rate, states = load_wide(maps.rates, at), len(maps.B) // CHUNK
    for i in range(begin, end):
        k, here = i * LANES, i * states + n
        decay = exp2(mul(repeat(load(steps, k)), rate))
        inflow = splat_each(maps.B, here)
        h = fma(decay, h, mul(repeat(load(driven, k)), inflow))
        store(y, k, fma_each(splat_each(maps.C, here), h, load(y, k)))
    return h


@inlined
def _gate(z, count, y):
    """Multiply y by silu(z)."""
    for i in range(count):
        x = load(z, i * LANES)
        store(y, i * LANES, mul(load(y, i * LANES), mul(x, sigmoid(x))))


@inner
def copy_vectors(source, vectors, target):
    """Copy a number of vectors from one contiguous buffer to another."""
    for k in range(0, vectors * LANES, LANES):
        store(target, k, load(source, k))


@inner
def make_room(u):
    """Allocate the steps, the inputs and the outputs of one tile over one chunk."""
    return buffer(CHUNK, u), buffer(CHUNK, u), buffer(CHUNK, u)


@inlined
def open_tile(scan, block, tile, first, count, ahead, maps, room):
    """Prepare ``room`` for a tile's recurrence, and prefetch the next ``ahead`` positions."""
    steps, inputs, y = room
    channel = block.begin + tile * LANES
    width = min(LANES, block.end - channel)
    expect_inputs(scan, block.batch, channel, first + count, ahead)
    if scan.dt.size:
        project(maps, tile, count, inputs)
    else:
        read_tile(scan.delta, block.batch, channel, width, first, count, inputs)
    make_steps(inputs, maps.bias, tile * LANES, count, scan.softplus, steps)
    read_tile(scan.u, block.batch, channel, width, first, count, inputs)
    enter(inputs, steps, maps.skip, tile * LANES, count, inputs, y)


@inlined
def close_tile(scan, block, tile, first, count, ahead, out, accumulate, room):
    """Gate a tile's outputs, and write them to ``out`` or add them if ``accumulate``."""
    _, inputs, y = room
    channel = block.begin + tile * LANES
    width = min(LANES, block.end - channel)
    expect_tile(out, block.batch, channel, first + count, ahead)
    if scan.z.size:
        read_tile(scan.z, block.batch, channel, width, first, count, inputs)
        _gate(inputs, count, y)
    put_tile(out, block.batch, channel, width, first, count, y, accumulate, inputs)


def scan_forward(
    counter, u, delta, dt, dt_proj, A, B, C, D, z, bias, softplus,
    period, lead, through, borders, out, accumulate, saved,
):  # fmt: skip
    """Run tasks until none is left, and fill ``out``, ``saved`` and, if ``through``, ``borders``.

    Args:
        counter: The number of the next task, one int64 that all threads share; 0 at first.
        u: See `Scan`, also for the arguments up to ``softplus``.
        delta: See `Scan`.
        dt: See `Scan`.
        dt_proj: See `Scan`.
        A: See `Scan`.
        B: See `Scan`.
        C: See `Scan`.
        D: See `Scan`.
        z: See `Scan`.
        bias: See `Scan`.
        softplus: See `Scan`.
        period: See `Cuts`.
        lead: See `Cuts`.
        through: See `Cuts`.
        borders: States at the borders ``(Bt, n, D, N)``, with adjacent channels. If ``through``,
            the first is given and the others are filled, including the border after the last token
            block; otherwise the border before every token block is given. Size 0 if the given
            states are zero and no others are wanted.
        out: Output ``(Bt, D, L)``; size 0 if it is not wanted.
        accumulate: Whether to add to ``out`` instead of overwriting it.
        saved: Receives the states before the chunks that start inside a token block; size 0 if
            there is no backward pass.
    """
    scan = Scan(u, delta, dt, dt_proj, A, B, C, D, z, bias, softplus)
    cuts, rank = Cuts(period, lead, through), dt_proj.shape[1]
    (batches, channels, length), groups, states = u.shape, B.shape[1], pad_states(A.shape[1])
    maps, room, state = make_maps(u, states, rank), make_room(u), buffer(TILES * states, u)
    steps, driven, y = room
    rows = groups * count_blocks(channels, groups)
    while True:
        task = next_task(counter)
        if task >= batches * rows:
            return
        block = place(task, channels, groups)
        b = block.batch
        read_maps(scan, block, maps)
        for group in range(count_groups_of_cuts(cuts, length)):
            number, last, start, end = find_group_of_cuts(cuts, length, group)
            for first in range(start, end, CHUNK):
                count = min(CHUNK, end - first)
                ahead = min(CHUNK, length - first - count)
                if saved.size and first > start:
                    at = saved_place(cuts, group, (first - start) // CHUNK)
                    copy_vectors(state, block.tiles * states, saved[b, at, task % rows])
                read_map(B, b, block.group, first, count, maps.B)
                read_map(C, b, block.group, first, count, maps.C)
                if dt.size:
                    read_map(dt, b, 0, first, count, maps.dt)
                for tile in range(block.tiles):
                    channel, base = block.begin + tile * LANES, tile * states * LANES
                    width = min(LANES, block.end - channel)
                    border = (channel, width, 0, A.shape[1])
                    open_tile(scan, block, tile, first, count, ahead, maps, room)
                    for cut in range(number, last + 1):
                        left, right, opens, closes = find_piece(cuts, length, first, count, cut)
                        if opens and (cut == 0 or not through):
                            load_border(borders, b, cut, *border, False, state, base)
                        for n in range(0, states, WIDE):
                            at = base + n * LANES
                            h = load_wide(state, at)
                            h = advance(maps, n, at, h, steps, driven, left, right, y)
                            store(state, at, h)
                        if closes and through and borders.size:
                            store_border(borders, b, cut + 1, *border, state, base)
                    if out.size:
                        close_tile(scan, block, tile, first, count, ahead, out, accumulate, room)


@inlined
def replay(maps, n, at, h, gated, tile, begin, end):
    """Recompute `WIDE` states over the positions from ``begin`` to ``end``.

    This fills ``tile.decays`` with the decays and ``tile.states`` with the states, those after
    position i at index i + 1. If ``gated``, it also adds ``C h`` to ``tile.y``, which the gradient
    of the gate needs.
    """
    rate, states = load_wide(maps.rates, at), len(maps.B) // CHUNK
    for i in range(begin, end):
        k, here = i * LANES, i * states + n
        decay = exp2(mul(repeat(load(tile.steps, k)), rate))
        h = fma(decay, h, mul(repeat(load(tile.driven, k)), splat_each(maps.B, here)))
        store(tile.decays, k * WIDE, decay)
        store(tile.states, (k + LANES) * WIDE, h)
        if gated:
            store(tile.y, k, fma_each(splat_each(maps.C, here), h, load(tile.y, k)))


@inlined
def reverse(maps, n, at, start, carry, tile, begin, end, sums):
    """Propagate the gradients of `WIDE` states from right to left.

    ``carry`` is the gradient that reaches the state after the last position from the right, and
    ``start`` holds the states before the first position. The function replaces what `replay` stored
    by the products that `add_products` sums: ``delta u G`` in ``tile.decays``, and ``dy h`` in
    ``tile.states``.

    Returns:
        The gradient of the states before the first position.
    """
    rate, d_rate = load_wide(maps.rates, at), load_wide(sums.A, at)
    h, states = load_wide(tile.states, end * LANES * WIDE), len(maps.B) // CHUNK
    for i in range(end - 1, begin - 1, -1):
        k, here = i * LANES, i * states + n
        dy = repeat(load(tile.dy, k))
        flow = fma(dy, splat_each(maps.C, here), carry)
        store(tile.d_driven, k, fma_each(flow, splat_each(maps.B, here), load(tile.d_driven, k)))
        carry = mul(flow, load_wide(tile.decays, k * WIDE))
        store(tile.decays, k * WIDE, fold_wide(mul(flow, repeat(load(tile.driven, k)))))
        store(tile.states, (k + LANES) * WIDE, fold_wide(mul(dy, h)))
        h = load_wide(tile.states, k * WIDE) if i > begin else start
        through = mul(carry, h)
        store(tile.d_steps, k, fma_each(through, rate, load(tile.d_steps, k)))
        d_rate = fma(through, repeat(load(tile.steps, k)), d_rate)
    store(sums.A, at, d_rate)
    return carry


@inlined
def add_products(products, start, count, n, target):
    """Add the products that `reverse` left to the gradient of B or C, summed over channels."""
    for i in range(0, count, 4):
        place = start + i * WIDE * LANES
        add_folded(products, place, WIDE * LANES, target, n * CHUNK + i, CHUNK)


@inlined
def _prepare(scan, maps, number, tile, count):
    """Compute what the recurrence needs from a tile's inputs and the gradient of its output.

    ``tile.dy`` holds the gradient of the gated output at first, and that of the ungated output
    afterwards. ``tile.gate`` then holds the gradient of the gate but for the factor y.
    """
    make_steps(tile.delta, maps.bias, number * LANES, count, scan.softplus, tile.steps)
    enter(tile.u, tile.steps, maps.skip, number * LANES, count, tile.driven, tile.y)
    for i in range(count):
        k = i * LANES
        zero = full_like(load(tile.dy, k), 0.0)
        store(tile.d_driven, k, zero)
        store(tile.d_steps, k, zero)
        if scan.z.size:
            gate, d_out = load(tile.gate, k), load(tile.dy, k)
            s = sigmoid(gate)
            store(tile.gate, k, mul(silu_slope(gate, s), d_out))
            store(tile.dy, k, mul(d_out, mul(gate, s)))


@inlined
def _finish(scan, maps, number, tile, count, sums):
    """Compute the gradients of a tile's inputs, and add to those of D and the bias.

    The gradient of u is left in ``tile.driven``, that of delta in ``tile.delta`` and that of z in
    ``tile.gate``.
    """
    at = number * LANES
    skip, d_skip, d_bias = load(maps.skip, at), load(sums.D, at), load(sums.bias, at)
    for i in range(count):
        k = i * LANES
        dy, u, d_driven = load(tile.dy, k), load(tile.u, k), load(tile.d_driven, k)
        d_steps = load(tile.d_steps, k)
        d_delta = fma(d_driven, u, mul(d_steps, full_like(d_steps, _LN2)))
        if scan.softplus:
            d_delta = mul(d_delta, sigmoid(load(tile.delta, k)))
        d_bias = add(d_bias, d_delta)
        d_skip = fma(dy, u, d_skip)
        store(tile.delta, k, d_delta)
        store(tile.driven, k, fma(d_driven, load(tile.steps, k), mul(dy, skip)))
        if scan.z.size:
            store(tile.gate, k, mul(load(tile.gate, k), load(tile.y, k)))
    store(sums.D, at, d_skip)
    store(sums.bias, at, d_bias)


@inlined
def open_tile_back(scan, block, number, first, count, maps, d_out, tile):
    """Read a tile and prepare it for the recurrence. ``d_out`` of size 0 stands for zeros."""
    b, channel = block.batch, block.begin + number * LANES
    width = min(LANES, block.end - channel)
    if scan.dt.size:
        project(maps, number, count, tile.delta)
    else:
        read_tile(scan.delta, b, channel, width, first, count, tile.delta)
    read_tile(scan.u, b, channel, width, first, count, tile.u)
    if d_out.size:
        read_tile(d_out, b, channel, width, first, count, tile.dy)
    else:
        tile.dy[:] = 0.0
    if scan.z.size:
        read_tile(scan.z, b, channel, width, first, count, tile.gate)
    _prepare(scan, maps, number, tile, count)


@inlined
def close_tile_back(scan, block, number, first, count, maps, sums, tile, grads, accumulate):
    """Write a tile's gradients; that of the gate is added if ``accumulate``."""
    b, channel = block.batch, block.begin + number * LANES
    width = min(LANES, block.end - channel)
    _finish(scan, maps, number, tile, count, sums)
    write_tile(grads.u, b, channel, width, first, count, tile.driven)
    if scan.dt.size:
        project_back(maps, number, count, tile.delta, sums, tile.d_driven)
    else:
        write_tile(grads.delta, b, channel, width, first, count, tile.delta)
    if scan.z.size:
        put_tile(grads.z, b, channel, width, first, count, tile.gate, accumulate, tile.y)


def scan_backward(
    counter, u, delta, dt, dt_proj, A, B, C, D, z, bias, softplus,
    period, lead, through, borders, saved, d_out, flows,
    du, d_delta, dz, accumulate, d_dt, d_dt_proj, dB, dC, dA, dD, d_bias,
):  # fmt: skip
    """Run tasks until none is left, and fill the gradients.

    The arguments up to ``borders`` and ``saved`` are those of `scan_forward`, where ``saved`` has
    been filled. The gradients from ``du`` on are those of `Gradients`; ``dz`` is added to if
    ``accumulate``. ``d_out`` is the gradient of the output; size 0 stands for zeros.

    ``flows`` are the gradients of the states at the borders. Unless ``through``, they are filled.
    If ``through``, they hold the gradients that the states have from other uses, and what reaches
    the first border through the scan is added to its gradient.
    """
    scan = Scan(u, delta, dt, dt_proj, A, B, C, D, z, bias, softplus)
    cuts, rank = Cuts(period, lead, through), dt_proj.shape[1]
    grads = Gradients(du, d_delta, dz, d_dt, d_dt_proj, dB, dC, dA, dD, d_bias)
    (batches, channels, length), groups, states = u.shape, B.shape[1], pad_states(A.shape[1])
    maps, sums, tile = make_maps(u, states, rank), make_sums(u, states, rank), make_tile(u)
    state, gated = buffer(TILES * states, u), z.size > 0
    rows = groups * count_blocks(channels, groups)
    while True:
        task = next_task(counter)
        if task >= batches * rows:
            return
        block = place(task, channels, groups)
        b = block.batch
        read_maps(scan, block, maps)
        for part in (sums.carry, sums.A, sums.D, sums.bias, sums.dt_proj):
            part[:] = 0.0
        for group in range(count_groups_of_cuts(cuts, length) - 1, -1, -1):
            number, last, start, end = find_group_of_cuts(cuts, length, group)
            for chunk in range((end - start - 1) // CHUNK, -1, -1):
                first = start + chunk * CHUNK
                count = min(CHUNK, end - first)
                if chunk:
                    at = saved_place(cuts, group, chunk)
                    copy_vectors(saved[b, at, task % rows], block.tiles * states, state)
                read_map(B, b, block.group, first, count, maps.B)
                read_map(C, b, block.group, first, count, maps.C)
                if dt.size:
                    read_map(dt, b, 0, first, count, maps.dt)
                for part in (sums.B, sums.C, sums.dt):
                    part[:] = 0.0
                for k in range(block.tiles):
                    channel = block.begin + k * LANES
                    width = min(LANES, block.end - channel)
                    open_tile_back(scan, block, k, first, count, maps, d_out, tile)
                    for n in range(0, states, WIDE):
                        at = (k * states + n) * LANES
                        border = (channel, width, n, min(WIDE, A.shape[1] - n))
                        for cut in range(last, number - 1, -1):
                            left, right, opens, closes = find_piece(cuts, length, first, count, cut)
                            if opens:
                                load_border(borders, b, cut, *border, False, state, at)
                            if closes and through:
                                load_border(flows, b, cut + 1, *border, True, sums.carry, at)
                            elif closes:
                                sums.carry[at : at + WIDE * LANES] = 0.0
                            h, carry = load_wide(state, at), load_wide(sums.carry, at)
                            replay(maps, n, at, h, gated, tile, left, right)
                            carry = reverse(maps, n, at, h, carry, tile, left, right, sums)
                            store(sums.carry, at, carry)
                            if opens and flows.size and (cut == 0 or not through):
                                if through:
                                    load_border(flows, b, 0, *border, True, sums.carry, at)
                                store_border(flows, b, cut, *border, sums.carry, at)
                        add_products(tile.decays, 0, count, n, sums.B)
                        add_products(tile.states, WIDE * LANES, count, n, sums.C)
                    close_tile_back(
                        scan, block, k, first, count, maps, sums, tile, grads, accumulate
                    )
                write_map(dB, block, first, count, sums.B)
                write_map(dC, block, first, count, sums.C)
                if dt.size:
                    write_map(d_dt, block, first, count, sums.dt)
        write_sums(scan, block, sums, grads)
