"""Numba kernel of the selective scan's backward: chunks from last to first, states recomputed.

With G_l the gradient of the state after position l: ``G_l = C_l dy_l + a_{l+1} G_{l+1}``, and from
it ``dB = delta u G``, ``dC = dy h``, ``d(delta u) = B G``, ``d(delta A) = G a_l h_{l-1}``.
"""

from __future__ import annotations

import math

from numba import njit

from seqdiff.ops.cpu_simd.math import exp2
from seqdiff.ops.cpu_simd.tasks import next_task
from seqdiff.ops.cpu_simd.tiles import buffer, put_tile, read_tile, sigmoid, write_tile
from seqdiff.ops.cpu_simd.vectors import (
    LANES,
    add,
    fma,
    full_like,
    load,
    mul,
    store,
    sub,
    sum_lanes,
)
from seqdiff.ops.cpu_simd.wide import (
    WIDE,
    add_folded,
    fma_each,
    fold_wide,
    load_like,
    load_wide,
    repeat,
    splat_each,
)
from seqdiff.ops.selective_scan.cpu_blocks import (
    CHUNK,
    TILES,
    Scan,
    count_groups,
    count_together,
    make_maps,
    place,
    read_chunk,
    read_maps,
)
from seqdiff.ops.selective_scan.cpu_buffers import (
    Gradients,
    make_sums,
    make_tile,
    write_maps,
    write_sums,
)
from seqdiff.ops.selective_scan.cpu_forward import copy_vectors, enter, make_steps, read_states

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


_LN2 = math.log(2.0)


@njit(forceinline=True)
def replay(maps, n, at, h, width, constant_B, constant_C, gated, tile, begin, end):
    """Recompute ``width`` states over positions: decays, values after each and their share of y."""
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


@njit(forceinline=True)
def reverse(maps, n, at, start, carry, width, constant_B, constant_C, tile, begin, end, sums):
    """Send ``width`` states' gradients G back through positions that begin with states ``start``.

    Leaves ``delta u G`` in ``decays`` and ``dy h`` in ``states``, one vector further.
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


@njit(forceinline=True)
def _add_products(products, start, width, constant, count, n, at, maps, fixed):
    """Add what `reverse` left of ``width`` states to the gradient of their map."""
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


@njit(forceinline=True)
def add_all_products(width, constant_B, constant_C, count, n, at, tile, sums):
    """Add what `reverse` left of ``width`` states over a whole chunk to B's and C's gradients."""
    _add_products(tile.decays, 0, width, constant_B, count, n, at, sums.B, sums.fixed_B)
    start = width * LANES
    _add_products(tile.states, start, width, constant_C, count, n, at, sums.C, sums.fixed_C)


@njit(forceinline=True)
def _both_ways(maps, n, at, h, carry, width, constant_B, constant_C, gated, tile, count, sums):
    """Take ``width`` states forth and back through the chunk."""
    fixed = (constant_B, constant_C)
    replay(maps, n, at, h, width, *fixed, gated, tile, 0, count)
    carry = reverse(maps, n, at, h, carry, width, *fixed, tile, 0, count, sums)
    store(sums.carry, at, carry)
    add_all_products(width, *fixed, count, n, at, tile, sums)


@njit(forceinline=True)
def _all_ways(scan, maps, number, state, tile, count, sums):
    """Take all of a tile's states forth and back through the chunk."""
    states, together, gated = scan.A.shape[1], count_together(scan), scan.z.size > 0
    for n in range(0, together, WIDE):
        at = (number * states + n) * LANES
        h, carry = load_wide(state, at), load_wide(sums.carry, at)
        _both_ways(maps, n, at, h, carry, WIDE, False, False, gated, tile, count, sums)
    for n in range(together, states):
        at = (number * states + n) * LANES
        h, carry, fixed = load(state, at), load(sums.carry, at), (scan.constant_B, scan.constant_C)
        _both_ways(maps, n, at, h, carry, 1, *fixed, gated, tile, count, sums)


