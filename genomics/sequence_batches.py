"""Sequences of any lengths as padded batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from .alphabet import MASK_ID
from .labelled import Labelled


def crop(ids: UInt8[np.ndarray, " L"], length: int) -> UInt8[np.ndarray, " l"]:
    """Keep the middle of what is longer; of an odd number of bases too many, one more goes last.

    Args:
        ids: Letters.
        length: Most that are kept.
    """
    first = max(0, len(ids) - length) // 2
    return ids[first : first + length]


def pad(
    data: Labelled, rows: Int64[np.ndarray, " B"], length: int, *, width: int | None = None
) -> tuple[Tensor, Tensor]:
    """Put rows into one batch, cropped to ``length`` and padded after their ends.

    Args:
        data: Sequences.
        rows: Which.
        length: Most bases of a row.
        width: Of the batch; by default, as its longest row.

    Returns:
        Ids ``[B, L]`` and True where there is no base, ``[B, L]``.
    """
    cut = [crop(data.ids[row], length) for row in rows]
    width = max(len(ids) for ids in cut) if width is None else width
    tokens = np.full((len(cut), width), MASK_ID, dtype=np.int64)
    padding = np.ones((len(cut), width), dtype=bool)
    for place, ids in enumerate(cut):
        tokens[place, : len(ids)] = ids
        padding[place, : len(ids)] = False
    return torch.from_numpy(tokens), torch.from_numpy(padding)


def batches(
    data: Labelled,
    order: Int64[np.ndarray, " n"],
    size: int,
    length: int,
    *,
    width: int | None = None,
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield ids, padding and labels, with no row left out.

    Args:
        data: Sequences.
        order: Rows in the order in which they are seen.
        size: Rows of a batch; the last may have fewer.
        length: See ``pad``.
        width: See ``pad``.
    """
    for first in range(0, len(order), size):
        rows = order[first : first + size]
        yield *pad(data, rows, length, width=width), torch.from_numpy(data.labels[rows])
