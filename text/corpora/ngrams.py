"""Character n-gram models fitted by counting, as baselines for likelihoods."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from jaxtyping import Bool, Float64, Int64

from seqdiff.experts import Block


class NGramModel:
    """An interpolated Witten-Bell model of fixed order, with all lower orders.

    The probability of a symbol x after a context c is ``(count(c x) + d(c) p(x)) / (count(c) +
    d(c))``. Here d(c) is the number of different symbols that follow c, and p is the distribution
    of the next lower order. Below order 0, p is uniform. At the start of a row, the context is
    shorter.
    Source: Witten and Bell 1991, IEEE Trans. Inf. Theory 37:1085, method C.

    Attributes:
        vocab_size: K.
        order: Longest context in symbols.
    """

    def __init__(self, blocks: Iterable[Block], vocab_size: int, order: int) -> None:
        """Count the words (n-grams) of rows.

        Args:
            blocks: Rows of ids, and a mask that is true at positions other than padding. Padding
                is at the end of a row.
            vocab_size: K.
            order: Longest context; ``(K + 1) ** (order + 1)`` must be less than 2^63.

        Raises:
            ValueError: If the order is out of range.
        """
        if order < 0 or (vocab_size + 1) ** (order + 1) >= 2**63:
            raise ValueError(
                f"NGramModel.order must be at least 0, and ({vocab_size} + 1) ** (order + 1) must "
                f"be less than 2^63, got {order}; choose a smaller order"
            )
        self.vocab_size, self.order = vocab_size, order
        found: list[list[np.ndarray]] = [[] for _ in range(order + 1)]
        for tokens, held in blocks:
            for k, (codes, known) in enumerate(self._words(tokens, held)):
                found[k].append(codes[known])
        self._counts = [_count(parts) for parts in found]
        self._contexts = [self._count_contexts(*counted) for counted in self._counts]

    def _count_contexts(self, words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the contexts, their counts, and how many different symbols follow each."""
        contexts, place = np.unique(words // self.vocab_size, return_inverse=True)
        total = np.bincount(place, counts, len(contexts))
        return contexts, total, np.bincount(place, minlength=len(contexts)).astype(float)

    def _words(
        self, tokens: np.ndarray, held: np.ndarray
    ) -> Iterable[tuple[Int64[np.ndarray, "n L"], Bool[np.ndarray, "n L"]]]:
        """Yield codes of the words of 1, 2, ... symbols that end at each position, and a mask."""
        tokens_held = np.where(held, tokens, 0).astype(np.int64)
        codes, known = tokens_held.copy(), held.copy()
        yield codes, known
        for k in range(1, self.order + 1):
            codes = codes.copy()
            codes[:, k:] += tokens_held[:, :-k] * self.vocab_size**k
            known = known.copy()
            known[:, :k] = False
            yield codes, known

    def nats_by_order(
        self, blocks: Iterable[Block]
    ) -> tuple[Float64[np.ndarray, "orders n"], Int64[np.ndarray, " n"]]:
        """Score rows with this model and with each of its lower orders.

        Returns:
            Nats of each row under each of the orders 0, 1, ..., and the symbols counted in it.
        """
        parts, counted = [np.zeros((self.order + 1, 0))], [np.zeros(0, dtype=np.int64)]
        for tokens, held in blocks:
            nats = np.zeros((self.order + 1, len(tokens)))
            probs = np.full(tokens.shape, 1 / self.vocab_size)
            for k, (codes, known) in enumerate(self._words(tokens, held)):
                words = codes[known]
                count = _look_up(*self._counts[k], words)
                contexts, total, different = self._contexts[k]
                above = words // self.vocab_size
                d = _look_up(contexts, different, above)
                n = _look_up(contexts, total, above)
                seen = n > 0
                lower = probs[known]
                lower[seen] = (count + d * lower)[seen] / (n + d)[seen]
                probs[known] = lower
                nats[k] = -np.log(probs, out=np.zeros_like(probs), where=held).sum(axis=1)
            parts.append(nats)
            counted.append(held.sum(axis=1))
        return np.concatenate(parts, axis=1), np.concatenate(counted)


def _count(parts: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    words, counts = np.unique(np.concatenate([np.zeros(0, np.int64), *parts]), return_counts=True)
    return words, counts.astype(float)


def _look_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Look up values by key; a missing key gives 0."""
    if not len(keys):
        return np.zeros(len(wanted))
    place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[place] == wanted, values[place], 0.0)
