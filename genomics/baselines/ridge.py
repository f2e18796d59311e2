"""Ridge regression of measured values on the counts of k-mers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, UInt8

from genomics.sequence import BASES, count_kmers_of_each

LENGTHS = (1, 2, 3, 4, 5)
ALPHAS = tuple(round(10.0 ** (power / 2), 1) for power in range(11))  # 1, 3.2, ..., 1e5
NUM_FEATURES = sum(len(BASES) ** k for k in LENGTHS)
_BLOCK = 4096


def count_short_kmers(rows: Sequence[UInt8[np.ndarray, " _"]]) -> Float64[np.ndarray, "n F"]:
    """Count the k-mers of 1 to 5 bases of each sequence on the given strand."""
    counts = [count_kmers_of_each(rows, k).toarray() for k in LENGTHS]
    return np.concatenate(counts, axis=1).astype(np.float64)


@dataclass(frozen=True)
class KmerRidge:
    """A ridge regression of each value on the counts of k-mers of 1 to 5 bases.

    Attributes:
        alphas: Penalty for each value.
        weight: Weights of the counts.
        intercept: Prediction for a sequence without k-mers.
    """

    alphas: tuple[float, ...]
    weight: Float64[np.ndarray, "S F"]
    intercept: Float64[np.ndarray, " S"]

    @classmethod
    def fit(
        cls,
        train: Sequence[UInt8[np.ndarray, " _"]],
        train_values: Float64[np.ndarray, "t S"],
        valid: Sequence[UInt8[np.ndarray, " _"]],
        valid_values: Float64[np.ndarray, "v S"],
    ) -> KmerRidge:
        """Fit by scikit-learn; the penalty is that of ``ALPHAS`` with the lowest squared error.

        Args:
            train: Ids ``0..4`` of the sequences to fit to.
            train_values: Their values, NaN where one is missing.
            valid: Ids of the sequences on which the penalties are chosen.
            valid_values: Their values; each column needs a known one.
        """
        from sklearn.linear_model import Ridge

        learned, held = count_short_kmers(train), count_short_kmers(valid)
        alphas, weights, intercepts = [], [], []
        for values, truth in zip(train_values.T, valid_values.T, strict=True):
            known, asked = ~np.isnan(values), ~np.isnan(truth)
            fits, errors = [], []
            for alpha in ALPHAS:
                fits.append(Ridge(alpha=alpha).fit(learned[known], values[known]))
                found = fits[-1].predict(held[asked])
                errors.append(np.mean((found - truth[asked]) ** 2))
            best = int(np.argmin(errors))
            alphas.append(ALPHAS[best])
            weights.append(fits[best].coef_)
            intercepts.append(fits[best].intercept_)
        return cls(tuple(alphas), np.stack(weights), np.array(intercepts, dtype=np.float64))

    def predict(self, rows: Sequence[UInt8[np.ndarray, " _"]]) -> Float64[np.ndarray, "n S"]:
        """Predict the values of sequences.

        Args:
            rows: Ids ``0..4`` of each sequence.
        """
        parts = [
            count_short_kmers(rows[first : first + _BLOCK]) @ self.weight.T
            for first in range(0, len(rows), _BLOCK)
        ]
        return np.concatenate(parts) + self.intercept
