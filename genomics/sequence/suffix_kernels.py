"""Numba kernels of the suffix automaton; see ``genomics.sequence.matches``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first use and cache on disk if a folder is writable."""
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)


@_compiled
def insert(ids, following, link, length):
    """Add the substrings of ids to an empty automaton; return the number of states."""
    states, last = 1, 0
    for base in ids:
        if base == 4:
            last = 0
            continue
        there = following[last, base]
        if there != -1 and length[there] == length[last] + 1:
            last = there
            continue
        if there == -1:
            new = states
            states += 1
            length[new] = length[last] + 1
            place = last
            while place != -1 and following[place, base] == -1:
                following[place, base] = new
                place = link[place]
            last = new
            if place == -1:
                link[new] = 0
                continue
            there = following[place, base]
            if length[there] == length[place] + 1:
                link[new] = there
                continue
        else:
            place, new = last, -1
        clone = states
        states += 1
        length[clone] = length[place] + 1
        link[clone] = link[there]
        for code in range(4):
            following[clone, code] = following[there, code]
        link[there] = clone
        if new == -1:
            last = clone
        else:
            link[new] = clone
        while place != -1 and following[place, base] == there:
            following[place, base] = clone
            place = link[place]
    return states


@_compiled
def read(text, following, link, length, best):
    """Follow a text through an automaton and record the longest match of each state."""
    state, matched = 0, 0
    for base in text:
        if base == 4:
            state, matched = 0, 0
            continue
        while state != 0 and following[state, base] == -1:
            state = link[state]
            matched = length[state]
        if following[state, base] != -1:
            state = following[state, base]
            matched += 1
            best[state] = max(best[state], matched)


@_compiled
def to_suffixes(order, link, length, best):
    """Propagate matches to the suffixes of states, then to states without a match."""
    for state in order[::-1]:
        if best[state] > 0 and link[state] > 0:
            best[link[state]] = length[link[state]]
    for state in order:
        if best[state] == 0 and link[state] > 0:
            best[state] = best[link[state]]


@_compiled
def follow(ids, following, best, found):
    """Follow the sequences and write the match of the state at each position."""
    state = 0
    for place in range(len(ids)):
        if ids[place] == 4:
            state = 0
        else:
            state = following[state, ids[place]]
            found[place] = best[state]
