"""The shape legend and the records that cross module borders.

B batch, L sequence length, K real symbols, V = K + 1 with the mask, D model width, N state width.
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


@dataclass
class Batch:
    """What a data loader yields. Not frozen: Lightning's precision plugins refill its fields.

    Attributes:
        tokens: Clean ids in ``0..K``; ``K`` (the mask) where the symbol is unknown.
        loss_mask: True where a position counts. The others are context: never corrupted, never
            counted.
        index: Place of each example in the run's stream, ``epoch * len(dataset) + position in the
            epoch``. All noise is a function of (seed, index), so it does not depend on how the
            stream is cut into batches, workers or devices.
        label: Class of each example, ``NO_LABEL`` where it has none; ``None`` if the data has no
            classes.
        mirrored: True where a row is read from its other end, so that noise over its positions is
            read backwards; ``None`` if none is.
        padding: True at positions that hold nothing, after the last token of a shorter row: their
            id is K, they are not attended to and not counted. ``None`` if every row is full.
    """

    tokens: Int[Tensor, "B L"]
    loss_mask: Bool[Tensor, "B L"]
    index: Int[Tensor, " B"]
    label: Int[Tensor, " B"] | None = None
    mirrored: Bool[Tensor, " B"] | None = None
    padding: Bool[Tensor, "B L"] | None = None

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """Move to a device; the name and arguments are what Lightning looks for."""
        return _map(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Pin for a fast copy to CUDA; the name is what the data loader looks for."""
        return _map(self, Tensor.pin_memory)

    def take(self, rows: Rows) -> Batch:
        """Choose rows, in any order and number.

        Args:
            rows: What indexes the first dimension of a tensor.
        """
        return _map(self, lambda tensor: tensor[rows])

    @property
    def num_tokens(self) -> Int[Tensor, " B"]:
        """Positions of each row that count."""
        return self.loss_mask.sum(dim=-1)

    def inputs(self, x_t: Int[Tensor, "B L"], t: Float[Tensor, " B"] | None = None) -> Inputs:
        """Make the record for a network: corrupted tokens with the padding and labels of the batch.

        Args:
            x_t: Ids in ``0..K``.
            t: Diffusion time of each row in [0, 1].
        """
        return Inputs(x_t, t, padding=self.padding, label=self.label)


@dataclass
class Inputs:
    """What a network is given: one record from the batch to the backbone.

    Attributes:
        tokens: Ids in ``0..K``; ``K`` is the unknown symbol and, where there is one, the mask.
        t: Diffusion time of each row in [0, 1].
        sigma: Noise level -log alpha(t) of each row, infinite where everything is masked;
            ``Denoiser`` sets it for time-conditioned networks only.
        padding: True at positions that hold nothing; ``None`` if every row is full.
        label: Class of each row, ``NO_LABEL`` where it has none; ``None`` if no row has one.
    """

    tokens: Int[Tensor, "B L"]
    t: Float[Tensor, " B"] | None = None
    sigma: Float[Tensor, " B"] | None = None
    padding: Bool[Tensor, "B L"] | None = None
    label: Int[Tensor, " B"] | None = None

    def to(self, device: torch.device | str) -> Inputs:
        """Move to a device."""
        return _map(self, lambda tensor: tensor.to(device))

    def take(self, rows: Rows) -> Inputs:
        """Choose rows, in any order and number; see ``Batch.take``."""
        return _map(self, lambda tensor: tensor[rows])


Record = TypeVar("Record", Batch, Inputs)


def _map(record: Record, function: Callable[[Tensor], Tensor]) -> Record:
    """Apply a function to every field that is not None."""
    given = {field.name: getattr(record, field.name) for field in fields(record)}
    return replace(record, **{n: function(x) for n, x in given.items() if x is not None})


class SampleOutput(NamedTuple):
    """What a sampler returns.

    Attributes:
        tokens: Ids in ``0..K-1``, and ``K`` beyond a row's ``length``.
        nfe: Network evaluations really spent on each row.
        length: Tokens of each row, from a sampler that may end a row early; ``None`` if every row
            is as long as it was asked for.
        clamped: Draws of each row whose probabilities had to be scaled down, from a sampler that
            may have to; ``None`` from any other.
    """

    tokens: Int[Tensor, "B L"]
    nfe: Int[Tensor, " B"]
    length: Int[Tensor, " B"] | None = None
    clamped: Int[Tensor, " B"] | None = None
