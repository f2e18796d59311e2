"""Counts of k-mers, one sparse row a sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from jaxtyping import UInt8

from .alphabet import MASK_ID
from .kmers import join


def count_kmers_of_each(sequences: Sequence[UInt8[np.ndarray, " _"]], k: int) -> sp.csr_matrix:
    """Count the k-mers of each sequence, as it stands; those with an unknown base do not count.

    All sequences are laid end to end, with an unknown base after each, and coded at once.

    Args:
        sequences: Letters of each, of any lengths.
        k: Bases of a k-mer, in ``1..12``.

    Returns:
        ``[n, 4^k]``, by the base-4 code of the k-mer, its first letter weighing most.

    Raises:
        ValueError: If k is out of range.
    """
    if not 1 <= k <= 12:
        raise ValueError(f"count_kmers_of_each.k must be in 1..12, got {k}; 6 gives 4,096 columns")
    lengths = np.array([len(ids) for ids in sequences], dtype=np.int64)
    line = np.append(join(sequences), np.full(k, MASK_ID, dtype=np.uint8))
    num = len(line) - k + 1
    code = np.zeros(num, dtype=np.int32)
    known = np.ones(num, dtype=bool)
    for j in range(k):
        letters = line[j : j + num]
        code = code * 4 + letters
        known &= letters != MASK_ID
    owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths + 1)
    row = np.concatenate((owner, np.zeros(num - len(owner), dtype=np.int32)))[known]
    ones = np.ones(len(row), dtype=np.float32)
    return sp.csr_matrix((ones, (row, code[known])), shape=(len(lengths), 4**k))


def kmer_shares(sequences: Sequence[UInt8[np.ndarray, " _"]], k: int) -> sp.csr_matrix:
    """Give the share of each k-mer among those of its sequence; 0 where there is none.

    Args:
        sequences: See ``count_kmers_of_each``.
        k: See ``count_kmers_of_each``.
    """
    counts = count_kmers_of_each(sequences, k)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    return sp.csr_matrix(sp.diags(1 / np.maximum(totals, 1)) @ counts)
