"""How much of some sequences stands in others word for word, on either strand.

A word is found by a 64-bit hash: up to 32 bases its base-4 code, which is exact; beyond, a
polynomial (Karp and Rabin 1987, IBM J. Res. Dev. 31:249), and every match is then compared base by
base, so that none is reported that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, UInt8, UInt64

from .alphabet import MASK_ID, reverse_complement
from .kmers import join

_EXACT = 32  # bases in a code of 64 bits
_MULTIPLIER = 0x9E3779B97F4A7C15  # odd; 2^64 over the golden ratio, as in Fibonacci hashing
_TABLE_BITS = 22
_BLOCK = 1 << 21


@dataclass(frozen=True, eq=False)
class Overlap:
    """What of each sequence the text holds.

    Attributes:
        longest: Bases of the longest stretch that stands in the text, on either strand.
        words: Words of each sequence, N in none of them.
        contained: How many of them stand in the text, on either strand.
    """

    longest: Int64[np.ndarray, " n"]
    words: Int64[np.ndarray, " n"]
    contained: Int64[np.ndarray, " n"]

    @property
    def containment(self) -> float:
        """Share of all words that stand in the text; NaN without any."""
        total = self.words.sum()
        return float(self.contained.sum() / total) if total else float("nan")


def overlap(
    sequences: Sequence[UInt8[np.ndarray, " _"]],
    text: UInt8[np.ndarray, " N"],
    *,
    word: int = 20,
    on_progress: Callable[[], object] = lambda: None,
) -> Overlap:
    """Find the longest stretch of each sequence in a text, and count its words there.

    Args:
        sequences: Ids ``0..4``; an N matches nothing.
        text: Ids ``0..4``, for example of a training genome, one strand.
        word: Bases of a word.
        on_progress: Called after each reading of the text, of which there are about as many as the
            longest sequence has binary digits, or a few times that.
    """
    lengths = np.array([len(row) for row in sequences])
    words, contained = (np.zeros(len(sequences), dtype=np.int64) for _ in range(2))
    found = _present(sequences, text, word)
    for number, (known, present) in enumerate(found):
        words[number], contained[number] = known.sum(), present.sum()
    on_progress()
    least, most = np.zeros_like(lengths), lengths.copy()
    hit = contained > 0
    least[hit] = word
    most[(words > 0) & ~hit] = word - 1
    while (least < most).any():
        tried = (least + most + 1) // 2
        # One width at a time, the one that most sequences wait for.
        width = int(np.bincount(tried[least < most]).argmax())
        chosen = np.flatnonzero((least < most) & (tried == width))
        results = _present([sequences[i] for i in chosen.tolist()], text, width)
        there = np.array([present.any() for _, present in results])
        least[chosen[there]] = width
        most[chosen[~there]] = width - 1
        on_progress()
    return Overlap(least, words, contained)


def shares_word(
    sequences: Sequence[UInt8[np.ndarray, " _"]], text: UInt8[np.ndarray, " N"], word: int
) -> Bool[np.ndarray, " n"]:
    """Say which sequences have a word that stands in a text, on either strand.

    Args:
        sequences: Ids ``0..4``; an N matches nothing.
        text: Ids ``0..4``, one strand.
        word: Bases of a word.
    """
    return np.array([present.any() for _, present in _present(sequences, text, word)], dtype=bool)


def _present(
    sequences: Sequence[np.ndarray], text: np.ndarray, width: int
) -> list[tuple[Bool[np.ndarray, " _"], Bool[np.ndarray, " _"]]]:
    """For each word of each sequence: whether it is without N, and whether it is in the text."""
    forward = join(sequences)
    both = np.concatenate([forward, reverse_complement(forward)])
    known = known_words(both, width)
    present = np.zeros(len(both), dtype=bool)
    places = np.flatnonzero(known)
    if len(places) and len(text) >= width:
        present[places] = _find(both, places, text, width)
    # The word at p of the reverse complement is the opposite of that at size - p - width.
    size, half = len(both) // 2, present[len(both) // 2 :]
    either = present[:size].copy()
    either[: size - width + 1] |= half[: size - width + 1][::-1]
    starts = np.cumsum([0, *(len(row) + 1 for row in sequences)])[:-1]
    cuts = [slice(a, a + len(row)) for a, row in zip(starts, sequences, strict=True)]
    return [(known[cut], either[cut]) for cut in cuts]


def _find(
    queries: np.ndarray, places: np.ndarray, text: np.ndarray, width: int
) -> Bool[np.ndarray, " places"]:
    """Say of the words at some places whether the text holds them."""
    wanted, which = np.unique(word_hashes(queries, width)[places], return_inverse=True)
    example = places[np.unique(which, return_index=True)[1]]
    table = np.zeros(1 << _TABLE_BITS, dtype=bool)
    table[_slot(wanted)] = True
    there = np.zeros(len(wanted), dtype=bool)
    for first in range(0, len(text) - width + 1, _BLOCK):
        block = text[first : first + _BLOCK + width - 1]
        hashes = word_hashes(block, width)
        maybe = np.flatnonzero(table[_slot(hashes)])
        maybe = maybe[known_words(block, width)[maybe]]
        near = np.searchsorted(wanted, hashes[maybe])
        near[near == len(wanted)] = 0
        same = wanted[near] == hashes[maybe]
        # One place in the text for each word is enough.
        near, index = np.unique(near[same], return_index=True)
        if width > _EXACT:
            spread = np.arange(width)
            ours = queries[example[near][:, None] + spread]
            theirs = block[maybe[same][index][:, None] + spread]
            near = near[(ours == theirs).all(axis=1)]
        there[near] = True
    return there[which]


def _slot(hashes: UInt64[np.ndarray, " n"]) -> UInt64[np.ndarray, " n"]:
    return (hashes * np.uint64(_MULTIPLIER)) >> np.uint64(64 - _TABLE_BITS)


def word_hashes(ids: UInt8[np.ndarray, " N"], width: int) -> UInt64[np.ndarray, " M"]:
    """Hash the word at every place by doubling; one with an N has a meaningless hash.

    Args:
        ids: At least ``width`` of them.
        width: Bases of a word.

    Returns:
        N - width + 1 hashes; up to 32 bases the base-4 code.
    """
    base = 4 if width <= _EXACT else _MULTIPLIER
    power, size = ids.astype(np.uint64), 1
    if width > _EXACT:
        power += np.uint64(1)  # or a run of A at the start of a word would not count
    result, covered = np.zeros(len(ids) + 1, dtype=np.uint64), 0
    while True:
        if width & size:
            # The letters after those that are covered so far.
            count = len(ids) - covered - size + 1
            result = result[:count] * np.uint64(pow(base, size, 1 << 64))
            result += power[covered : covered + count]
            covered += size
        if covered == width:
            return result
        factor = np.uint64(pow(base, size, 1 << 64))
        power = power[:-size] * factor + power[size:]
        size *= 2


def known_words(ids: UInt8[np.ndarray, " N"], width: int) -> Bool[np.ndarray, " N"]:
    """Say where a word without N starts; none does that would pass the end."""
    unknown = np.concatenate([[0], np.cumsum(ids == MASK_ID, dtype=np.int64)])
    known = np.zeros(len(ids), dtype=bool)
    inside = max(0, len(ids) - width + 1)
    known[:inside] = unknown[width : width + inside] == unknown[:inside]
    return known
