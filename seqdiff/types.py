"""Symbols of tensor shapes, and the records that modules pass to each other.

B batch, L sequence length, K real symbols, V = K + 1 with the mask, D model width, N state width,
S signals.
Ids 0..K-1 are real symbols. K stands for an unknown symbol (the N of DNA) and, in processes that
have one, for the mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

NO_LABEL = -1
Rows = Int[Tensor, " b"] | Bool[Tensor, " B"] | slice
Signal = Float[Tensor, "B S"] | Float[Tensor, "B L S"]


@dataclass
class Batch:
    """A batch of a data loader. Not frozen, because Lightning's precision plugins set its fields.

    Attributes:
        tokens: Clean ids in ``0..K``; ``K`` (the mask) where the symbol is unknown.
        loss_mask: True at positions that count. The others are context: they are never corrupted
            and not counted.
        index: Position of each example in the run's stream, ``epoch * len(dataset) + position in
            the epoch``. All noise is a function of (seed, index), so it does not depend on batches,
            workers or devices.
        label: Class of each example, ``NO_LABEL`` where it has none; ``None`` if the data has no
            classes.
        mirrored: True for rows in reverse order, whose noise over positions is reversed too;
            ``None`` if there are none.
        padding: True at positions after the last token of a shorter row: their id is K, and they
            are not attended to and not counted. ``None`` if every row is full.
        signal: Measured values of each row, or of each position of it, in the units of the data;
            NaN where a value is unknown. ``None`` if the data has no signals.
    """

    tokens: Int[Tensor, "B L"]
    loss_mask: Bool[Tensor, "B L"]
    index: Int[Tensor, " B"]
    label: Int[Tensor, " B"] | None = None
    mirrored: Bool[Tensor, " B"] | None = None
    padding: Bool[Tensor, "B L"] | None = None
    signal: Signal | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Move to a device; Lightning calls this."""
        return _map(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Pin the memory for fast copies to CUDA; data loaders call this."""
        return _map(self, Tensor.pin_memory)

    def take(self, rows: Rows) -> Batch:
        """Choose rows, in any order and number.

        Args:
            rows: Any index of the first dimension of a tensor.
        """
        return _map(self, lambda tensor: tensor[rows])

    @property
    def num_tokens(self) -> Int[Tensor, " B"]:
        """Number of positions of each row that count."""
        return self.loss_mask.sum(dim=-1)

    def inputs(self, x_t: Int[Tensor, "B L"], t: Float[Tensor, " B"] | None = None) -> Inputs:
        """Make the input of a network: corrupted tokens with the other inputs of the batch.

        Args:
            x_t: Ids in ``0..K``.
            t: Diffusion time of each row in [0, 1].
        """
        return Inputs(x_t, t, padding=self.padding, label=self.label, signal=self.signal)


@dataclass
class Inputs:
    """Input of a network, from the batch to the backbone.

    Attributes:
        tokens: Ids in ``0..K``; ``K`` is the unknown symbol and, where there is one, the mask.
        t: Diffusion time of each row in [0, 1].
        sigma: Noise level -log alpha(t) of each row, infinite where everything is masked;
            ``Denoiser`` sets it for time-conditioned networks only.
        padding: True at positions without a token; ``None`` if every row is full.
        label: Class of each row, ``NO_LABEL`` where it has none; ``None`` if no row has one.
        signal: Values that each row, or each position of it, is conditioned on, in the units of the
            training data; NaN where a value is unknown. ``None`` if no row has one.
    """

    tokens: Int[Tensor, "B L"]
    t: Float[Tensor, " B"] | None = None
    sigma: Float[Tensor, " B"] | None = None
    padding: Bool[Tensor, "B L"] | None = None
    label: Int[Tensor, " B"] | None = None
    signal: Signal | None = None

    def to(self, device: torch.device | str) -> Inputs:
        """Move to a device."""
        return _map(self, lambda tensor: tensor.to(device))

    def take(self, rows: Rows) -> Inputs:
        """Choose rows, in any order and number; see ``Batch.take``."""
        return _map(self, lambda tensor: tensor[rows])


_Record = TypeVar("_Record", Batch, Inputs)


def _map(record: _Record, function: Callable[[Tensor], Tensor]) -> _Record:
    """Apply a function to every field that is not None."""
    given = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{n: function(x) for n, x in given.items() if x is not None})


class SampleOutput(NamedTuple):
    """Output of a sampler.

    Attributes:
        tokens: Ids in ``0..K-1``, and ``K`` beyond a row's ``length``.
        nfe: Network evaluations spent on each row.
        length: Tokens of each row, from a sampler that may end rows early; otherwise ``None``.
        clamped: Draws of each row whose probabilities had to be scaled down, from a sampler that
            may do so; otherwise ``None``.
    """

    tokens: Int[Tensor, "B L"]
    nfe: Int[Tensor, " B"]
    length: Int[Tensor, " B"] | None = None
    clamped: Int[Tensor, " B"] | None = None
