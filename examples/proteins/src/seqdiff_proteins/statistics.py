"""How much a set of proteins resembles its family: residues, pairs of sites, copies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import t

from seqdiff_proteins.data import ProteinRows

NEAR = 5  # pairs of columns that are closer are left out, since neighbours always correlate

GROUPS = 10  # of sequences, for errors
WIDTH = float(t.ppf(0.975, GROUPS - 1))  # half a 95% interval in standard errors


def jackknife_error(values: Sequence[float]) -> float:
    """Return the standard error of a number from its values without each group of the data.

    See Efron and Stein 1981, "The jackknife estimate of variance", equation 1.2.
    """
    spread = np.asarray(values) - np.mean(values)
    return math.sqrt((len(values) - 1) / len(values) * float((spread**2).sum()))


def one_hot(tokens: np.ndarray, num_symbols: int) -> np.ndarray:
    """Return [n, L, K] zeros and ones; an unknown residue has zeros only."""
    return (tokens[..., None] == np.arange(num_symbols)).astype(np.float32)


def covariance(tokens: np.ndarray, num_symbols: int) -> np.ndarray:
    """Return C[i, a, j, b] = f(a at i and b at j) - f(a at i) f(b at j), ``[L, K, L, K]``.

    These are the connected correlations that direct-coupling analysis fits; see Cocco et al. 2018,
    "Inverse statistical physics of protein sequences", section 3.
    """
    rows = one_hot(tokens, num_symbols)
    flat = rows.reshape(len(rows), -1)
    flat = flat - flat.mean(axis=0)
    return (flat.T @ flat / len(flat)).reshape(*rows.shape[1:], *rows.shape[1:])


def distant(covariances: np.ndarray, near: int = NEAR) -> np.ndarray:
    """Keep the pairs of columns that are at least ``near`` apart, each once."""
    first, second = np.triu_indices(len(covariances), near)
    return covariances[first, :, second].ravel()


def pearson(one: np.ndarray, other: np.ndarray) -> float:
    """Return the correlation of two arrays; NaN if one is constant."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def shuffle_columns(tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Shuffle each column, which keeps its frequencies and makes columns independent."""
    return random.permuted(tokens, axis=0)


def shuffle_residues(
    proteins: Sequence[np.ndarray], random: np.random.Generator
) -> list[np.ndarray]:
    """Shuffle the residues of each protein."""
    return [random.permutation(ids) for ids in proteins]


def divergence(one: np.ndarray, other: np.ndarray) -> float:
    """Return the Jensen-Shannon divergence of two tables of counts, in bits (Lin 1991)."""
    p, q = (counts.ravel() / counts.sum() for counts in (one, other))
    return _entropy((p + q) / 2) - (_entropy(p) + _entropy(q)) / 2


def count_words(proteins: Sequence[np.ndarray], size: int, num_symbols: int) -> np.ndarray:
    """Count words of ``size`` known residues."""
    counts = np.zeros(num_symbols**size, dtype=np.int64)
    for ids in proteins:
        if len(ids) >= size:
            words = np.lib.stride_tricks.sliding_window_view(ids.astype(np.int64), size)
            known = words[(words < num_symbols).all(axis=1)]
            counts += np.bincount(
                known @ num_symbols ** np.arange(size)[::-1], minlength=len(counts)
            )
    return counts


def nearest_identity(rows: np.ndarray, train: np.ndarray) -> np.ndarray:
    """Return the fraction of columns in which each row equals the most similar training row."""
    return np.array([(train == row).mean(axis=1).max() for row in rows])


def bare(rows: ProteinRows, gap: int | None) -> list[np.ndarray]:
    """Return the proteins of rows without padding and gaps."""
    found = []
    for tokens, length in zip(rows.tokens, rows.lengths, strict=True):
        ids = tokens[:length]
        found.append(ids if gap is None else ids[ids != gap])
    return found


def _entropy(p: np.ndarray) -> float:
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())
