"""The posterior of unknown tokens in an n-gram chain, on the CPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


class ChainArrays(NamedTuple):
    """A chain of n-grams as arrays; ``cpu_kernels`` explains states and their numbers.

    Attributes:
        dense: Probability of every token after every dense state.
        following: The state after every dense state and token.
        off: The first state of 0, 1, ..., ``depth + 1`` tokens.
        parent: The state without its oldest token, of each sparse state.
        keep: What the probabilities after that state are multiplied by.
        first: Where the tokens that followed each sparse state begin; the last one ends the list.
        token: Those tokens, in order for each state.
        gain: What is added to their probability.
        leads: The state that they lead to.
        order: Longest state, in tokens.
        depth: Up to how many tokens every string is a state.
    """

    dense: Float[np.ndarray, "S K"]
    following: Int[np.ndarray, "S K"]
    off: Int[np.ndarray, " D"]
    parent: Int[np.ndarray, " C"]
    keep: Float[np.ndarray, " C"]
    first: Int[np.ndarray, " C1"]
    token: Int[np.ndarray, " F"]
    gain: Float[np.ndarray, " F"]
    leads: Int[np.ndarray, " F"]
    order: int
    depth: int


def chain_posterior(
    chain: ChainArrays,
    tokens: Int[Tensor, "R L"],
    start: Int[Tensor, " R"],
    stop: Int[Tensor, " R"],
    beam: int,
    wide: int,
) -> Float[Tensor, "R L K"]:
    """Compute the distribution of every unknown token of a chain, given all visible ones.

    It is exact if every string of ``order`` tokens is a state and there are no more than ``beam``
    of them, or if unknown tokens are so few that no position can be reached in more than ``beam``
    states, even if equal ones are counted several times. Otherwise states that are unlikely given
    the tokens on both sides forget all their tokens, and the result is an approximation. It is
    always a distribution that depends on visible tokens only. The forward and backward passes are
    those of Rabiner 1989, "A tutorial on hidden Markov models", section III, whose states are here
    the last tokens.

    Args:
        chain: The chain.
        tokens: Ids, K where unknown.
        start: First position of each row; those before it do not exist.
        stop: The position after its last one.
        beam: Most states before an unknown token, besides the empty one; at least 1.
        wide: Most states before a visible token, likewise; at least ``beam``.

    Returns:
        Probabilities in float32, on the CPU; 0 at visible tokens.
    """
    from seqdiff.ops.cpu_simd.runtime import SMALL, run_tasks
    from seqdiff.ops.ngram_chain.cpu_kernels import posterior

    rows, length = tokens.shape
    out = torch.zeros(rows, length, chain.dense.shape[1], dtype=torch.float32)
    arguments = (
        *(part.to("cpu", torch.int64).contiguous().numpy() for part in (tokens, start, stop)),
        *chain[:-2],
        out.numpy(),
        chain.order,
        chain.depth,
        beam,
        wide,
    )
    # Even a few tokens are enough work for a thread.
    run_tasks(posterior, out.new_empty(()).expand(SMALL), arguments, rows)
    return out
