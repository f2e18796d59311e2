"""An interpolated Markov chain: every order is smoothed towards the next lower one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer

# Rows of ids, and where they hold a known token.
Block = tuple[Integer[np.ndarray, "_ _"], Bool[np.ndarray, "_ _"]]

# Longer contexts of a test sequence hardly ever occur in training data.
_LONGEST_ORDER = 24
_CONCENTRATIONS = tuple(2.0**power for power in range(11))


class _Level(NamedTuple):
    """Counts of the contexts of one order for the tokens of a block.

    Attributes:
        place: Tokens whose context has been seen, by their number among the known tokens.
        seen: Number of times that the context has been seen.
        followed: Number of times that the token followed it.
    """

    place: Int64[np.ndarray, " t"]
    seen: Int64[np.ndarray, " t"]
    followed: Int64[np.ndarray, " t"]


class ContextCounts:
    """How often each token followed each context of up to ``order`` tokens.

    A context is a number in base K + 1 whose leading digit is its last token. So contexts with the
    same last tokens are neighbours in a sorted list, and two binary searches count any context of
    any order. A second list has the following token in front of each context. This takes 16 bytes
    per token of training, for any order.

    Attributes:
        vocab_size: K.
        order: Longest context in tokens.
    """

    def __init__(self, blocks: Iterable[Block], vocab_size: int, order: int) -> None:
        """Count.

        Args:
            blocks: Rows to learn from. An unknown token is not counted and ends the contexts of
                those after it; contexts do not cross rows.
            vocab_size: K.
            order: Longest context, at most ``longest_order(vocab_size)``.

        Raises:
            ValueError: If the order is out of range or an id is not below K.
        """
        most = longest_order(vocab_size)
        if not 0 <= order <= most:
            raise ValueError(
                f"ContextCounts.order must be in 0..{most} for {vocab_size} symbols, got {order}; "
                "choose a smaller order"
            )
        self.vocab_size, self.order = vocab_size, order
        contexts, words = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for tokens, known in blocks:
            context, token = self._encode(tokens, known)
            contexts.append(context)
            words.append(token * self._base**order + context)
        self._contexts, self._words = np.concatenate(contexts), np.concatenate(words)
        self._contexts.sort()
        self._words.sort()

    @property
    def _base(self) -> int:
        return self.vocab_size + 1

    def levels(
        self, tokens: Integer[np.ndarray, "n L"], known: Bool[np.ndarray, "n L"]
    ) -> Iterator[_Level]:
        """Look the tokens of a block up in the contexts of the orders 0, 1, ....

        Args:
            tokens: Rows of ids.
            known: True at known tokens.

        Yields:
            A ``_Level`` for each order.

        Raises:
            ValueError: If an id is not below K.
        """
        context, token = self._encode(tokens, known)
        # Sort the words, so that equal ones are neighbours and are searched for once.
        place = np.argsort(token * self._base**self.order + context)
        for k in range(self.order + 1):
            width = self._base ** (self.order - k)
            if k:
                place = place[context[place] // width % self._base > 0]
            first = context[place] // width * width
            seen = _between(self._contexts, first, width)
            place, first, seen = (found[seen > 0] for found in (place, first, seen))
            words = token[place] * self._base**self.order + first
            yield _Level(place, seen, _between(self._words, words, width))

    def _encode(self, tokens: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Contexts of the known tokens of a block, and the tokens."""
        found = tokens[known].astype(np.int64)
        if len(found) and not 0 <= found.min() <= found.max() < self.vocab_size:
            raise ValueError(
                f"ContextCounts.tokens must be in 0..{self.vocab_size - 1} where they are known, "
                f"got {found.min()}..{found.max()}; mark the others as unknown"
            )
        digits = np.where(known, tokens.astype(np.int64) + 1, 0)
        context = np.zeros(tokens.shape, dtype=np.int64)
        unbroken = np.ones(tokens.shape, dtype=bool)
        for k in range(1, self.order + 1):
            context *= self._base
            unbroken[:, :k] = False
            unbroken[:, k:] &= known[:, :-k]
            context[:, k:] += digits[:, :-k] * unbroken[:, k:]
        return context[known], found


