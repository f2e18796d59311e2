"""Numba kernels of the selective scan over rows cut into blocks of tokens.

The scan runs through and leaves its state at every border of two blocks, or begins every block
from the border before it, or from zero. A task is, as in `seqdiff.ops.cpu_scan`, a row and some
channels; its chunks hold several whole blocks of tokens or a part of one. A block of tokens is
called a cut here, since a block is one of channels.
"""

from __future__ import annotations

from numba import njit

from seqdiff.ops.bimamba.cpu_block_cuts import (
    Cuts,
    Span,
    border_at,
    count_groups_of_cuts,
    find_group_of_cuts,
    find_piece,
    saved_place,
)
from seqdiff.ops.cpu_simd.tasks import next_task
from seqdiff.ops.cpu_simd.tiles import buffer
from seqdiff.ops.cpu_simd.vectors import LANES, add, full_like, load, store
from seqdiff.ops.cpu_simd.wide import WIDE, load_rows, load_wide, store_rows
from seqdiff.ops.selective_scan.cpu_backward import (
    add_all_products,
    close_tile_back,
    open_tile_back,
    replay,
    reverse,
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
from seqdiff.ops.selective_scan.cpu_forward import (
    advance,
    close_tile,
    copy_vectors,
    make_room,
    open_tile,
)

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false


@njit(forceinline=True)
def _load_border(borders, span, number, n, like):
    """As many states as ``like`` has, from n on, before a cut; zeros where there are no borders."""
    if not borders.size:
        return full_like(like, 0.0)
    at, stride = border_at(borders, span, number, n)
    return load_rows(borders, at, stride, span.width, like)


@njit(forceinline=True)
def _store_border(borders, span, number, n, value):
    at, stride = border_at(borders, span, number, n)
    store_rows(borders, at, stride, span.width, value)


@njit(forceinline=True)
def _advance_pieces(cuts, span, maps, n, at, h, room, borders):
    """Move some states over a chunk, taking or leaving them at borders."""
    steps, driven, y = room
    for number in range(span.number, span.last + 1):
        begin, end, opens, closes = find_piece(cuts, span, number)
        if opens and (number == 0 or not cuts.through):
            h = _load_border(borders, span, number, n, h)
        h = advance(maps, n, at, h, False, False, steps, driven, begin, end, y)
        if closes and cuts.through:
            _store_border(borders, span, number + 1, n, h)
    return h


@njit(forceinline=True)
def _advance_tile(scan, cuts, span, maps, tile, room, state, borders):
    states, together = scan.A.shape[1], count_together(scan)
    for n in range(0, together, WIDE):
        at = (tile * states + n) * LANES
        h = load_wide(state, at)
        store(state, at, _advance_pieces(cuts, span, maps, n, at, h, room, borders))
    for n in range(together, states):
        at = (tile * states + n) * LANES
        h = load(state, at)
        store(state, at, _advance_pieces(cuts, span, maps, n, at, h, room, borders))


@njit
def _forward_row(scan, block, row, cuts, maps, state, borders, out, accumulate, saved):
    """Walk one task along its row. ``row`` is its place in ``saved``."""
    length, room, b = scan.u.shape[2], make_room(scan.u), block.batch
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
                _advance_tile(scan, cuts, span, maps, tile, room, state, borders)
                if out.size:
                    close_tile(scan, block, tile, first, count, ahead, out, accumulate, room)


def block_scan_forward(
    counter, u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C,
    period, lead, through, borders, out, accumulate, saved,
):  # fmt: skip
    """Take tasks from the counter until none is left, and fill borders (if through), out, saved.

    Up to ``constant_C``, which like ``constant_B`` must be false, the arguments are those of
    `Scan`, up to ``through`` those of `Cuts`. ``borders`` (Bt, n, D, N), channels adjacent, are the
    states before every cut; if through, the first of them, and the others are filled, one of them
    behind the last cut. Without borders every cut begins from zero. ``out`` of size 0 is not
    wanted. ``saved`` takes the states at the starts of chunks inside cuts, or has size 0.
    """
    scan = Scan(u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C)
    maps, state = make_maps(u, A.shape[1]), buffer(TILES * A.shape[1], u)
    cuts, groups = Cuts(period, lead, through), count_groups(scan)
    rows = groups * -(-(u.shape[1] // groups) // (LANES * TILES))
    while True:
        task = next_task(counter)
        if task >= u.shape[0] * rows:
            return
        block = place(task, u.shape[1], groups)
        read_maps(scan, block, maps)
        _forward_row(scan, block, task % rows, cuts, maps, state, borders, out, accumulate, saved)


@njit(forceinline=True)
def _pieces_back(cuts, span, maps, n, at, h, carry, width, gated, borders, flows, tile, sums):
    """Take some states forth over a chunk and their gradients back, with those of borders."""
    held = h
    for number in range(span.number, span.last + 1):
        begin, end, opens, _ = find_piece(cuts, span, number)
        if opens:
            h = _load_border(borders, span, number, n, h)
        h = replay(maps, n, at, h, width, False, False, gated, tile, begin, end)
    for number in range(span.last, span.number - 1, -1):
        begin, end, opens, closes = find_piece(cuts, span, number)
        start = _load_border(borders, span, number, n, h) if opens else held
        if closes and cuts.through:
            carry = add(carry, _load_border(flows, span, number + 1, n, carry))
        elif closes:
            carry = full_like(carry, 0.0)
        carry = reverse(maps, n, at, start, carry, width, False, False, tile, begin, end, sums)
        if opens and not cuts.through and flows.size:
            _store_border(flows, span, number, n, carry)
        if opens and cuts.through and number == 0:
            _store_border(flows, span, 0, n, add(carry, _load_border(flows, span, 0, n, carry)))
    store(sums.carry, at, carry)
    add_all_products(width, False, False, span.size, n, at, tile, sums)


@njit(forceinline=True)
def _tile_back(scan, cuts, span, maps, number, state, borders, flows, tile, sums):
    states, together, gated = scan.A.shape[1], count_together(scan), scan.z.size > 0
    for n in range(0, together, WIDE):
        at = (number * states + n) * LANES
        h, carry = load_wide(state, at), load_wide(sums.carry, at)
        _pieces_back(cuts, span, maps, n, at, h, carry, WIDE, gated, borders, flows, tile, sums)
    for n in range(together, states):
        at = (number * states + n) * LANES
        h, carry = load(state, at), load(sums.carry, at)
        _pieces_back(cuts, span, maps, n, at, h, carry, 1, gated, borders, flows, tile, sums)


@njit
def _chunk_back(
    scan, block, span, cuts, maps, borders, d_out, flows, sums, tile, state, grads, accumulate
):
    """Walk one task back over a chunk, which ``span`` describes for its first tile."""
    first, count = span.first, span.size
    read_chunk(scan, block, first, count, maps)
    sums.B[:] = 0.0
    sums.C[:] = 0.0
    for k in range(block.tiles):
        channel = block.begin + k * LANES
        width = min(LANES, block.end - channel)
        own = Span(span.batch, channel, width, first, count, span.length, span.number, span.last)
        open_tile_back(scan, block, k, first, count, maps, d_out, tile)
        _tile_back(scan, cuts, own, maps, k, state, borders, flows, tile, sums)
        close_tile_back(scan, block, k, first, count, maps, sums, tile, grads, accumulate)
    write_maps(scan, block, first, count, sums, grads)


@njit
def _backward_row(
    scan, block, row, cuts, maps, borders, saved, d_out, flows, sums, tile, state, grads, accumulate
):
    """Walk one task back along its row."""
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


def block_scan_backward(
    counter, u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C,
    period, lead, through, borders, saved, d_out, flows,
    du, d_delta, dz, accumulate, dB, dC, d_fixed_B, d_fixed_C, dA, dD, d_bias, d_initial,
):  # fmt: skip
    """Take tasks from the counter until none is left, and fill the gradients.

    Arguments as in `block_scan_forward` and `selective_scan.cpu_backward.scan_backward`.
    ``flows`` are the gradients of the borders: filled where blocks begin anew; if through, given,
    and to the first is added what reaches it through the row. ``d_out`` of size 0 is zero;
    ``d_initial`` is overwritten with what is of no use.
    """
    scan = Scan(u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C)
    grads = Gradients(du, d_delta, dz, dB, dC, d_fixed_B, d_fixed_C, dA, dD, d_bias, d_initial)
    maps, sums, tile = make_maps(u, A.shape[1]), make_sums(u, A.shape[1]), make_tile(u)
    state, cuts = buffer(TILES * A.shape[1], u), Cuts(period, lead, through)
    groups = count_groups(scan)
    rows = groups * -(-(u.shape[1] // groups) // (LANES * TILES))
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
