"""The shape legend and the two records that cross module borders.

B batch, L sequence length, K real symbols, D model width, N state width.
Ids 0..K-1 are real symbols; ``mask_id == K`` is the absorbing state, which is also how an unknown
symbol (the N of DNA) enters.
"""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Bool, Int
from torch import Tensor


class Batch(NamedTuple):
    """What a data loader yields.

    Attributes:
        tokens: Clean ids in ``0..K``; ``K`` (the mask) where the symbol is unknown.
        loss_mask: True where a position counts. The others are context: never corrupted, never
            counted.
        index: Place of each example in the run's stream, ``epoch * len(dataset) + position in the
            epoch``. All noise is a function of (seed, index), so it does not depend on how the
            stream is cut into batches, workers or devices.
    """

    tokens: Int[Tensor, "B L"]
    loss_mask: Bool[Tensor, "B L"]
    index: Int[Tensor, " B"]


class SampleOutput(NamedTuple):
    """What a sampler returns.

    Attributes:
        tokens: Ids in ``0..K-1``.
        nfe: Network evaluations really spent on each row.
    """

    tokens: Int[Tensor, "B L"]
    nfe: Int[Tensor, " B"]
