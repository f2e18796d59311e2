"""Shuffles of DNA that keep every dinucleotide: each such arrangement is equally likely."""

from __future__ import annotations

from itertools import product

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from genomics.sequence.alphabet import BASES

_K = len(BASES)


def _trees() -> Int64[np.ndarray, "roots maps 4"]:
    """For each root, the maps of the other letters to a next one by which all reach the root."""
    found = []
    for root in range(_K):
        maps = [m for m in product(range(_K), repeat=_K) if m[root] == root]
        found.append([m for m in maps if all(m[m[m[a]]] == root for a in range(_K))])
    return np.array(found)


_TREES = _trees()


def dinucleotide_shuffle(
    rows: UInt8[np.ndarray, "n L"], generator: np.random.Generator
) -> UInt8[np.ndarray, "n L"]:
    """Shuffle each row; its first and last base and every dinucleotide's count stay.

    Altschul and Erickson 1985 (Mol. Biol. Evol. 2:526): a row is an Eulerian path through its
    dinucleotides. The last ones to be left by form a tree to the last base, which is drawn with
    probability proportional to the product of their counts; all others come in random order. So
    every sequence with these counts and ends is equally likely.

    Args:
        rows: Ids ``0..3``.
        generator: Of the draws.

    Raises:
        ValueError: If an id is not in ``0..3``.
    """
    if rows.size and rows.max() >= _K:
        raise ValueError(
            f"dinucleotide_shuffle.rows must hold ids in 0..{_K - 1}, got {rows.max()}; "
            "leave rows with N out"
        )
    num, length = rows.shape
    if num == 0 or length < 3:
        return rows.copy()
    before, after = rows[:, :-1].astype(np.int64), rows[:, 1:].astype(np.int64)
    line = np.arange(num)
    pairs = (line[:, None] * _K + before) * _K + after
    counts = np.bincount(pairs.ravel(), minlength=num * _K * _K).reshape(num, _K, _K)
    last = _last_steps(counts, rows[:, -1], generator)
    # Which of several equal steps is the last one is a matter of names: the first in the row.
    keys = generator.random(before.shape)
    for letter in range(_K):
        moved = (before == letter) & (after == last[:, letter, None])
        chosen = np.flatnonzero(moved.any(axis=1) & (rows[:, -1] != letter))
        keys[chosen, moved[chosen].argmax(axis=1)] = 1
    successors = np.take_along_axis(after, np.lexsort((keys, before)), axis=1)
    leaving = counts.sum(axis=2)
    place = leaving.cumsum(axis=1) - leaving
    result = rows.copy()
    for step in range(1, length):
        letter = result[:, step - 1]
        result[:, step] = successors[line, place[line, letter]]
        place[line, letter] += 1
    return result


def _last_steps(
    counts: Int64[np.ndarray, "n 4 4"],
    root: UInt8[np.ndarray, " n"],
    generator: np.random.Generator,
) -> Int64[np.ndarray, "n 4"]:
    """Draw where each letter is left to for the last time."""
    maps = _TREES[root]
    weights: Float64[np.ndarray, "n maps 4"] = np.take_along_axis(
        counts[:, None].astype(np.float64), maps[..., None], axis=3
    )[..., 0]
    # A letter that is never left does not choose: one of its maps counts, the one to the root.
    unused = counts.sum(axis=2)[:, None, :] == 0
    to_root = maps == root[:, None, None]
    weights = np.where(unused | (np.arange(_K) == root[:, None])[:, None], to_root, weights)
    bounds = weights.prod(axis=2).cumsum(axis=1)
    drawn = generator.random(len(counts)) * bounds[:, -1]
    chosen = (drawn[:, None] >= bounds[:, :-1]).sum(axis=1)
    return maps[np.arange(len(counts)), chosen]
