"""The states of a trace that a picture shows, chosen so that any trace fits on a page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64, Integer

from seqdiff.trace import Trace


@dataclass(frozen=True)
class Film:
    """One sequence of a trace, at some of its steps and some of its positions.

    Attributes:
        name: Of the sequence.
        sampler: Name of the sampler.
        length: Tokens of the sequence.
        steps: Which steps are shown, the first and the last among them; 0 is before the first.
        positions: Which positions are shown.
        tokens: What they held.
        hidden_again: Masked, but visible at an earlier step.
        masked: Masked positions of the whole sequence before the first step and after each.
    """

    name: str
    sampler: str
    length: int
    steps: Int64[np.ndarray, " F"]
    positions: Int64[np.ndarray, " P"]
    tokens: Integer[np.ndarray, "F P"]
    hidden_again: Bool[np.ndarray, "F P"]
    masked: Int64[np.ndarray, " S"]


def spread(count: int, limit: int) -> Int64[np.ndarray, " n"]:
    """Choose at most ``limit`` of ``0..count-1``, evenly, with both ends if there is room.

    Args:
        count: How many there are.
        limit: At least 1.
    """
    return np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64)


def develop(trace: Trace, row: int, *, max_steps: int, max_positions: int) -> Film:
    """Replay one sequence of a trace, and keep what is to be shown.

    Args:
        trace: The trace.
        row: Number of the sequence.
        max_steps: States to keep at most, at least 2.
        max_positions: Positions to keep at most.

    Raises:
        ValueError: If there is no such sequence.
    """
    changes = list(trace.replay(row))
    length = int(trace.lengths[row])
    steps, positions = spread(len(changes) + 1, max_steps), spread(length, max_positions)
    now = trace.x_init[row, :length].copy()
    seen = now != trace.mask_id
    masked = np.empty(len(changes) + 1, dtype=np.int64)
    masked[0] = (~seen).sum()
    tokens = np.empty((len(steps), len(positions)), dtype=now.dtype)
    hidden = np.empty(tokens.shape, dtype=bool)
    shown = 0
    for step in range(len(changes) + 1):
        if step > 0:
            position, token = changes[step - 1]
            gone = (token == trace.mask_id).sum() - (now[position] == trace.mask_id).sum()
            masked[step] = masked[step - 1] + gone
            now[position] = token
            seen[position] |= token != trace.mask_id
        if shown < len(steps) and step == steps[shown]:
            tokens[shown] = now[positions]
            hidden[shown] = (tokens[shown] == trace.mask_id) & seen[positions]
            shown += 1
    return Film(trace.names[row], trace.sampler, length, steps, positions, tokens, hidden, masked)