@njit(forceinline=True)
def _prepare(scan, maps, number, tile, count):
    """From raw inputs and the output's gradient (in dy) to what the recurrence needs."""
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
            slope = fma(mul(gate, s), sub(full_like(s, 1.0), s), s)
            store(tile.gate, k, mul(slope, d_out))
            store(tile.dy, k, mul(d_out, mul(gate, s)))


@njit(forceinline=True)
def _finish(scan, maps, number, tile, count, sums):
    """Leave the gradient of u in ``driven``, of delta in ``delta`` and of z in ``gate``."""
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


@njit(forceinline=True)
def open_tile_back(scan, block, number, first, count, maps, d_out, tile):
    """Fill in what the recurrence of a tile needs; no gradient of the output is one of zero."""
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


@njit(forceinline=True)
def close_tile_back(scan, block, number, first, count, maps, sums, tile, grads, accumulate):
    """Write a tile's gradients; the gate's may be added."""
    b, channel = block.batch, block.begin + number * LANES
    width = min(LANES, block.end - channel)
    _finish(scan, maps, number, tile, count, sums)
    write_tile(grads.u, b, channel, width, first, count, tile.driven)
    write_tile(grads.delta, b, channel, width, first, count, tile.delta)
    if scan.z.size:
        put_tile(grads.z, b, channel, width, first, count, tile.gate, accumulate, tile.y)


@njit
def _backward_block(scan, block, row, maps, saved, d_out, sums, tile, state, grads, accumulate):
    """Walk one block back along the sequence."""
    length, vectors = scan.u.shape[2], block.tiles * scan.A.shape[1]
    for chunk in range(saved.shape[1] - 1, -1, -1):
        first = chunk * CHUNK
        count = min(CHUNK, length - first)
        copy_vectors(saved[block.batch, chunk, row], vectors, state)
        read_chunk(scan, block, first, count, maps)
        sums.B[:] = 0.0
        sums.C[:] = 0.0
        for number in range(block.tiles):
            open_tile_back(scan, block, number, first, count, maps, d_out, tile)
            _all_ways(scan, maps, number, state, tile, count, sums)
            close_tile_back(scan, block, number, first, count, maps, sums, tile, grads, accumulate)
        write_maps(scan, block, first, count, sums, grads)


def scan_backward(
    counter,
    u,
    delta,
    A,
    B,
    C,
    D,
    z,
    bias,
    softplus,
    constant_B,
    constant_C,
    saved,
    d_out,
    d_last,
    du,
    d_delta,
    dz,
    accumulate,
    dB,
    dC,
    d_fixed_B,
    d_fixed_C,
    dA,
    dD,
    d_bias,
    d_initial,
):
    """Take tasks from the counter until none is left, and fill the gradients.

    ``counter`` is one int64 that all threads share, 0 at the start. The inputs up to
    ``constant_C`` are those of `Scan`, the gradients from ``du`` on those of `Gradients`.
    ``saved`` is what the forward kept; ``d_out`` has any strides; ``d_last`` (Bt, D, N) has size
    0 when the last state has no gradient. ``dz`` is added to if ``accumulate``.
    """
    scan = Scan(u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C)
    grads = Gradients(du, d_delta, dz, dB, dC, d_fixed_B, d_fixed_C, dA, dD, d_bias, d_initial)
    maps, sums, tile = make_maps(u, A.shape[1]), make_sums(u, A.shape[1]), make_tile(u)
    state = buffer(TILES * A.shape[1], u)
    groups, rows = count_groups(scan), saved.shape[2]
    while True:
        task = next_task(counter)
        if task >= u.shape[0] * rows:
            return
        block = place(task, u.shape[1], groups)
        read_maps(scan, block, maps)
        read_states(d_last, block, A.shape[1], sums.carry)
        for part in (sums.A, sums.fixed_B, sums.fixed_C, sums.D, sums.bias):
            part[:] = 0.0
        _backward_block(
            scan, block, task % rows, maps, saved, d_out, sums, tile, state, grads, accumulate
        )
        write_sums(scan, block, sums, grads)
