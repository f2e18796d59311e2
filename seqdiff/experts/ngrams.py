"""Interpolated n-gram tables, as tensors that any device looks words up in."""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer
from torch import Tensor

from seqdiff.experts.chain import chain_arrays
from seqdiff.files import read_npz_array
from seqdiff.ops.ngram_chain import ChainArrays

# A row of the table for every word as long as there are at most so many words of that length.
_MOST_DENSE = 1 << 22
_MOST_WORDS = 1 << 26
# Most contexts of one length, if not all words after them are counted.
_MOST_CONTEXTS = 1 << 20
_MERGED_TOKENS = 1 << 22
_CHOICE_TOKENS = 1 << 18
_FOLLOWERS = 1 << 22  # of contexts, at a time
_CONCENTRATIONS = tuple(2.0**power for power in range(-2, 13))
_DISCOUNTS = (0.0, 0.25, 0.5, 0.75, 0.9)

Rows = tuple[Integer[np.ndarray, "n L"], Bool[np.ndarray, "n L"]]


MOST_ORDER = 24
"""Longest context of any table."""


def most_order(vocab_size: int) -> int:
    """Longest context whose words, with the token that follows, are numbers of 63 bits."""
    order = 0
    while order < MOST_ORDER and vocab_size ** (order + 2) < 2**63:
        order += 1
    return order


