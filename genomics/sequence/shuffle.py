"""Shuffle DNA uniformly among the sequences with the same dinucleotide counts."""

from __future__ import annotations

from itertools import product

import numpy as np
from jaxtyping import Float64, Int64, UInt8

from genomics.sequence.alphabet import BASES

_K = len(BASES)


def _trees() -> Int64[np.ndarray, "roots maps 4"]:
    """For each root, the maps from each other base to a next base that all lead to the root."""
    found = []
    for root in range(_K):
        maps = [m for m in product(range(_K), repeat=_K) if m[root] == root]
        found.append([m for m in maps if all(m[m[m[a]]] == root for a in range(_K))])
    return np.array(found)


_TREES = _trees()


def dinucleotide_shuffle(
    rows: UInt8[np.ndarray, "n L"], generator: np.random.Generator
) -> UInt8[np.ndarray, "n L"]:
    """Shuffle each row and keep its first and last base and all dinucleotide counts.

    A row is an Eulerian path through its dinucleotides. The last dinucleotides that leave each base
    form a tree whose root is the last base of the row. The tree is drawn with probability
    proportional to the product of their counts, and all other dinucleotides are put in random
    order. Every sequence with these counts and ends is then equally likely. Source: Altschul and
    Erickson 1985 (Mol. Biol. Evol. 2:526).

    Args:
        rows: Ids ``0..3``.
        generator: Random generator.

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
    # Equal dinucleotides are interchangeable, so the first one of the row becomes the last step.
    keys = generator.random(before.shape)
    for base in range(_K):
        moved = (before == base) & (after == last[:, base, None])
        chosen = np.flatnonzero(moved.any(axis=1) & (rows[:, -1] != base))
        keys[chosen, moved[chosen].argmax(axis=1)] = 1
    successors = np.take_along_axis(after, np.lexsort((keys, before)), axis=1)
    leaving = counts.sum(axis=2)
    index = leaving.cumsum(axis=1) - leaving
    result = rows.copy()
    for step in range(1, length):
        base = result[:, step - 1]
        result[:, step] = successors[line, index[line, base]]
        index[line, base] += 1
    return result


def _last_steps(
    counts: Int64[np.ndarray, "n 4 4"],
    root: UInt8[np.ndarray, " n"],
    generator: np.random.Generator,
) -> Int64[np.ndarray, "n 4"]:
    """Draw the successor of the last occurrence of each base."""
    maps = _TREES[root]
    weights: Float64[np.ndarray, "n maps 4"] = np.take_along_axis(
        counts[:, None].astype(np.float64), maps[..., None], axis=3
    )[..., 0]
    # If no dinucleotide starts with a base, only the maps that lead it to the root count.
    unused = counts.sum(axis=2)[:, None, :] == 0
    to_root = maps == root[:, None, None]
    weights = np.where(unused | (np.arange(_K) == root[:, None])[:, None], to_root, weights)
    bounds = weights.prod(axis=2).cumsum(axis=1)
    drawn = generator.random(len(counts)) * bounds[:, -1]
    chosen = (drawn[:, None] >= bounds[:, :-1]).sum(axis=1)
    return maps[np.arange(len(counts)), chosen]
