"""The suffix automaton of some sequences: every stretch of them in linear time and memory.

Source: Blumer et al. 1985, Theoretical Computer Science 40:31; of several sequences at once, Blumer
et al. 1987, Journal of the ACM 34:578.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Int32, UInt8

from . import cpu_suffixes
from .alphabet import MASK_ID


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
    states = cpu_suffixes.insert(ids, following, link, length)
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
    cpu_suffixes.read(text, *automaton, best)
    order = np.argsort(automaton.length, kind="stable")
    cpu_suffixes.to_suffixes(order, automaton.link, automaton.length, best)
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
    cpu_suffixes.follow(ids, automaton.following, held, found)
    return found
