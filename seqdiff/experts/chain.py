"""The arrays of a chain of n-grams, from its counts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from seqdiff.ops.ngram_chain import ChainArrays

_MOST_DENSE = 1 << 22  # probabilities after states of one length that are kept for every state

Counts = tuple[np.ndarray, np.ndarray]


def chain_arrays(
    levels: Sequence[Counts], discounts: Sequence[float], concentrations: Sequence[float], K: int
) -> ChainArrays:
    """Compute the probabilities and the states of a chain.

    Args:
        levels: The words of 1, 2, ... tokens that occur, in order, and how often they do. A word is
            a number in base K whose last digit is its last token.
        discounts: See ``NGramTable``.
        concentrations: See ``NGramTable``.
        K: Number of symbols.
    """
    order = depth = len(levels) - 1
    while depth > 0 and K ** (depth + 1) > _MOST_DENSE:
        depth -= 1
    off = np.cumsum([0] + [K**k for k in range(depth + 1)])
    probs, dense = np.full((1, K), 1 / K), []
    for k in range(depth + 1):
        words, found = levels[k]
        counts = np.zeros((K**k, K))
        counts.reshape(-1)[words] = found
        gain, keep = _smoothed(
            np.repeat(np.arange(K**k), K), counts.reshape(-1), K**k, discounts[k], concentrations[k]
        )
        shorter = np.tile(probs, (K if k else 1, 1))
        probs = keep[:, None] * shorter + gain.reshape(-1, K)
        dense.append(probs.astype(np.float32))

    # States that are not dense: their tokens as numbers, their places, and the tokens after them.
    codes: dict[int, np.ndarray] = {}
    base = {depth + 1: int(off[-1])}
    for k in range(depth + 1, order + 1):
        codes[k] = np.unique(levels[k][0] // K)
        base[k + 1] = base[k] + len(codes[k])

    def longest(word: np.ndarray, most: int) -> np.ndarray:
        """Find the longest of the last tokens of words, at most ``most``, that are a state."""
        state = off[depth] + word % K**depth
        for k in range(depth + 1, most + 1):
            if not len(codes[k]):  # no row was as long
                break
            place = np.searchsorted(codes[k], word % K**k).clip(max=len(codes[k]) - 1)
            state = np.where(codes[k][place] == word % K**k, base[k] + place, state)
        return state

    parents, keeps, firsts, tokens, gains, leads = ([] for _ in range(6))
    for k in range(depth + 1, order + 1):
        words, found = levels[k]
        state = np.searchsorted(codes[k], words // K)
        gain, keep = _smoothed(state, found, len(codes[k]), discounts[k], concentrations[k])
        parents.append(longest(codes[k], k - 1))
        keeps.append(keep)
        firsts.append(sum(map(len, tokens)) + np.searchsorted(state, np.arange(len(codes[k]))))
        tokens.append(words % K)
        gains.append(gain)
        leads.append(longest(words, min(k + 1, order)))
    following = np.empty((0, K), np.int64)
    if depth < order:
        following = longest(np.arange(K ** (depth + 1)), depth + 1).reshape(-1, K)
    firsts.append(np.array([sum(map(len, tokens))]))
    return ChainArrays(
        np.concatenate(dense),
        following,
        off,
        _together(parents, np.int64),
        _together(keeps, np.float32),
        _together(firsts, np.int64),
        _together(tokens, np.int64),
        _together(gains, np.float32),
        _together(leads, np.int64),
        order,
        depth,
    )


def _smoothed(
    state: np.ndarray, counts: np.ndarray, number: int, discount: float, concentration: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each word adds to a probability, and what the probability before it keeps."""
    seen = np.bincount(state, weights=counts, minlength=number) + concentration
    distinct = np.bincount(state, weights=counts > 0, minlength=number)
    gain = np.maximum(counts - discount, 0) / seen[state]
    return gain, (concentration + discount * distinct) / seen


def _together(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)
