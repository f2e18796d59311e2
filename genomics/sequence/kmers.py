"""Count k-mers: spectra of 1 to 6 bases in one pass, and a sparse row of counts per sequence."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float64, Int64, UInt8
from scipy.spatial.distance import jensenshannon

from genomics.sequence.alphabet import MASK_ID

MAX_K = 6
# An 8-mer contains the 6-mers that start at its first three bases.
_WIDTH, _STRIDE = 8, 3
_BLOCK = _STRIDE << 17

Spectra = tuple[Int64[np.ndarray, " _"], ...]


def join(rows: Sequence[UInt8[np.ndarray, " _"]]) -> UInt8[np.ndarray, " N"]:
    """Concatenate sequences with an N after each, so that no k-mer spans two of them."""
    ids = np.full(sum(map(len, rows)) + len(rows), MASK_ID, dtype=np.uint8)
    if rows:
        inside = np.ones(len(ids), dtype=bool)
        inside[np.cumsum([len(row) + 1 for row in rows]) - 1] = False
        ids[inside] = np.concatenate(rows)
    return ids


def count_kmers(ids: UInt8[np.ndarray, " N"]) -> Spectra:
    """Count the k-mers without N for k = 1, 2, ..., 6 on the given strand.

    8-mers are counted at every third base by 16-bit codes, then summed to shorter k-mers, which
    takes a third of the increments. The few 8-mers with an N are counted base by base.

    Args:
        ids: Ids ``0..4``.

    Returns:
        Counts of the k-mers in item k - 1, by base-4 code with the first base most significant.

    Raises:
        ValueError: If an id is not in ``0..4``.
    """
    if ids.size and ids.max() > MASK_ID:
        raise ValueError(
            f"count_kmers.ids must lie in 0..{MASK_ID}, got {ids.max()}; "
            "encode with genomics.sequence.encode"
        )
    eights = np.zeros(4**_WIDTH, dtype=np.int64)
    counts = tuple(np.zeros(4**k, dtype=np.int64) for k in range(1, MAX_K + 1))
    for first in range(0, len(ids), _BLOCK):
        block = ids[first : first + _BLOCK + _WIDTH - 1]
        lacking = min(_BLOCK, len(ids) - first) + _WIDTH - 1 - len(block)
        if lacking:
            block = np.append(block, np.full(lacking, MASK_ID, dtype=np.uint8))
        _count_block(block, eights, counts)
    for k, count in enumerate(counts, start=1):
        for skipped in range(_STRIDE):
            count += eights.reshape(4**skipped, 4**k, -1).sum(axis=(0, 2))
    return counts


def _count_block(block: np.ndarray, eights: np.ndarray, counts: Spectra) -> None:
    """Count the k-mers that start in a block, except in its last seven bases."""
    twos = block[:-1] << 2
    twos |= block[1:]
    fours = twos[:-2] << 4
    fours |= twos[2:]
    codes = fours[: -_WIDTH // 2 : _STRIDE].astype(np.intp)
    codes <<= _WIDTH
    codes |= fours[_WIDTH // 2 :: _STRIDE]
    unknown = np.flatnonzero(block == MASK_ID)
    if len(unknown) == 0:
        eights += np.bincount(codes, minlength=len(eights))
        return
    touched = np.zeros(len(codes), dtype=bool)
    for back in range(_WIDTH):
        index = unknown - back
        index = index[(index >= 0) & (index % _STRIDE == 0)] // _STRIDE
        touched[index[index < len(codes)]] = True
    eights += np.bincount(codes[~touched], minlength=len(eights))
    starts = (np.flatnonzero(touched)[:, None] * _STRIDE + np.arange(_STRIDE)).ravel()
    code, known = np.zeros(len(starts), dtype=np.intp), np.ones(len(starts), dtype=bool)
    for k, count in enumerate(counts):
        base = block[starts + k]
        known &= base != MASK_ID
        code = code * 4 + base
        count += np.bincount(code[known], minlength=len(count))


def opposite_strand(count: Int64[np.ndarray, " kmers"]) -> Int64[np.ndarray, " kmers"]:
    """Counts of the reverse complements: bases reversed, each replaced by 3 - base."""
    k = (len(count).bit_length() - 1) // 2
    return np.flip(count.reshape((4,) * k).transpose()).ravel()


def merge_strands(counts: Spectra) -> Spectra:
    """Add the counts of the reverse complements."""
    return tuple(count + opposite_strand(count) for count in counts)


def js_divergence(
    counts: Int64[np.ndarray, " kmers"], others: Int64[np.ndarray, " kmers"]
) -> float:
    """Jensen-Shannon divergence of two spectra in bits, from 0 to 1 (Lin 1991, eq. 4.1).

    This is the square of the Jensen-Shannon distance.

    Raises:
        ValueError: If a spectrum is empty.
    """
    _check_counts("js_divergence", counts, others)
    # SciPy's distance is NaN if rounding makes the divergence negative.
    with np.errstate(invalid="ignore"):
        distance = jensenshannon(counts / counts.sum(), others / others.sum(), base=2)
    return float(np.nan_to_num(distance) ** 2)


def pearson(counts: Int64[np.ndarray, " kmers"], others: Int64[np.ndarray, " kmers"]) -> float:
    """Pearson correlation of two spectra over all k-mers; NaN if one is constant.

    Raises:
        ValueError: If a spectrum is empty.
    """
    _check_counts("pearson", counts, others)
    found: Float64[np.ndarray, "2 kmers"] = np.stack([counts / counts.sum(), others / others.sum()])
    if (found == found[:, :1]).all(axis=1).any():
        return float("nan")
    return float(np.corrcoef(found)[0, 1])


def _check_counts(owner: str, *spectra: np.ndarray) -> None:
    if any(counts.sum() == 0 for counts in spectra):
        raise ValueError(f"{owner}.counts must hold a k-mer, got none; give longer sequences")


def count_kmers_of_each(sequences: Sequence[UInt8[np.ndarray, " _"]], k: int) -> sp.csr_matrix:
    """Count the k-mers without N of each sequence on the given strand.

    Args:
        sequences: Ids ``0..4`` of each sequence, of any lengths.
        k: Bases of a k-mer, in ``1..12``.

    Returns:
        ``[n, 4^k]`` by base-4 code of the k-mer with the first base most significant.

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
        bases = line[j : j + num]
        code = code * 4 + bases
        known &= bases != MASK_ID
    owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths + 1)
    row = np.concatenate((owner, np.zeros(num - len(owner), dtype=np.int32)))[known]
    ones = np.ones(len(row), dtype=np.float32)
    return sp.csr_matrix((ones, (row, code[known])), shape=(len(lengths), 4**k))


def kmer_fractions(sequences: Sequence[UInt8[np.ndarray, " _"]], k: int) -> sp.csr_matrix:
    """Divide the counts of ``count_kmers_of_each`` by their sum in each sequence."""
    counts = count_kmers_of_each(sequences, k)
    totals = np.asarray(counts.sum(axis=1)).ravel()
    return sp.csr_matrix(sp.diags(1 / np.maximum(totals, 1)) @ counts)