@dataclass(frozen=True, eq=False)
class BackoffModel:
    """A Markov chain whose every order is smoothed towards the next lower one.

    The probability of a token x after the context c of k tokens is
    ``(count(c x) + m p(x)) / (count(c) + m)``, where p is that of order k - 1, after c without its
    first token; below order 0 it is 1/K. It is the mean under a Dirichlet prior around p with the
    concentration m. A context that has not been seen leaves p as it is. At the beginning of a row
    and after an unknown token, the context is shorter. So the probabilities of a row are normalised
    given which of its tokens are known. Source: MacKay and Peto 1995, "A hierarchical Dirichlet
    language model", Natural Language Engineering 1:289.

    Attributes:
        counts: Counts of the training sequence.
        order: Longest context, at most that of ``counts``.
        concentration: m, in tokens. Towards 0 only the longest context that has been seen matters;
            towards infinity all tokens are equally likely.
    """

    counts: ContextCounts
    order: int
    concentration: float

    def __post_init__(self) -> None:
        """Check the numbers.

        Raises:
            ValueError: If the order is not counted or the concentration not positive.
        """
        if not 0 <= self.order <= self.counts.order:
            raise ValueError(
                f"BackoffModel.order must be in 0..{self.counts.order}, got {self.order}; count "
                "longer contexts or choose a smaller order"
            )
        if not 0 < self.concentration < math.inf:
            raise ValueError(
                f"BackoffModel.concentration must be above 0 and finite, got {self.concentration}; "
                "64 is usual for DNA"
            )

    @classmethod
    def choose(cls, counts: ContextCounts, blocks: Iterable[Block]) -> BackoffModel:
        """Choose the order and the concentration with the highest likelihood of held-out rows.

        Every order of the counts is tried with the concentrations 1, 2, 4, ..., 1024. Among equals
        the lowest order is chosen.

        Args:
            counts: Counts of the training sequence.
            blocks: Rows to choose on, apart from those of training and of later evaluation.

        Raises:
            ValueError: If no row holds a known token.
        """
        totals, known_tokens = np.zeros((counts.order + 1, len(_CONCENTRATIONS))), 0
        m = np.array(_CONCENTRATIONS)[:, None]
        for tokens, known in blocks:
            probs = np.full((len(m), int(known.sum())), 1 / counts.vocab_size)
            known_tokens += probs.shape[1]
            nats = -np.log(probs).sum(axis=1)
            for k, level in enumerate(counts.levels(tokens, known)):
                lower = probs[:, level.place]
                higher = (level.followed + m * lower) / (level.seen + m)
                nats -= np.log(higher / lower).sum(axis=1)
                probs[:, level.place] = higher
                totals[k] += nats
        if not known_tokens:
            raise ValueError(
                "BackoffModel.blocks must hold a known token, got none; choose on other rows"
            )
        order, place = np.unravel_index(int(totals.argmin()), totals.shape)
        return cls(counts, int(order), _CONCENTRATIONS[place])

    def nats(
        self, tokens: Integer[np.ndarray, "n L"], known: Bool[np.ndarray, "n L"]
    ) -> Float64[np.ndarray, " n"]:
        """Score rows: minus log-probability of the known tokens of each, in nats.

        Args:
            tokens: Ids below K where they are known.
            known: True at known tokens.

        Raises:
            ValueError: If an id is not below K.
        """
        probs = np.full(int(known.sum()), 1 / self.counts.vocab_size)
        levels = self.counts.levels(tokens, known)
        for _, level in zip(range(self.order + 1), levels, strict=False):
            lower = self.concentration * probs[level.place]
            probs[level.place] = (level.followed + lower) / (level.seen + self.concentration)
        nats = np.zeros(tokens.shape)
        nats[known] = -np.log(probs)
        return nats.sum(axis=1)


def longest_order(vocab_size: int) -> int:
    """Longest context that ``ContextCounts`` can count: 24 tokens, or as many as fit 63 bits.

    Args:
        vocab_size: K; (K + 1) ** (order + 1) must not pass 2^63.
    """
    order = 0
    while order < _LONGEST_ORDER and (vocab_size + 1) ** (order + 2) < 2**63:
        order += 1
    return order


def _between(
    numbers: Int64[np.ndarray, " n"], first: Int64[np.ndarray, " t"], width: int
) -> Int64[np.ndarray, " t"]:
    """Count the sorted numbers in ``[first, first + width)``; equal neighbours once for all."""
    if not len(first):
        return np.empty(0, np.int64)
    begins = np.append(True, first[1:] != first[:-1])
    sought = first[begins]
    found = np.searchsorted(numbers, sought + width) - np.searchsorted(numbers, sought)
    return found[np.cumsum(begins) - 1]
