"""Longest exact matches between generated sequences and a training text, on either strand.

The suffix automaton of the sequences represents all their substrings in linear time and memory.

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

_BATCH_BASES = 1 << 22  # of an automaton, which takes up to 48 bytes per base


class SuffixAutomaton(NamedTuple):
    """A state is a set of substrings that end at the same positions; 0 is the empty string.

    Attributes:
        following: State after one more base, or -1 if no sequence continues with that base.
        link: State of the longest suffix that ends at more positions, -1 for the empty string.
        length: Bases of the longest substring of a state.
    """

    following: Int32[np.ndarray, "states 4"]
    link: Int32[np.ndarray, " states"]
    length: Int32[np.ndarray, " states"]


def build(ids: UInt8[np.ndarray, " N"]) -> SuffixAutomaton:
    """Build the automaton of all substrings without N.

    Args:
        ids: Ids ``0..4``, fewer than 2^30, with N between sequences.
    """
    size = 2 * len(ids) + 1
    following = np.full((size, MASK_ID), -1, dtype=np.int32)
    link, length = np.full(size, -1, dtype=np.int32), np.zeros(size, dtype=np.int32)
    states = suffix_kernels.insert(ids, following, link, length)
    return SuffixAutomaton(following[:states], link[:states], length[:states])


@dataclass(frozen=True, eq=False)
class Overlap:
    """Substrings of each sequence that occur in a text on either strand.

    Attributes:
        longest: Bases of the longest substring that occurs in the text.
        words: Number of words (k-mers) without N in each sequence.
        contained: Number of these words that occur in the text.
    """

    longest: Int64[np.ndarray, " n"]
    words: Int64[np.ndarray, " n"]
    contained: Int64[np.ndarray, " n"]

    @property
    def containment(self) -> float:
        """Fraction of all words that occur in the text; NaN without words."""
        total = self.words.sum()
        return float(self.contained.sum() / total) if total else float("nan")


def overlap(
    sequences: Sequence[UInt8[np.ndarray, " _"]],
    text: UInt8[np.ndarray, " N"],
    *,
    word: int = 20,
    on_progress: Callable[[], object] = lambda: None,
) -> Overlap:
    """Find the longest match of each sequence in a text and count the words that occur in it.

    Time is linear in the text and in the sequences. The sequences are processed in batches of four
    million bases; each batch reads both strands of the text.

    Args:
        sequences: Ids ``0..4``; an N matches nothing.
        text: Ids ``0..4`` of one strand, for example of a training genome.
        word: Bases of a word.
        on_progress: Called after each pass over the text.
    """
    counts = [
        (int(match.max(initial=0)), _count_known(row, word), int((match >= word).sum()))
        for row, match in _matches(sequences, text, on_progress)
    ]
    longest, words, contained = np.array(counts, dtype=np.int64).reshape(-1, 3).T
    return Overlap(longest, words, contained)


def shares_word(
    sequences: Sequence[UInt8[np.ndarray, " _"]], text: UInt8[np.ndarray, " N"], word: int
) -> Bool[np.ndarray, " n"]:
    """Return which sequences share a word of ``word`` bases with a text, on either strand."""
    return overlap(sequences, text, word=word).longest >= word


def _matches(
    sequences: Sequence[np.ndarray], text: np.ndarray, on_progress: Callable[[], object]
) -> Iterator[tuple[np.ndarray, Int32[np.ndarray, " _"]]]:
    """Yield each sequence with the length of the longest match that ends at each position."""
    for rows in _batches(sequences):
        ids = join(rows)
        automaton = build(ids)
        order = np.argsort(automaton.length, kind="stable")
        match = np.zeros(len(ids), dtype=np.int32)
        for strand in (text, reverse_complement(text)):
            of_state = np.zeros(len(automaton.link), dtype=np.int32)
            suffix_kernels.read(strand, *automaton, of_state)
            suffix_kernels.to_suffixes(order, automaton.link, automaton.length, of_state)
            ending = np.zeros(len(ids), dtype=np.int32)
            suffix_kernels.follow(ids, automaton.following, of_state, ending)
            match = np.maximum(match, ending)
            on_progress()
        ends = np.cumsum([len(row) + 1 for row in rows])
        for row, end in zip(rows, ends, strict=True):
            yield row, match[end - 1 - len(row) : end - 1]


def _batches(sequences: Sequence[np.ndarray]) -> Iterator[list[np.ndarray]]:
    batch, size = [], 0
    for row in sequences:
        batch.append(row)
        size += len(row) + 1
        if size >= _BATCH_BASES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _count_known(ids: np.ndarray, width: int) -> int:
    """Count the words without N."""
    unknown = np.concatenate([[0], np.cumsum(ids == MASK_ID, dtype=np.int64)])
    return int((unknown[width:] == unknown[:-width]).sum())
