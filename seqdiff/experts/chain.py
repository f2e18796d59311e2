"""The arrays of a chain of n-grams, from its counts."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from seqdiff.ops.ngram_chain import ChainArrays

_MOST_DENSE = 1 << 22  # most words of one length whose contexts are all states
_MOST_NUMBERS = 1 << 24  # most states times symbols, if all states are dense

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

    Raises:
        ValueError: If a word occurs, but the word without its first token does not.
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
        seen = counts.sum(axis=1) + concentrations[k]
        gain = np.maximum(counts - discounts[k], 0) / seen[:, None]
        keep = (concentrations[k] + discounts[k] * (counts > 0).sum(axis=1)) / seen
        shorter = np.tile(probs, (K if k else 1, 1))
        probs = keep[:, None] * shorter + gain
        dense.append(probs.astype(np.float32))

    # States that are not dense: their tokens as numbers, their places, and the tokens after them.
    codes: dict[int, np.ndarray] = {}
    begins: dict[int, np.ndarray] = {}
    base = {depth + 1: int(off[-1])}
    for k in range(depth + 1, order + 1):
        contexts = levels[k][0] // K
        begins[k] = np.flatnonzero(np.diff(contexts, prepend=-1))
        codes[k] = contexts[begins[k]]
        base[k + 1] = base[k] + len(codes[k])

    def longer(word: np.ndarray, k: int, shorter: np.ndarray) -> np.ndarray:
        """Find the states of words of k tokens, which are ``shorter`` if they have not occurred."""
        if k > order or not len(codes[k]):
            return shorter
        place = np.searchsorted(codes[k], word).clip(max=len(codes[k]) - 1)
        return np.where(codes[k][place] == word, base[k] + place, shorter)

    following = []
    for k in range(depth + 1):
        every = np.arange(K ** (k + 1))
        shorter = off[min(k + 1, depth)] + every % K ** min(k + 1, depth)
        following.append((longer(every, k + 1, shorter) if k == depth else shorter).reshape(-1, K))
    parents, keeps, firsts, tokens, gains, leads = ([] for _ in range(6))
    for k in range(depth + 1, order + 1):
        words, found = levels[k]
        lengths = np.diff(begins[k], append=len(words))
        seen = np.add.reduceat(found, begins[k]) + concentrations[k] if len(words) else found
        gains.append(np.maximum(found - discounts[k], 0) / np.repeat(seen, lengths))
        keeps.append((concentrations[k] + discounts[k] * lengths) / seen)
        firsts.append(sum(map(len, tokens)) + begins[k])
        tokens.append(words % K)
        without = codes[k] % K ** (k - 1)
        ends = words % K**k
        if k == depth + 1:
            parents.append(off[depth] + without)
            after = following[depth].reshape(-1)[ends]
        else:  # without their first token they have occurred too
            parents.append(base[k - 1] + _places(codes[k - 1], without))
            after = leads[-1][_places(levels[k - 1][0], ends)]
        leads.append(longer(words, k + 1, after))
    firsts.append(np.array([sum(map(len, tokens))]))
    chain = ChainArrays(
        np.concatenate(dense),
        np.concatenate(following).astype(np.int32),
        off,
        _together(parents, np.int32),
        _together(keeps, np.float32),
        _together(firsts, np.int64),
        _together(tokens, np.int16),
        _together(gains, np.float32),
        _together(leads, np.int32),
        order,
        depth,
    )
    few = base[order + 1] * K <= _MOST_NUMBERS
    return _all_dense(chain, [base[k] for k in range(depth + 1, order + 2)]) if few else chain


def _all_dense(chain: ChainArrays, begins: Sequence[int]) -> ChainArrays:
    """Turn sparse states into dense ones.

    Args:
        chain: The chain.
        begins: The first sparse state of each length, and the number of states.
    """
    K = chain.dense.shape[1]
    many, first = len(chain.dense), chain.first
    dense, following = np.empty((begins[-1], K), np.float32), np.empty((begins[-1], K), np.int32)
    dense[:many], following[:many] = chain.dense, chain.following
    for begin, end in itertools.pairwise(begins):  # a state comes after the one without a token
        own = slice(begin - many, end - many)
        parent, lengths = chain.parent[own], np.diff(first[begin - many : end - many + 1])
        followed = np.repeat(np.arange(begin, end), lengths)
        seen = slice(first[begin - many], first[end - many])
        dense[begin:end] = dense[parent] * chain.keep[own, None]
        dense[followed, chain.token[seen]] += chain.gain[seen]
        following[begin:end] = following[parent]
        following[followed, chain.token[seen]] = chain.leads[seen]
    none = {name: getattr(chain, name)[:0] for name in ("parent", "keep", "token", "gain", "leads")}
    return chain._replace(dense=dense, following=following, first=first[:1], **none)


def _places(numbers: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Find where numbers are in a sorted list that has all of them."""
    found = np.searchsorted(numbers, wanted)
    if (len(wanted) and found.max() == len(numbers)) or (numbers[found] != wanted).any():
        raise ValueError("a damaged table of n-grams (it lacks the end of a word); count it again")
    return found


def _together(parts: Sequence[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *parts]).astype(dtype)
