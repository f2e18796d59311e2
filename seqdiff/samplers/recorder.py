"""A callback that records every step of a sampler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float64, Int, Int64, UInt32
from torch import Tensor

from seqdiff.trace import Trace

# Bytes of one change, of which each position has at least one: row, position, step and token.
_BYTES_PER_TOKEN = 16
_NONE = np.empty((0, 3), dtype=np.uint32)


# The number of a step, its changes (row of the batch, position, token), and the probability of each
# of their tokens when it was drawn, NaN for others.
Watch = Callable[[int, UInt32[np.ndarray, "c 3"], Float64[np.ndarray, " c"]], object]


def check_room(sequences: int, length: int) -> None:
    """Check before slow work that a trace fits in memory; remasking needs more than is checked.

    Args:
        sequences: Number of sequences that will be drawn.
        length: Tokens in each.

    Raises:
        ValueError: If there is no room for one change of each token.
    """
    try:
        np.empty((sequences, length, _BYTES_PER_TOKEN), dtype=np.uint8)
    except (MemoryError, ValueError) as error:
        raise ValueError(
            f"sample.trace must fit in memory, got {sequences:,} sequences of {length:,} tokens; "
            "lower --num or --length, or leave --trace out"
        ) from error


class Recorder:
    """Records every state of every row; pass it to ``Sampler.sample`` as the callback.

    Call ``start`` before each batch, and ``trace`` after the last. Steps that a sampler replaces
    are removed: of ``SMCSampler`` the steps of the samples are kept, not of other particles.

    Attributes:
        first: Added to the numbers of sequences; set it when several draws number theirs from 0.
        watch: Called at each step, and at the start of a batch with every position as step 0. What
            it raises ends the drawing.
        chance: For the argument of ``Sampler.sample``, if the recorder is watched.
    """

    def __init__(self, watch: Watch | None = None) -> None:
        self.first = 0
        self.watch = watch
        self.chance: Float64[Tensor, "B L"] | None = None
        self._batches: list[_Batch] = []
        self._last = torch.empty((0, 0), dtype=torch.int64)

    def start(self, x_init: Int[Tensor, "B L"], rows: Sequence[int]) -> None:
        """Begin a batch.

        Args:
            x_init: The argument of ``sample``.
            rows: Numbers of these sequences among all, from 0. Batches may come in any order and
                differ in length.
        """
        self._last = x_init.to(torch.int64, copy=True)
        numbers = np.asarray(rows, dtype=np.uint32) + np.uint32(self.first)
        tokens = x_init.cpu().numpy().astype(np.uint32)
        self._batches.append(_Batch(tokens, numbers))
        if self.watch is not None:
            self.chance = torch.full(
                x_init.shape, torch.nan, dtype=torch.float64, device=x_init.device
            )
            row, position = np.indices(tokens.shape, dtype=np.uint32).reshape(2, -1)
            every = np.stack((row, position, tokens.reshape(-1)), axis=-1)
            self.watch(0, every, np.full(len(every), np.nan))

    def __call__(self, step: int, x_t: Int[Tensor, "B L"]) -> None:
        """Record a step."""
        batch = self._batches[-1]
        if step <= len(batch.changes):
            del batch.changes[step - 1 :]
            self._last = torch.from_numpy(batch.state().astype(np.int64)).to(x_t.device)
        where = (x_t != self._last).nonzero()
        token = x_t[where[:, 0], where[:, 1]]
        self._last[where[:, 0], where[:, 1]] = token
        found = torch.cat([where, token[:, None]], dim=-1).cpu().numpy().astype(np.uint32)
        batch.changes.append(found)
        assert len(batch.changes) == step
        if self.watch is not None and self.chance is not None:
            self.watch(step, found, self.chance[where[:, 0], where[:, 1]].cpu().numpy())

    def last(self) -> dict[str, np.ndarray]:
        """Return the last batch as the arguments of ``add``, apart from ``rows``."""
        batch = self._batches[-1]
        return {
            "x_init": batch.x_init,
            "changes": np.concatenate([_NONE, *batch.changes]),
            "steps": np.array([len(part) for part in batch.changes], dtype=np.int64),
        }

    def add(
        self,
        x_init: UInt32[np.ndarray, "B L"],
        rows: Sequence[int],
        changes: UInt32[np.ndarray, "c 3"],
        steps: Int64[np.ndarray, " n"],
    ) -> None:
        """Add a batch that another recorder has recorded, see ``last``.

        Args:
            x_init: The rows before the first step.
            rows: See ``start``.
            changes: Row of the batch, position and token of each change.
            steps: Number of changes in each step.
        """
        numbers = np.asarray(rows, dtype=np.uint32) + np.uint32(self.first)
        parts = np.split(changes, steps.cumsum()[:-1]) if len(steps) else []
        self._batches.append(_Batch(x_init, numbers, parts))

    def trace(self, *, sampler: str, names: Sequence[str], symbols: Sequence[str]) -> Trace:
        """Return the trace.

        Args:
            sampler: Name of the sampler.
            names: Names of all sequences, in order.
            symbols: Decoded ids ``0..K``, including that of the mask.
        """
        assert sum(len(b.rows) for b in self._batches) == len(names)  # or ``start`` was forgotten
        width = max(batch.x_init.shape[1] for batch in self._batches)
        x_init = np.full((len(names), width), len(symbols) - 1, dtype=np.uint32)
        lengths, num_steps = np.zeros((2, len(names)), dtype=np.int64)
        for batch in self._batches:
            length = batch.x_init.shape[1]
            x_init[batch.rows, :length] = batch.x_init
            lengths[batch.rows] = length
            num_steps[batch.rows] = len(batch.changes)
        found = np.concatenate([_NONE, *(part for b in self._batches for part in b.numbered())])
        steps = [np.arange(len(b.changes), dtype=np.uint32) + 1 for b in self._batches]
        counts = [len(part) for b in self._batches for part in b.changes]
        step = np.repeat(np.concatenate(steps), counts)
        order = np.argsort(found[:, 0], kind="stable")
        row, position, token = found[order].T
        about = (sampler, tuple(names), tuple(symbols))
        return Trace(*about, x_init, lengths, num_steps, row, step[order], position, token)


@dataclass
class _Batch:
    """The record of a batch.

    Attributes:
        x_init: The rows before the first step.
        rows: Numbers of the sequences.
        changes: For each step, the row of the batch, position and token of each change.
    """

    x_init: UInt32[np.ndarray, "B L"]
    rows: UInt32[np.ndarray, " B"]
    changes: list[UInt32[np.ndarray, "c 3"]] = field(default_factory=list)

    def state(self) -> UInt32[np.ndarray, "B L"]:
        """Return the tokens after all changes."""
        tokens = self.x_init.copy()
        for part in self.changes:
            row, position, token = part.T
            tokens[row, position] = token
        return tokens

    def numbered(self) -> list[UInt32[np.ndarray, "c 3"]]:
        """Return the changes with numbers of sequences in place of rows of the batch."""
        return [np.column_stack((self.rows[part[:, 0]], part[:, 1:])) for part in self.changes]
