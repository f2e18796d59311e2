"""The shape legend and the two records that cross module borders.

B batch, L sequence length, K real symbols, V = K + 1 with the mask, D model width, N state width.
Ids 0..K-1 are real symbols; ``mask_id == K`` is the absorbing state, which is also how an unknown
symbol (the N of DNA) enters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

NO_LABEL = -1


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
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Pin for a fast copy to CUDA; the name is what the data loader looks for."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        label = None if self.label is None else function(self.label)
        label = None if self.label is None else function(self.label)
        mirrored = None if self.mirrored is None else function(self.mirrored)
        padding = None if self.padding is None else function(self.padding)
        tokens, loss_mask, index = map(function, (self.tokens, self.loss_mask, self.index))
        return Batch(tokens, loss_mask, index, label, mirrored, padding)


class SampleOutput(NamedTuple):
    """What a sampler returns.

    Attributes:
        tokens: Ids in ``0..K-1``, and ``K`` beyond a row's ``length``.
        nfe: Network evaluations really spent on each row.
        length: Tokens of each row, from a sampler that may end a row early; ``None`` if every row
            is as long as it was asked for.
    """

    tokens: Int[Tensor, "B L"]
    nfe: Int[Tensor, " B"]
    length: Int[Tensor, " B"] | None = None
