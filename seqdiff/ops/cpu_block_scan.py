"""Numba kernels of the selective scan over rows cut into blocks of tokens.

The scan runs through and leaves its state at every border of two blocks, or begins every block
from the border before it, or from zero. A task is, as in `seqdiff.ops.cpu_scan`, a row and some
channels; chunks end where blocks do. "Cut" is a block of tokens here, since "block" is one of
channels.
"""

# Numba passes intrinsics their first argument, the typing context, by itself.
# pyright: reportCallIssue=false
from __future__ import annotations

from typing import NamedTuple

from numba import njit

from .cpu_scan import copy_vectors, make_room, walk_chunk
from .cpu_scan_backward import walk_chunk_back
from .cpu_scan_blocks import CHUNK, TILES, Scan, count_groups, make_maps, place, read_maps
from .cpu_scan_buffers import Gradients, make_sums, make_tile, write_sums
from .cpu_simd import LANES, add, load, load_first, store, store_first
from .cpu_tasks import next_task
from .cpu_tiles import buffer, read_matrix, write_matrix


class Cuts(NamedTuple):
    """Where a row is cut: after ``lead`` positions, in reading order, and every ``period`` then.

    ``through`` says that the scan does not begin anew there.
    """

    period: int
    lead: int
    through: bool


@njit
def count_cuts(cuts, length):
    """How many blocks of tokens there are."""
    return 1 + -(-max(0, length - cuts.lead) // cuts.period)


@njit
def find_cut(cuts, length, number):
    """First position of a block of tokens and the one after its last."""
    first = 0 if number == 0 else cuts.lead + (number - 1) * cuts.period
    return first, min(length, cuts.lead + number * cuts.period)


@njit
def saved_place(cuts, number, chunk):
    """Where the state before a chunk other than a block's first is kept."""
    return number * ((cuts.period - 1) // CHUNK) + chunk - 1


@njit
def read_border(source, b, number, block, states, target):
    """Fill a task's states from ``source[b, number]``, (D, N); zeros where the source is absent."""
    if not source.size:
        target[:] = 0.0
        return
    size = source.itemsize
    for tile in range(block.tiles):
        channel, at = block.begin + tile * LANES, tile * states * LANES
        width = min(LANES, block.end - channel)
        if source.strides[2] != size:
            read_matrix(source[b, number], channel, width, target, at)
            continue
        begin = (b * source.strides[0] + number * source.strides[1]) // size + channel
        for n in range(states):
            value = load_first(source, begin + n * (source.strides[3] // size), width)
            store(target, at + n * LANES, value)


@njit
def write_border(target, b, number, block, states, source):
    """Undo `read_border`."""
    size = target.itemsize
    for tile in range(block.tiles):
        channel, at = block.begin + tile * LANES, tile * states * LANES
        width = min(LANES, block.end - channel)
        if target.strides[2] != size:
            write_matrix(target[b, number], channel, width, source, at)
            continue
        begin = (b * target.strides[0] + number * target.strides[1]) // size + channel
        for n in range(states):
            place = begin + n * (target.strides[3] // size)
            store_first(target, place, load(source, at + n * LANES), width)


@njit
def _forward_row(scan, block, row, cuts, maps, state, borders, out, accumulate, saved):
    """Walk one task along its row. ``row`` is its place in ``saved``."""
    length, states, room = scan.u.shape[2], scan.A.shape[1], make_room(scan.u)
    b = block.batch
    for number in range(count_cuts(cuts, length)):
        begin, end = find_cut(cuts, length, number)
        if number == 0 or not cuts.through:
            read_border(borders, b, number, block, states, state)
        for first in range(begin, end, CHUNK):
            count = min(CHUNK, end - first)
            ahead = min(CHUNK, cuts.period, length - first - count)
            if saved.size and first > begin:
                at = saved_place(cuts, number, (first - begin) // CHUNK)
                copy_vectors(state, block.tiles * states, saved[b, at, row])
            walk_chunk(scan, block, first, count, ahead, maps, state, out, accumulate, room)
        if cuts.through:
            write_border(borders, b, number + 1, block, states, state)


def block_scan_forward(
    counter, u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C,
    period, lead, through, borders, out, accumulate, saved,
):  # fmt: skip
    """Take tasks from the counter until none is left, and fill borders (if through), out, saved.

    Up to ``constant_C`` the arguments are those of `Scan`, up to ``through`` those of `Cuts`.
    ``borders`` (Bt, n, D, N) are the states before every block; if through, the first of them, and
    one more is filled, behind the last block. Without borders every block begins from zero.
    ``out`` of size 0 is not wanted. ``saved`` takes the states at the starts of chunks inside
    blocks, or has size 0.
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


@njit
def _add_border(source, b, number, block, states, carry, scratch):
    """Add the gradient that a border received to that of the state there."""
    read_border(source, b, number, block, states, scratch)
    for k in range(0, block.tiles * states * LANES, LANES):
        store(carry, k, add(load(carry, k), load(scratch, k)))


@njit
def _backward_row(
    scan, block, row, cuts, maps, borders, saved, d_out, flows, sums, tile, state, grads, accumulate
):
    """Walk one task back along its row."""
    length, states, b = scan.u.shape[2], scan.A.shape[1], block.batch
    cut_count = count_cuts(cuts, length)
    sums.carry[:] = 0.0
    for number in range(cut_count - 1, -1, -1):
        begin, end = find_cut(cuts, length, number)
        if cuts.through:
            _add_border(flows, b, number + 1, block, states, sums.carry, state)
        else:
            sums.carry[:] = 0.0
        for chunk in range((end - begin - 1) // CHUNK, -1, -1):
            first = begin + chunk * CHUNK
            if chunk:
                at = saved_place(cuts, number, chunk)
                copy_vectors(saved[b, at, row], block.tiles * states, state)
            else:
                read_border(borders, b, number, block, states, state)
            count = min(CHUNK, end - first)
            walk_chunk_back(
                scan, block, first, count, maps, d_out, sums, tile, state, grads, accumulate
            )
        if flows.size and not cuts.through:
            write_border(flows, b, number, block, states, sums.carry)
    if cuts.through:
        _add_border(flows, b, 0, block, states, sums.carry, state)
        write_border(flows, b, 0, block, states, sums.carry)


def block_scan_backward(
    counter, u, delta, A, B, C, D, z, bias, softplus, constant_B, constant_C,
    period, lead, through, borders, saved, d_out, flows,
    du, d_delta, dz, accumulate, dB, dC, d_fixed_B, d_fixed_C, dA, dD, d_bias, d_initial,
):  # fmt: skip
    """Take tasks from the counter until none is left, and fill the gradients.

    Arguments as in `block_scan_forward` and `seqdiff.ops.cpu_scan_backward.scan_backward`.
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
        for part in (sums.A, sums.fixed_B, sums.fixed_C, sums.D, sums.bias):
            part[:] = 0.0
        _backward_row(
            scan, block, task % rows, cuts, maps, borders, saved, d_out, flows, sums, tile, state,
            grads, accumulate,
        )  # fmt: skip
        write_sums(scan, block, sums, grads)
