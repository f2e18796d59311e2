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
    store,
    sum_lanes,
)
from seqdiff.ops.cpu_simd.wide import (
    WIDE,
    add_folded,
    fma_each,
    fold_wide,
    load_like,
    load_rows,
    load_wide,
    repeat,
    splat_each,
    store_rows,
)
from seqdiff.ops.selective_scan.cpu_parts import (
    CHUNK,
    TILES,
    Gradients,
    Scan,
    Span,
    border_at,
    count_blocks,
    count_groups,
    count_groups_of_cuts,
    count_together,
    expect_inputs,
    find_group_of_cuts,
    find_piece,
    make_maps,
    make_sums,
    make_tile,
    place,
    read_chunk,
    read_maps,
    saved_place,
    write_maps,
    write_sums,
)

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


_LN2 = math.log(2.0)


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
def advance(maps, n, at, h, constant_B, constant_C, steps, driven, begin, end, y):
    """Advance some states over the positions from ``begin`` to ``end``, and add ``C h`` to y.

    Args:
        maps: From `read_maps` and `read_chunk`.
        n: Number of the first state.
        at: Where that state's vectors begin in the buffers of ``maps``.
        h: One vector for each of the states n, n + 1, ...
        constant_B: Whether B is constant over positions.
        constant_C: Whether C is.
        steps: Step sizes of the chunk.
        driven: Driven inputs of the chunk.
        begin: First position, counted from the start of the chunk.
        end: The position after the last.
        y: Outputs of the chunk.

    Returns:
        The states after the last position.
    """
    rate = load_like(maps.rates, at, h)
    fixed_B, fixed_C = load_like(maps.B_lanes, at, h), load_like(maps.C_lanes, at, h)
    for i in range(begin, end):
        k, here = i * LANES, n * CHUNK + i
        decay = exp2(mul(repeat(load(steps, k), h), rate))
        inflow = fixed_B if constant_B else splat_each(maps.B, here, CHUNK, h)
        outflow = fixed_C if constant_C else splat_each(maps.C, here, CHUNK, h)
        h = fma(decay, h, mul(repeat(load(driven, k), h), inflow))
        store(y, k, fma_each(outflow, h, load(y, k)))
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


@inlined
def _load_border(borders, span, number, n, like):
    """Load the states from n on at the border before token block ``number``.

    There are as many states as ``like`` has vectors. Without borders they are zero.
    """
    if not borders.size:
        return full_like(like, 0.0)
    at, stride = border_at(borders, span, number, n)
    return load_rows(borders, at, stride, span.width, like)


@inlined
def _store_border(borders, span, number, n, value):
    """Store the states from n on at the border before token block ``number``."""
    at, stride = border_at(borders, span, number, n)
    store_rows(borders, at, stride, span.width, value)


@inlined
def _advance_pieces(cuts, span, maps, n, at, h, constant_B, constant_C, room, borders):
    """Advance some states over all pieces of a chunk.

    At every border in between, load the states from ``borders`` or, if ``through``, store them.
    """
    steps, driven, y = room
    for number in range(span.number, span.last + 1):
        begin, end, opens, closes = find_piece(cuts, span, number)
        if opens and (number == 0 or not cuts.through):
            h = _load_border(borders, span, number, n, h)
        h = advance(maps, n, at, h, constant_B, constant_C, steps, driven, begin, end, y)
        if closes and cuts.through and borders.size:
            _store_border(borders, span, number + 1, n, h)
    return h


@inner
def _load_borders(borders, span, number, state, at, states):
    """Load all states of a tile at a border to the offset ``at`` of ``state``."""
    for n in range(states):
        k = at + n * LANES
        store(state, k, _load_border(borders, span, number, n, load(state, k)))


@inner
def _store_borders(borders, span, number, state, at, states):
    """Store all states of a tile, from the offset ``at`` of ``state``, at a border."""
    for n in range(states):
        _store_border(borders, span, number, n, load(state, at + n * LANES))


@inlined
def _advance_whole(scan, cuts, span, maps, tile, room, state, borders):
    """Advance all states of a tile over a chunk that is a single piece."""
    states, together = scan.A.shape[1], count_together(scan)
    fixed, begin = (scan.constant_B, scan.constant_C), tile * states * LANES
    steps, driven, y = room
    _, _, opens, closes = find_piece(cuts, span, span.number)
    if opens and (span.number == 0 or not cuts.through):
        _load_borders(borders, span, span.number, state, begin, states)
    for n in range(0, together, WIDE):
        at = begin + n * LANES
        h = load_wide(state, at)
        store(state, at, advance(maps, n, at, h, False, False, steps, driven, 0, span.size, y))
    for n in range(together, states):
        at = begin + n * LANES
        h = load(state, at)
        store(state, at, advance(maps, n, at, h, *fixed, steps, driven, 0, span.size, y))
    if closes and cuts.through and borders.size:
        _store_borders(borders, span, span.number + 1, state, begin, states)