@dataclass(frozen=True, eq=False)
class _Level:
    """Counts of the words of one length.

    A word is a number in base K whose last digit is its last token.

    Attributes:
        counts: Of each word.
        words: The words that occur, in order; ``None`` if every word has a count.
        parts: The same counts in each part of the rows, or ``None``.
    """

    counts: Integer[Tensor, " n"]
    words: Int[Tensor, " n"] | None = None
    parts: Integer[Tensor, "p n"] | None = None

    def to(self, device: torch.device | str) -> _Level:
        """Move to a device."""
        return _Level(
            self.counts.to(device),
            None if self.words is None else self.words.to(device),
            None if self.parts is None else self.parts.to(device),
        )

    def occurring(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the words that occur, in order, and their counts."""
        counts = self.counts.numpy().astype(np.int64)
        words = np.arange(len(counts)) if self.words is None else self.words.numpy()
        return words[counts > 0], counts[counts > 0]

    def unigrams(self, vocab_size: int) -> Int[Tensor, " K"]:
        """Count all tokens; for words of one token."""
        return self._spread(self.counts, vocab_size)

    def unigrams_outside(self, vocab_size: int) -> Int[Tensor, "p K"]:
        """Count the tokens outside of each part; for words of one token."""
        assert self.parts is not None
        return self._spread(self.counts - self.parts.long(), vocab_size)

    def _spread(self, counts: Tensor, vocab_size: int) -> Tensor:
        """Add tokens that do not occur."""
        if self.words is None:
            return counts.long()
        found = counts.new_zeros((*counts.shape[:-1], vocab_size), dtype=torch.int64)
        found[..., self.words] = counts.long()
        return found

    def occurrences(self, words: np.ndarray) -> np.ndarray:
        """Return how often words occur."""
        counts = self.counts.numpy()
        if self.words is None:
            return counts[words]
        if not len(counts):
            return np.zeros(len(words), np.int64)
        place = np.searchsorted(self.words.numpy(), words).clip(max=len(counts) - 1)
        return np.where(self.words.numpy()[place] == words, counts[place], 0)

    def keep(self, kept: Bool[np.ndarray, " n"]) -> _Level:
        """Keep some of the words, if not every word has a count."""
        assert self.words is not None
        chosen = torch.from_numpy(kept)
        parts = None if self.parts is None else self.parts[:, chosen]
        return _Level(self.counts[chosen], self.words[chosen], parts)

    def followers(
        self, context: Int[Tensor, " m"], vocab_size: int, part: Int[Tensor, " m"] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Find the tokens that followed contexts.

        Returns:
            For each pair of a context and a token that has followed it: the number of the context
            in ``context``, the token, and how often, which may be 0 outside of a part.
        """
        K, device = vocab_size, context.device
        if self.words is None:
            row = torch.arange(len(context), device=device).repeat_interleave(K)
            place = (context[:, None] * K + torch.arange(K, device=device)).flatten()
            token = torch.arange(K, device=device).repeat(len(context))
        else:
            edges = torch.stack((context * K, (context + 1) * K))
            first, last = torch.searchsorted(self.words, edges)
            row = torch.arange(len(context), device=device).repeat_interleave(last - first)
            begin = (last - first).cumsum(0) - (last - first)
            place = torch.arange(len(row), device=device) - begin[row] + first[row]
            token = self.words[place] % K
        count = self.counts[place]
        if part is not None and self.parts is not None:
            count = count - self.parts[part[row], place]
        return row, token, count


class NGramTable:
    """How often each token followed each context of up to ``order`` tokens, in one direction.

    The probability of a token x after the context c of k tokens is::

        (max(count(c x) - d, 0) + (m + d followers(c)) p(x)) / (count(c) + m)

    where followers(c) is the number of different tokens that followed c, and p is the probability
    of order k - 1, after c without its first token, or 1/K below order 0. The discount d and the
    concentration m depend on the order k. Without discounts it is ``BackoffModel``. Source: the
    predictive distribution of Teh 2006, "A hierarchical Bayesian language model based on
    Pitman-Yor processes", equation 6, with one table for each follower.

    Attributes:
        vocab_size: K.
        order: Longest context in tokens.
        discounts: d of each order, from 0 on.
        concentrations: m of each order, likewise.
    """

    def __init__(
        self,
        vocab_size: int,
        levels: Sequence[_Level],
        discounts: Sequence[float],
        concentrations: Sequence[float],
        least: int = 1,
    ) -> None:
        """Keep the counts; see ``count``, which makes a table."""
        self.vocab_size = vocab_size
        self.order = len(levels) - 1
        self.discounts = tuple(discounts)
        self.concentrations = tuple(concentrations)
        self._levels = list(levels)
        self._least = least

    @classmethod
    def count(
        cls, parts: Sequence[Callable[[], Iterator[Rows]]], vocab_size: int, order: int
    ) -> NGramTable:
        """Count the words of rows, and choose the discounts and concentrations.

        Where there are more than 2^22 possible words of a length, those after rare contexts are
        left out: a context must occur at least c times, where c is the smallest power of 2 that is
        not below the c of shorter contexts and leaves at most 2^20 contexts of this length.

        Those of an order are the pair of 0, 1/4, 1/2, 3/4, 9/10 and of 2^-2, 2^-1, ..., 2^12 with
        the highest likelihood of a sample of the tokens, each predicted from the other parts.

        Args:
            parts: Parts of the data, in the order of their numbers. Each returns its blocks of rows
                and of where they hold a known token. Words do not cross rows or unknown tokens.
            vocab_size: K.
            order: Longest context.

        Raises:
            ValueError: If the order is out of range, an id is not below K, or there are fewer than
                two parts with a known token.
        """
        most = most_order(vocab_size)
        if not 0 <= order <= most:
            raise ValueError(
                f"experts.order must be in 0..{most} for {vocab_size} symbols, got {order}; "
                "choose a smaller order"
            )
        full = 1
        while full <= order and vocab_size ** (full + 1) <= _MOST_DENSE:
            full += 1
        levels, samples = _count_all(parts, vocab_size, order, full)
        assert levels[0].parts is not None
        known_parts = int(levels[0].parts.any(dim=1).sum())
        if known_parts < 2:
            raise ValueError(
                "experts must count at least two parts with a known token, got "
                f"{known_parts}; train on more rows, or set experts to null"
            )
        least = 1
        while len(levels) <= order:
            while (levels[-1].counts.numpy() >= least).sum() > _MOST_CONTEXTS:
                least *= 2
            levels.append(_count_after(parts, vocab_size, levels, full, least))
        table = cls(vocab_size, levels, [0.0] * (order + 1), [1.0] * (order + 1), least)
        table._choose(samples)
        table._levels = [_Level(level.counts, level.words) for level in levels]
        return table

    def _choose(self, samples: Sequence[tuple[np.ndarray, ...]]) -> None:
        """Choose the numbers of each order in turn, given those of the lower orders."""
        step = -(-sum(len(run) for _, run, _, _ in samples) // _CHOICE_TOKENS)
        digits, run, token, part = (
            torch.from_numpy(np.concatenate(found)[::step].astype(np.int64))
            for found in zip(*samples, strict=True)
        )
        probs = torch.full((len(token),), 1 / self.vocab_size, dtype=torch.float64)
        chosen = []
        pairs = list(itertools.product(_DISCOUNTS, _CONCENTRATIONS))
        for k in range(self.order + 1):
            found = (run >= k).nonzero()[:, 0]
            if k == 0:  # one context, which every token follows
                counts = self._levels[0].unigrams_outside(self.vocab_size).double()
                seen, distinct = counts.sum(1)[part], (counts > 0).double().sum(1)[part]
                followed = counts[part, token]
            else:
                context = _number(digits[found, :k], self.vocab_size)
                seen, followed, distinct = torch.zeros(3, len(found), dtype=torch.float64)
                size = max(1, _FOLLOWERS // self.vocab_size)
                for chunk in (slice(i, i + size) for i in range(0, len(found), size)):
                    row, follower, count = self._levels[k].followers(
                        context[chunk], self.vocab_size, part[found[chunk]]
                    )
                    same = follower == token[found[chunk]][row]
                    seen[chunk].index_add_(0, row, count.double())
                    followed[chunk].index_add_(0, row[same], count[same].double())
                    distinct[chunk].index_add_(0, row, (count > 0).double())
            lower, best = probs[found], -math.inf
            chosen.append(pairs[0])
            for d, m in pairs:
                higher = (followed - d).clamp_min(0) + (m + d * distinct) * lower
                likelihood = float((higher / (seen + m)).log().sum())
                if likelihood > best:
                    best, chosen[-1], probs[found] = likelihood, (d, m), higher / (seen + m)
        discounts, concentrations = zip(*chosen, strict=True)
        self.discounts, self.concentrations = tuple(discounts), tuple(concentrations)

    def probs(self, digits: Int[Tensor, "N n"], run: Int[Tensor, " N"]) -> Float[Tensor, "N K"]:
        """Distribution of the token after contexts.

        Args:
            digits: The tokens before it, the nearest first; at least ``order`` columns.
            run: How many of them are known, from the nearest on.
        """
        K = self.vocab_size
        # Without context there is one distribution.
        counts = self._levels[0].unigrams(K).to(torch.get_default_dtype())
        d, m = self.discounts[0], self.concentrations[0]
        passed = m + d * (counts > 0).sum()
        base = ((counts - d).clamp_min(0) + passed / K) / (counts.sum() + m)
        probs = base.expand(len(run), K).clone()
        alive = torch.arange(len(run), device=run.device)
        orders = zip(self._levels, self.discounts, self.concentrations, strict=True)
        for k, (level, d, m) in itertools.islice(enumerate(orders), 1, None):
            alive = alive[run[alive] >= k]
            context = _number(digits[alive, :k], K)
            row, token, count = level.followers(context, K)
            count = count.to(probs.dtype)
            seen = torch.zeros(len(alive), device=run.device).index_add(0, row, count)
            passed = torch.full_like(seen, m)
            if d > 0:
                passed = passed.index_add(0, row, d * (count > 0).to(probs.dtype))
                count = (count - d).clamp_min(0)
            higher = (passed / (seen + m))[:, None] * probs[alive]
            higher.view(-1).index_add_(0, row * K + token, count / (seen + m)[row])
            probs[alive] = higher
            alive = alive[seen > 0]
        return probs

    @functools.cached_property
    def chain(self) -> ChainArrays:
        """The arrays of the chain in which this is the distribution of the next token."""
        levels = [level.occurring() for level in self.to("cpu")._levels]
        return chain_arrays(levels, self.discounts, self.concentrations, self.vocab_size)

    @property
    def has_long_words(self) -> bool:
        """Whether there are words that ``after_frequent`` may leave out."""
        return any(level.words is not None and len(level.words) for level in self._levels[1:])

    def shorter(self) -> NGramTable:
        """Return a table without the longest contexts."""
        numbers = self.discounts[:-1], self.concentrations[:-1]
        return NGramTable(self.vocab_size, self._levels[:-1], *numbers)

    def after_frequent(self) -> NGramTable:
        """Return a table whose long words follow contexts that occur at least 2c times.

        Here c is the largest of any length, see ``count``, and long words are those of all lengths
        of which not all words are counted.
        """
        levels, least = [self._levels[0]], 2 * self._least
        for shorter, level in itertools.pairwise(self._levels):
            if level.words is not None:
                contexts = level.words.numpy() // self.vocab_size
                level = level.keep(shorter.occurrences(contexts) >= least)
            levels.append(level)
        return NGramTable(self.vocab_size, levels, self.discounts, self.concentrations, least)

    @property
    def device(self) -> torch.device:
        """The device of the counts."""
        return self._levels[0].counts.device

    def to(self, device: torch.device | str) -> NGramTable:
        """Copy to a device."""
        levels = [level.to(device) for level in self._levels]
        numbers = self.discounts, self.concentrations
        return NGramTable(self.vocab_size, levels, *numbers, self._least)

    def encode(self) -> bytes:
        """Write as an npz file, without the counts of parts."""
        arrays = {"numbers": np.array([self.discounts, self.concentrations])}
        for k, level in enumerate(self._levels):
            arrays[f"counts{k}"] = _narrow(level.counts.numpy())
            if level.words is not None:
                steps = np.diff(level.words.numpy(), prepend=0)
                arrays[f"words{k}"] = steps.view(np.uint8).reshape(-1, 8).T.copy()
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **arrays)
        return file.getvalue()

    @classmethod
    def decode(cls, content: bytes, vocab_size: int) -> NGramTable:
        """Read what ``encode`` wrote.

        Raises:
            ValueError: If it is damaged.
        """
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as file:
                numbers = read_npz_array(file, "numbers").astype(np.float64)
                if numbers.ndim != 2 or len(numbers) != 2:
                    raise ValueError("numbers of another shape")
                d, m = numbers
                if not 1 <= len(m) <= most_order(vocab_size) + 1:
                    raise ValueError("another order")
                if not (np.isfinite(m).all() and (m > 0).all() and ((d >= 0) & (d < 1)).all()):
                    raise ValueError("discounts or concentrations out of range")
                levels = [
                    _read_level(
                        vocab_size ** (k + 1),
                        read_npz_array(file, f"counts{k}"),
                        read_npz_array(file, f"words{k}") if f"words{k}" in file else None,
                    )
                    for k in range(len(m))
                ]
        except Exception as error:
            raise ValueError(f"a damaged table of n-grams ({error}); count it again") from error
        return cls(vocab_size, levels, d.tolist(), m.tolist())


def smaller(tables: Sequence[NGramTable]) -> list[NGramTable]:
    """Return tables of one order with fewer words.

    Long words after rare contexts are left out, see ``NGramTable.after_frequent``. If no table has
    long words any more, all lose their longest contexts. The discounts and concentrations of the
    others stay the same.
    """
    if any(table.has_long_words for table in tables):
        return [table.after_frequent() for table in tables]
    return [table.shorter() for table in tables]


def _read_level(num_words: int, counts: np.ndarray, steps: np.ndarray | None) -> _Level:
    """Check and convert the arrays of one level."""
    words = None
    if counts.ndim != 1 or counts.dtype.kind != "u" or len(counts) > _MOST_WORDS:
        raise ValueError("counts of another shape")
    if steps is None:
        if len(counts) != num_words:
            raise ValueError("counts of another number of words")
    else:
        if steps.dtype != np.uint8 or steps.shape != (8, len(counts)):
            raise ValueError("words of another shape")
        words = np.ascontiguousarray(steps.T).view(np.int64)[:, 0].cumsum()
        if len(words) and not (0 <= words[0] and words[-1] < num_words):
            raise ValueError("words out of range")
        if (words[1:] <= words[:-1]).any():
            raise ValueError("words out of order")
    return _Level(_tensor(counts), None if words is None else torch.from_numpy(words))


class _Tally:
    """Counts of words, merged whenever many have come together."""

    def __init__(self, num_words: int) -> None:
        self._num_words = num_words
        self._words, self._counts = np.empty(0, np.int64), np.empty(0, np.int64)
        self._waiting: list[np.ndarray] = []
        self._size = 0

    def add(self, words: np.ndarray) -> None:
        self._waiting.append(words)
        self._size += len(words)
        if self._size >= _MERGED_TOKENS:
            self._merge()

    def _merge(self) -> None:
        words = np.concatenate((np.empty(0, np.int64), *self._waiting))
        if self._num_words <= _MOST_DENSE:
            found = np.bincount(words, minlength=self._num_words)
            self._counts = found if not len(self._counts) else self._counts + found
        else:
            words, counts = np.unique(words, return_counts=True)
            self._words, self._counts = _sum_equal(
                np.concatenate((self._words, words)), np.concatenate((self._counts, counts))
            )
        self._waiting, self._size = [], 0

    def total(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the words, in order, and their counts; the counts of all words if they are few."""
        self._merge()
        return self._words, self._counts


def _sum_equal(words: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Add the counts of equal words up."""
    unique, place = np.unique(words, return_inverse=True)
    return unique, np.bincount(place, weights=counts, minlength=len(unique)).astype(np.int64)


def _together(found: Sequence[tuple[np.ndarray, np.ndarray]], num_words: int) -> _Level:
    """Put the counts of several parts together."""
    if num_words <= _MOST_DENSE:
        dtype = _narrowest(max(int(counts.max()) for _, counts in found))
        parts = np.stack([counts.astype(dtype) for _, counts in found])
        return _Level(_tensor(parts.sum(axis=0, dtype=np.int64)), None, torch.from_numpy(parts))
    words = np.unique(np.concatenate([words for words, _ in found]))
    most = max(int(counts.max(initial=0)) for _, counts in found)
    parts = np.zeros((len(found), len(words)), dtype=_narrowest(most))
    for row, (own, counts) in zip(parts, found, strict=True):
        row[np.searchsorted(words, own)] = counts
    total = _tensor(parts.sum(axis=0, dtype=np.int64))
    return _Level(total, torch.from_numpy(words), torch.from_numpy(parts))


def _narrowest(most: int) -> type[np.integer]:
    """The narrowest integers for counts of which torch can index a tensor."""
    return np.uint8 if most < 2**8 else np.int16 if most < 2**15 else np.int32


def _tensor(counts: np.ndarray) -> Tensor:
    return torch.from_numpy(counts.astype(_narrowest(int(counts.max(initial=0)))))


def _count_all(
    parts: Sequence[Callable[[], Iterator[Rows]]], vocab_size: int, order: int, lengths: int
) -> tuple[list[_Level], list[tuple[np.ndarray, ...]]]:
    """Count all words of up to ``lengths`` tokens, and keep a sample of the tokens to choose on."""
    found: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(lengths)]
    samples: list[tuple[np.ndarray, ...]] = []
    for number, part in enumerate(parts):
        tally = [_Tally(vocab_size ** (k + 1)) for k in range(lengths)]
        for tokens, known in part():
            samples.append(_sample(tokens, known, vocab_size, order, number))
            for k in range(lengths):
                tally[k].add(_words(tokens, known, vocab_size, k + 1))
        for k in range(lengths):
            found[k].append(tally[k].total())
    return [_together(own, vocab_size ** (k + 1)) for k, own in enumerate(found)], samples


def _count_after(
    parts: Sequence[Callable[[], Iterator[Rows]]],
    vocab_size: int,
    levels: Sequence[_Level],
    full: int,
    least: int,
) -> _Level:
    """Count the words of the next length after contexts that occur at least ``least`` times.

    Args:
        parts: See ``NGramTable.count``.
        vocab_size: K.
        levels: Counts of shorter words.
        full: The length up to which all words are counted.
        least: See above.
    """
    length, shorter = len(levels) + 1, levels[-1]
    frequent = shorter if shorter.words is None else shorter.keep(shorter.counts.numpy() >= least)
    found = []
    for part in parts:
        tally = _Tally(vocab_size**length)
        for tokens, known in part():
            words = _words(tokens, known, vocab_size, length)
            # The last tokens of a frequent context are frequent, and fast to look up.
            for ends, level in {full: levels[full - 1], length - 1: frequent}.items():
                context = words // vocab_size % vocab_size**ends
                words = words[level.occurrences(context) >= least]
            tally.add(words)
        found.append(tally.total())
    return _together(found, vocab_size**length)


def _words(
    tokens: np.ndarray, known: np.ndarray, vocab_size: int, length: int
) -> Int[np.ndarray, " n"]:
    """Number the words of known tokens of one length in a block."""
    last = tokens.shape[1] - length + 1
    if last <= 0:
        return np.empty(0, np.int64)
    words, whole = np.zeros((len(tokens), last), np.int64), known[:, :last].copy()
    for k in range(length):
        words *= vocab_size
        words += tokens[:, k : k + last]
        whole &= known[:, k : k + last]
    return words[whole]


def _sample(
    tokens: np.ndarray, known: np.ndarray, vocab_size: int, order: int, part: int
) -> tuple[np.ndarray, ...]:
    """Keep an evenly spaced thirty-second of the known tokens of a block, to choose on.

    Returns:
        The tokens before each, the nearest first; how many of them are known; the token; the part.
    """
    token = tokens[known]
    if len(token) and not 0 <= token.min() <= token.max() < vocab_size:
        raise ValueError(
            f"NGramTable.rows must be in 0..{vocab_size - 1} where they are known, got "
            f"{token.min()}..{token.max()}; mark the others as unknown"
        )
    step = 32 if len(token) > _CHOICE_TOKENS // 16 else 1
    row, place = np.unravel_index(np.flatnonzero(known)[::step], known.shape)
    digits = np.zeros((len(row), order), dtype=np.int64)
    run, unbroken = np.zeros(len(row), dtype=np.int64), np.ones(len(row), dtype=bool)
    for k in range(1, min(order, tokens.shape[1] - 1) + 1):
        before = row, np.maximum(place - k, 0)
        unbroken &= (place >= k) & known[before]
        digits[:, k - 1] = np.where(unbroken, tokens[before], 0)
        run += unbroken
    columns = digits, run, token[::step], np.full(len(row), part)
    return tuple(_narrow(column) for column in columns)


def _number(digits: Int[Tensor, "m k"], vocab_size: int) -> Int[Tensor, " m"]:
    """The number of contexts whose nearest token comes first."""
    powers = [vocab_size**j for j in range(digits.shape[1])]
    scale = torch.tensor(powers, dtype=torch.int64, device=digits.device)
    return (digits * scale).sum(dim=1)


def _narrow(numbers: np.ndarray) -> np.ndarray:
    """Convert to the narrowest unsigned integers that hold the numbers."""
    most = int(numbers.max(initial=0))
    return numbers.astype(np.min_scalar_type(most))


def blocks_of(
    rows: Iterator[Rows], complement: Sequence[int] | None, *, backwards: bool = False
) -> Iterator[Rows]:
    """Add the opposite strand of rows, or read them backwards.

    Args:
        rows: Blocks of ids and of where they are known.
        complement: Complement of each id, to add the reverse complement of every row; ``None``
            adds nothing.
        backwards: Reverse the rows.
    """
    for tokens, known in rows:
        if backwards:
            tokens, known = tokens[:, ::-1], known[:, ::-1]
        yield tokens, known
        if complement is not None:
            other = np.array(complement)[np.where(known, tokens, 0)]
            yield other[:, ::-1], known[:, ::-1]
