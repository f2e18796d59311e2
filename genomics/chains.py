"""Tables of Markov chains over DNA: one row a context, by base-4 code, first letter leading."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float64

MAX_ORDER = 5


def append(
    law: Float64[np.ndarray, "*shape C"], probs: Float64[np.ndarray, "*contexts 4"]
) -> Float64[np.ndarray, "*shape C"]:
    """Push a law of contexts through one more letter.

    Args:
        law: Of the last k letters, by base-4 code, first letter leading.
        probs: Law of the next letter, the same for all contexts or one row each.
    """
    words = law[..., None] * probs
    return words.reshape(*law.shape[:-1], 4, law.shape[-1]).sum(axis=-2)


def symmetrise(transitions: Float64[np.ndarray, "C 4"]) -> Float64[np.ndarray, "C 4"]:
    """Average a chain's law of k + 1 letters with its reverse complement.

    The result is the chain with that law; read on the opposite strand it is the same chain.

    Raises:
        ValueError: If the table is no table of positive probabilities.
    """
    checked = check_transitions(transitions)
    contexts = len(checked)
    letters = (contexts.bit_length() + 1) // 2
    words = fixed_point(append(np.eye(contexts), checked))[:, None] * checked
    opposite = np.flip(words.reshape((4,) * letters).transpose()).reshape(contexts, 4)
    both = words + opposite
    return both / both.sum(axis=1, keepdims=True)


def fixed_point(kernel: Float64[np.ndarray, "C C"]) -> Float64[np.ndarray, " C"]:
    """Solve for the stationary law of a kernel that has exactly one, by one dense solve."""
    system = (kernel - np.eye(len(kernel))).T
    system[-1] = 1
    law = np.linalg.solve(system, np.eye(len(kernel))[-1])
    assert np.abs(law @ kernel - law).max() < 1e-13, "stationary law not solved"
    return law / law.sum()


def check_transitions(transitions: Float64[np.ndarray, "C 4"]) -> Float64[np.ndarray, "C 4"]:
    """Return the table if it is one.

    Raises:
        ValueError: If it has another number of rows, or a row is no law of positive probabilities.
    """
    rows = len(transitions)
    if rows not in [4**k for k in range(MAX_ORDER + 1)]:
        raise ValueError(
            f"MarkovGenome.transitions must have 4 ** k rows with k in 0..{MAX_ORDER}, got {rows}; "
            "give one row a context"
        )
    if not (transitions > 0).all() or not np.allclose(transitions.sum(axis=1), 1, atol=1e-12):
        raise ValueError(
            "MarkovGenome.transitions must have rows of positive probabilities that sum to 1, got "
            f"a least entry {transitions.min():.3g} and sums from "
            f"{transitions.sum(axis=1).min():.6g}; divide each row by its sum"
        )
    return transitions
