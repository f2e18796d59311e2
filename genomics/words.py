"""Words of up to 32 bases as numbers."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, UInt8, UInt64

from .alphabet import MASK_ID


def word_codes(ids: UInt8[np.ndarray, " N"], width: int) -> UInt64[np.ndarray, " M"]:
    """Give the base-4 code of the word at every place, by doubling; one with an N has no meaning.

    Args:
        ids: At least ``width`` of them.
        width: Bases of a word, at most 32.

    Returns:
        N - width + 1 codes, the first base of a word weighing most.
    """
    power, size = ids.astype(np.uint64), 1
    result, covered = np.zeros(len(ids) + 1, dtype=np.uint64), 0
    while True:
        if width & size:
            # The letters after those that are covered so far.
            count = len(ids) - covered - size + 1
            result = result[:count] << np.uint64(2 * size) if covered else result[:count]
            result = result + power[covered : covered + count]
            covered += size
        if covered == width:
            return result
        power = (power[:-size] << np.uint64(2 * size)) + power[size:]
        size *= 2


def known_words(ids: UInt8[np.ndarray, " N"], width: int) -> Bool[np.ndarray, " N"]:
    """Say where a word without N starts; none does that would pass the end.

    Args:
        ids: Ids ``0..4``.
        width: Bases of a word.
    """
    unknown = np.concatenate([[0], np.cumsum(ids == MASK_ID, dtype=np.int64)])
    known = np.zeros(len(ids), dtype=bool)
    inside = max(0, len(ids) - width + 1)
    known[:inside] = unknown[width : width + inside] == unknown[:inside]
    return known