@inlined
def _advance_tile(scan, cuts, span, maps, tile, room, state, borders):
    """Advance all states of a tile over a chunk of several token blocks."""
    states, together = scan.A.shape[1], count_together(scan)
    fixed = (scan.constant_B, scan.constant_C)
    for n in range(0, together, WIDE):
        at = (tile * states + n) * LANES
        h = load_wide(state, at)
        h = _advance_pieces(cuts, span, maps, n, at, h, False, False, room, borders)
        store(state, at, h)
    for n in range(together, states):
        at = (tile * states + n) * LANES
        h = _advance_pieces(cuts, span, maps, n, at, load(state, at), *fixed, room, borders)
        store(state, at, h)


@inner
def _forward_row(scan, block, row, cuts, maps, room, state, borders, out, accumulate, saved):
    """Run one task of the forward pass. ``row`` is its index among the tasks of its row."""
    length, b = scan.u.shape[2], block.batch
    for group in range(count_groups_of_cuts(cuts, length)):
        number, last, begin, end = find_group_of_cuts(cuts, length, group)
        for first in range(begin, end, CHUNK):
            count = min(CHUNK, end - first)
            ahead = min(CHUNK, length - first - count)
            if saved.size and first > begin:
                at = saved_place(cuts, group, (first - begin) // CHUNK)
                copy_vectors(state, block.tiles * scan.A.shape[1], saved[b, at, row])
            read_chunk(scan, block, first, count, maps)
            for tile in range(block.tiles):
                channel = block.begin + tile * LANES
                width = min(LANES, block.end - channel)
                span = Span(b, channel, width, first, count, length, number, last)
                open_tile(scan, block, tile, first, count, ahead, maps, room)
                # The general function would slow a row that is not divided by a tenth.
                if number == last:
                    _advance_whole(scan, cuts, span, maps, tile, room, state, borders)
                else:
                    _advance_tile(scan, cuts, span, maps, tile, room, state, borders)
                if out.size:
                    close_tile(scan, block, tile, first, count, ahead, out, accumulate, room)


def scan_forward(
    counter, u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C,
    period, lead, through, borders, out, accumulate, saved,
):  # fmt: skip
    """Run tasks until none is left, and fill ``out``, ``saved`` and, if ``through``, ``borders``.

    Args:
        counter: The number of the next task, one int64 that all threads share; 0 at first.
        u: See `Scan`, also for the arguments up to ``constant_C``.
        delta: See `Scan`.
        A: See `Scan`.
        B: See `Scan`.
        C: See `Scan`.
        D: See `Scan`.
        z: See `Scan`.
        bias: See `Scan`.
        softplus: See `Scan`.
        constant_B: See `Scan`.
        constant_C: See `Scan`.
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
    scan = Scan(u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C)
    maps, room, state = make_maps(u, A.shape[1]), make_room(u), buffer(TILES * A.shape[1], u)
    cuts, groups = Cuts(period, lead, through), count_groups(scan)
    rows = groups * count_blocks(u.shape[1], groups)
    while True:
        task = next_task(counter)
        if task >= u.shape[0] * rows:
            return
        block = place(task, u.shape[1], groups)
        read_maps(scan, block, maps)
        row = task % rows
        _forward_row(scan, block, row, cuts, maps, room, state, borders, out, accumulate, saved)


@inlined
def replay(maps, n, at, h, width, constant_B, constant_C, gated, tile, begin, end):
    """Recompute ``width`` states over the positions from ``begin`` to ``end``.

    This fills ``tile.decays`` with the decays and ``tile.states`` with the states, those after
    position i at index i + 1. If ``gated``, it also adds ``C h`` to ``tile.y``, which the gradient
    of the gate needs.
    """
    rate = load_like(maps.rates, at, h)
    fixed_B, fixed_C = load_like(maps.B_lanes, at, h), load_like(maps.C_lanes, at, h)
    for i in range(begin, end):
        k, here = i * LANES, n * CHUNK + i
        decay = exp2(mul(repeat(load(tile.steps, k), h), rate))
        inflow = fixed_B if constant_B else splat_each(maps.B, here, CHUNK, h)
        h = fma(decay, h, mul(repeat(load(tile.driven, k), h), inflow))
        store(tile.decays, k * width, decay)
        store(tile.states, (k + LANES) * width, h)
        if gated:
            outflow = fixed_C if constant_C else splat_each(maps.C, here, CHUNK, h)
            store(tile.y, k, fma_each(outflow, h, load(tile.y, k)))
    return h


@inlined
def reverse(maps, n, at, start, carry, width, constant_B, constant_C, tile, begin, end, sums):
    """Propagate the gradients of ``width`` states from right to left.

    ``carry`` is the gradient that reaches the state after the last position from the right, and
    ``start`` holds the states before the first position. The function replaces what `replay` stored
    by the products that `_add_products` sums: ``delta u G`` in ``tile.decays``, and ``dy h`` in
    ``tile.states``.

    Returns:
        The gradient of the states before the first position.
    """
    rate, d_rate = load_like(maps.rates, at, carry), load_like(sums.A, at, carry)
    fixed_B, fixed_C = load_like(maps.B_lanes, at, carry), load_like(maps.C_lanes, at, carry)
    h = load_like(tile.states, end * LANES * width, carry)
    for i in range(end - 1, begin - 1, -1):
        k, here = i * LANES, n * CHUNK + i
        inflow = fixed_B if constant_B else splat_each(maps.B, here, CHUNK, carry)
        outflow = fixed_C if constant_C else splat_each(maps.C, here, CHUNK, carry)
        dy = repeat(load(tile.dy, k), carry)
        flow = fma(dy, outflow, carry)
        store(tile.d_driven, k, fma_each(flow, inflow, load(tile.d_driven, k)))
        carry = mul(flow, load_like(tile.decays, k * width, carry))
        for_B = mul(flow, repeat(load(tile.driven, k), carry))
        store(tile.decays, k * width, fold_wide(for_B))
        store(tile.states, (k + LANES) * width, fold_wide(mul(dy, h)))
        h = load_like(tile.states, k * width, carry) if i > begin else start
        through = mul(carry, h)
        store(tile.d_steps, k, fma_each(through, rate, load(tile.d_steps, k)))
        d_rate = fma(through, repeat(load(tile.steps, k), carry), d_rate)
    store(sums.A, at, d_rate)
    return carry


@inlined
def _add_products(products, start, width, constant, count, n, at, maps, fixed):
    """Add the products that `reverse` left for ``width`` states to the gradient of B or C.

    They are summed over channels, or over positions if the map is constant.
    """
    if width == WIDE:
        for i in range(0, count, 4):
            place = start + i * width * LANES
            add_folded(products, place, width * LANES, maps, n * CHUNK + i, CHUNK)
    elif constant:
        total = load(fixed, at)
        for i in range(count):
            total = add(total, load(products, start + i * LANES))
        store(fixed, at, total)
    else:
        for i in range(0, count, LANES):
            lanes = sum_lanes(products, start + i * LANES, LANES)
            store(maps, n * CHUNK + i, add(load(maps, n * CHUNK + i), lanes))


@inlined
def add_all_products(width, constant_B, constant_C, count, n, at, tile, sums):
    """Add the products of ``width`` states over a whole chunk to the gradients of B and C."""
    _add_products(tile.decays, 0, width, constant_B, count, n, at, sums.B, sums.fixed_B)
    start = width * LANES
    _add_products(tile.states, start, width, constant_C, count, n, at, sums.C, sums.fixed_C)


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
    write_tile(grads.delta, b, channel, width, first, count, tile.delta)
    if scan.z.size:
        put_tile(grads.z, b, channel, width, first, count, tile.gate, accumulate, tile.y)


@inlined
def _pieces_back(
    cuts,
    span,
    maps,
    n,
    at,
    h,
    carry,
    width,
    constant_B,
    constant_C,
    gated,
    borders,
    flows,
    tile,
    sums,
):
    """Recompute some states over all pieces of a chunk, then propagate their gradients.

    ``flows`` are the gradients of the states at the borders, see `scan_backward`.
    """
    held, fixed = h, (constant_B, constant_C)
    for number in range(span.number, span.last + 1):
        begin, end, opens, _ = find_piece(cuts, span, number)
        if opens:
            h = _load_border(borders, span, number, n, h)
        h = replay(maps, n, at, h, width, *fixed, gated, tile, begin, end)
    for number in range(span.last, span.number - 1, -1):
        begin, end, opens, closes = find_piece(cuts, span, number)
        start = _load_border(borders, span, number, n, h) if opens else held
        if closes and cuts.through:
            carry = add(carry, _load_border(flows, span, number + 1, n, carry))
        elif closes:
            carry = full_like(carry, 0.0)
        carry = reverse(maps, n, at, start, carry, width, *fixed, tile, begin, end, sums)
        if opens and not cuts.through and flows.size:
            _store_border(flows, span, number, n, carry)
        if opens and cuts.through and number == 0:
            _store_border(flows, span, 0, n, add(carry, _load_border(flows, span, 0, n, carry)))
    store(sums.carry, at, carry)
    add_all_products(width, *fixed, span.size, n, at, tile, sums)


@inlined
def _both_ways(maps, n, at, h, carry, width, constant_B, constant_C, gated, tile, count, sums):
    """Recompute ``width`` states over a chunk of one piece, then propagate their gradients."""
    fixed = (constant_B, constant_C)
    replay(maps, n, at, h, width, *fixed, gated, tile, 0, count)
    carry = reverse(maps, n, at, h, carry, width, *fixed, tile, 0, count, sums)
    store(sums.carry, at, carry)
    add_all_products(width, *fixed, count, n, at, tile, sums)


@inlined
def _tile_both_ways(scan, maps, number, state, tile, count, sums):
    """Process all states of a tile over a chunk of one piece."""
    states, together, gated = scan.A.shape[1], count_together(scan), scan.z.size > 0
    fixed = (scan.constant_B, scan.constant_C)
    for n in range(0, together, WIDE):
        at = (number * states + n) * LANES
        h, carry = load_wide(state, at), load_wide(sums.carry, at)
        _both_ways(maps, n, at, h, carry, WIDE, False, False, gated, tile, count, sums)
    for n in range(together, states):
        at = (number * states + n) * LANES
        h, carry = load(state, at), load(sums.carry, at)
        _both_ways(maps, n, at, h, carry, 1, *fixed, gated, tile, count, sums)


@inlined
def _tile_span(block, span, k):
    """Return the span of tile k of a channel block."""
    channel = block.begin + k * LANES
    width = min(LANES, block.end - channel)
    return Span(
        span.batch, channel, width, span.first, span.size, span.length, span.number, span.last
    )


@inner
def _open_back(scan, block, span, cuts, borders, flows, sums, state):
    """Begin a chunk of one piece.

    If its token block begins there, load the states at the border before it. If the token block
    ends there, add the gradient of the border after it or, unless ``through``, start from zero.
    """
    states, (_, _, opens, closes) = scan.A.shape[1], find_piece(cuts, span, span.number)
    for k in range(block.tiles):
        own, first = _tile_span(block, span, k), k * states * LANES
        if opens:
            _load_borders(borders, own, own.number, state, first, states)
        for n in range(states if closes else 0):
            carry = load(sums.carry, first + n * LANES)
            if cuts.through:
                carry = add(carry, _load_border(flows, own, own.number + 1, n, carry))
            else:
                carry = full_like(carry, 0.0)
            store(sums.carry, first + n * LANES, carry)


@inner
def _close_back(scan, block, span, cuts, flows, sums):
    """End a chunk of one piece: write the gradient of the border before it to ``flows``."""
    states, (_, _, opens, _) = scan.A.shape[1], find_piece(cuts, span, span.number)
    for k in range(block.tiles if opens else 0):
        own, first = _tile_span(block, span, k), k * states * LANES
        if not cuts.through and flows.size:
            _store_borders(flows, own, own.number, sums.carry, first, states)
        for n in range(states if cuts.through and own.number == 0 else 0):
            carry = load(sums.carry, first + n * LANES)
            _store_border(flows, own, 0, n, add(carry, _load_border(flows, own, 0, n, carry)))


@inlined
def _tile_pieces_back(scan, cuts, span, maps, number, state, borders, flows, tile, sums):
    """Process all states of a tile over a chunk of several token blocks."""
    states, together, gated = scan.A.shape[1], count_together(scan), scan.z.size > 0
    fixed = (scan.constant_B, scan.constant_C)
    for n in range(0, together, WIDE):
        at = (number * states + n) * LANES
        h, carry = load_wide(state, at), load_wide(sums.carry, at)
        _pieces_back(
            cuts, span, maps, n, at, h, carry, WIDE, False, False, gated, borders, flows, tile, sums
        )
    for n in range(together, states):
        at = (number * states + n) * LANES
        h, carry = load(state, at), load(sums.carry, at)
        _pieces_back(
            cuts, span, maps, n, at, h, carry, 1, *fixed, gated, borders, flows, tile, sums
        )


@inner
def _chunk_pieces_back(
    scan, block, span, cuts, maps, borders, d_out, flows, sums, tile, state, grads, accumulate
):
    """Run the backward pass of a task over a chunk of several token blocks."""
    first, count = span.first, span.size
    for k in range(block.tiles):
        own = _tile_span(block, span, k)
        open_tile_back(scan, block, k, first, count, maps, d_out, tile)
        _tile_pieces_back(scan, cuts, own, maps, k, state, borders, flows, tile, sums)
        close_tile_back(scan, block, k, first, count, maps, sums, tile, grads, accumulate)


@inner
def _chunk_back(
    scan, block, span, cuts, maps, borders, d_out, flows, sums, tile, state, grads, accumulate
):
    """Run the backward pass of a task over a chunk; ``span`` does not name a tile."""
    first, count = span.first, span.size
    read_chunk(scan, block, first, count, maps)
    sums.B[:] = 0.0
    sums.C[:] = 0.0
    if span.number == span.last:  # as in _forward_row
        _open_back(scan, block, span, cuts, borders, flows, sums, state)
        for k in range(block.tiles):
            open_tile_back(scan, block, k, first, count, maps, d_out, tile)
            _tile_both_ways(scan, maps, k, state, tile, count, sums)
            close_tile_back(scan, block, k, first, count, maps, sums, tile, grads, accumulate)
        _close_back(scan, block, span, cuts, flows, sums)
    else:
        _chunk_pieces_back(
            scan, block, span, cuts, maps, borders, d_out, flows, sums, tile, state, grads,
            accumulate,
        )  # fmt: skip
    write_maps(scan, block, first, count, sums, grads)


@inner
def _backward_row(
    scan, block, row, cuts, maps, borders, saved, d_out, flows, sums, tile, state, grads, accumulate
):
    """Run one task of the backward pass."""
    length, b = scan.u.shape[2], block.batch
    for group in range(count_groups_of_cuts(cuts, length) - 1, -1, -1):
        number, last, begin, end = find_group_of_cuts(cuts, length, group)
        for chunk in range((end - begin - 1) // CHUNK, -1, -1):
            first = begin + chunk * CHUNK
            if chunk:
                at = saved_place(cuts, group, chunk)
                copy_vectors(saved[b, at, row], block.tiles * scan.A.shape[1], state)
            count = min(CHUNK, end - first)
            span = Span(b, block.begin, 0, first, count, length, number, last)
            _chunk_back(
                scan,
                block,
                span,
                cuts,
                maps,
                borders,
                d_out,
                flows,
                sums,
                tile,
                state,
                grads,
                accumulate,
            )


def scan_backward(
    counter, u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C,
    period, lead, through, borders, saved, d_out, flows,
    du, d_delta, dz, accumulate, dB, dC, d_fixed_B, d_fixed_C, dA, dD, d_bias,
):  # fmt: skip
    """Run tasks until none is left, and fill the gradients.

    The arguments up to ``borders`` and ``saved`` are those of `scan_forward`, where ``saved`` has
    been filled. The gradients from ``du`` on are those of `Gradients`; ``dz`` is added to if
    ``accumulate``. ``d_out`` is the gradient of the output; size 0 stands for zeros.

    ``flows`` are the gradients of the states at the borders. Unless ``through``, they are filled.
    If ``through``, they hold the gradients that the states have from other uses, and what reaches
    the first border through the scan is added to its gradient.
    """
    scan = Scan(u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C)
    grads = Gradients(du, d_delta, dz, dB, dC, d_fixed_B, d_fixed_C, dA, dD, d_bias)
    maps, sums, tile = make_maps(u, A.shape[1]), make_sums(u, A.shape[1]), make_tile(u)
    state, cuts = buffer(TILES * A.shape[1], u), Cuts(period, lead, through)
    groups = count_groups(scan)
    rows = groups * count_blocks(u.shape[1], groups)
    while True:
        task = next_task(counter)
        if task >= u.shape[0] * rows:
            return
        block = place(task, u.shape[1], groups)
        read_maps(scan, block, maps)
        sums.carry[:] = 0.0
        for part in (sums.A, sums.fixed_B, sums.fixed_C, sums.D, sums.bias):
            part[:] = 0.0
        _backward_row(
            scan, block, task % rows, cuts, maps, borders, saved, d_out, flows, sums, tile, state,
            grads, accumulate,
        )  # fmt: skip
        write_sums(scan, block, sums, grads)
