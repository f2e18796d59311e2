"""Longest exact matches between generated sequences and a training text, on either strand.

The suffix automaton of the sequences holds all their substrings in linear time and memory.

Source: Blumer et al. 1985, Theoretical Computer Science 40:31; for several sequences at once,
Blumer et al. 1987, Journal of the ACM 34:578.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32, Int64, UInt8

from genomics.sequence import suffix_kernels
from genomics.sequence.alphabet import MASK_ID, reverse_complement
from genomics.sequence.kmers import join


class SuffixAutomaton(NamedTuple):
    """States stand for stretches that end at the same places; 0 is the empty one.

    Attributes:
        following: State after one more base, -1 where no sequence goes on so.
        link: State of the longest suffix that ends at more places; -1 of the empty stretch.
        length: Bases of the longest stretch of a state.
    """

    following: Int32[np.ndarray, "states 4"]
    link: Int32[np.ndarray, " states"]
    length: Int32[np.ndarray, " states"]


def build(ids: UInt8[np.ndarray, " N"]) -> SuffixAutomaton:
    """Build the automaton of all stretches without N.

    Args:
        ids: Ids ``0..4``, fewer than 2^30, N between sequences.
    """
    size = 2 * len(ids) + 1
    following = np.full((size, MASK_ID), -1, dtype=np.int32)
    link, length = np.full(size, -1, dtype=np.int32), np.zeros(size, dtype=np.int32)
    states = suffix_kernels.insert(ids, following, link, length)
    return SuffixAutomaton(following[:states], link[:states], length[:states])


def longest_in_text(
    automaton: SuffixAutomaton, text: UInt8[np.ndarray, " N"]
) -> Int32[np.ndarray, " states"]:
    """Say of each state how long the longest suffix of its stretches is that the text holds.

    Args:
        automaton: Of the sequences.
        text: Ids ``0..4``; an N matches nothing.
    """
    best = np.zeros(len(automaton.link), dtype=np.int32)
    suffix_kernels.read(text, *automaton, best)
    order = np.argsort(automaton.length, kind="stable")
    suffix_kernels.to_suffixes(order, automaton.link, automaton.length, best)
    return best


def longest_ending_at(
    automaton: SuffixAutomaton,
    held: Int32[np.ndarray, " states"],
    ids: UInt8[np.ndarray, " N"],
) -> Int32[np.ndarray, " N"]:
    """Say of each place how long the stretch that ends there and that the text holds is.

    Args:
        automaton: From ``build(ids)``.
        held: From ``longest_in_text``.
        ids: The sequences.
    """
    found = np.zeros(len(ids), dtype=np.int32)
    suffix_kernels.follow(ids, automaton.following, held, found)
    return found


_BATCH_BASES = 1 << 22  # of an automaton, which takes up to 48 bytes a base


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

    The time is linear in the text and in the sequences, the memory in four million bases of these
    at once, for each of which both strands of the text are read.

    Args:
        sequences: Ids ``0..4``; an N matches nothing.
        text: Ids ``0..4``, for example of a training genome, one strand.
        word: Bases of a word.
        on_progress: Called after each reading of the text.
    """
    counts = [
        (int(held.max(initial=0)), int(_known_words(row, word).sum()), int((held >= word).sum()))
        for row, held in _held(sequences, text, on_progress)
    ]
    longest, words, contained = np.array(counts, dtype=np.int64).reshape(-1, 3).T
    return Overlap(longest, words, contained)


def shares_word(
    sequences: Sequence[UInt8[np.ndarray, " _"]], text: UInt8[np.ndarray, " N"], word: int
) -> Bool[np.ndarray, " n"]:
    """Say which sequences have a word that stands in a text, on either strand.

    Args:
        sequences: Ids ``0..4``; an N matches nothing.
        text: Ids ``0..4``, one strand.
        word: Bases of a word.
    """
    return overlap(sequences, text, word=word).longest >= word


def _held(
    sequences: Sequence[np.ndarray], text: np.ndarray, on_progress: Callable[[], object]
) -> Iterator[tuple[np.ndarray, Int32[np.ndarray, " _"]]]:
    """Each sequence, and how long the stretch is that ends at each place and stands in the text."""
    for rows in _batches(sequences):
        ids = join(rows)
        automaton = build(ids)
        held = np.zeros(len(ids), dtype=np.int32)
        for strand in (text, reverse_complement(text)):
            ending = longest_ending_at(automaton, longest_in_text(automaton, strand), ids)
            held = np.maximum(held, ending)
            on_progress()
        ends = np.cumsum([len(row) + 1 for row in rows])
        for row, end in zip(rows, ends, strict=True):
            yield row, held[end - 1 - len(row) : end - 1]


def _batches(sequences: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    """Consecutive sequences of about as many bases as an automaton has at most."""
    batch, size = [], 0
    for row in sequences:
        batch.append(row)
        size += len(row) + 1
        if size >= _BATCH_BASES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _known_words(ids: np.ndarray, width: int) -> Bool[np.ndarray, " N"]:
    """Where a word without N starts; none does that would pass the end."""
    unknown = np.concatenate([[0], np.cumsum(ids == MASK_ID, dtype=np.int64)])
    known = np.zeros(len(ids), dtype=bool)
    inside = max(0, len(ids) - width + 1)
    known[:inside] = unknown[width : width + inside] == unknown[:inside]
    return known
