"""Two baselines: the frequencies of residues, in all positions and in each column."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from seqdiff.likelihood import RowNats

if TYPE_CHECKING:
    from seqdiff_proteins.data import ProteinRows

PSEUDOCOUNT = 0.5


def unigram(train: ProteinRows, scored: ProteinRows) -> RowNats:
    """Score rows by the frequencies of residues in the training rows."""
    counts = np.bincount(train.tokens.ravel(), minlength=train.unknown + 1)[:-1]
    return _score(np.log(_frequencies(counts))[None], scored)


def site_profile(train: ProteinRows, scored: ProteinRows) -> RowNats:
    """Score the rows of an alignment by the frequencies in each column of the training rows."""
    return _score(log_profile(train), scored)


def log_profile(train: ProteinRows) -> np.ndarray:
    """Return log frequencies [L, K] of the residues in each column of an alignment."""
    symbols = np.arange(train.unknown)
    return np.log([_frequencies((column[:, None] == symbols).sum(0)) for column in train.tokens.T])


def _frequencies(counts: np.ndarray) -> np.ndarray:
    """Add half a residue to every count, so that no probability is 0."""
    return (counts + PSEUDOCOUNT) / (counts + PSEUDOCOUNT).sum()


def _score(log_probs: np.ndarray, scored: ProteinRows) -> RowNats:
    """Sum over the counted positions of each row; ``log_probs`` is [L, K] or [1, K]."""
    counted = scored.tokens != scored.unknown
    known = np.where(counted, scored.tokens, 0)
    at = np.broadcast_to(np.arange(known.shape[1]), known.shape) if len(log_probs) > 1 else 0
    nats = -np.where(counted, log_probs[at, known], 0).sum(axis=1)
    return RowNats(nats, counted.sum(axis=1))
