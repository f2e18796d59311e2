"""A simple classifier that tries to distinguish generated sequences from real ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, UInt8

from genomics.sequence import count_kmers_of_each, opposite_strand

K = 4
FOLDS = 5


def kmer_frequencies(rows: Sequence[UInt8[np.ndarray, " _"]]) -> Float64[np.ndarray, "n kmers"]:
    """Return the frequencies of the 4-mers on both strands of each row."""
    counts = count_kmers_of_each(rows, K).toarray().astype(np.int64)
    counts += np.apply_along_axis(opposite_strand, 1, counts)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def discriminator_auroc(
    frequencies: Float64[np.ndarray, "n kmers"],
    others: Float64[np.ndarray, "m kmers"],
    seed: int,
) -> float:
    """Cross-validated area under the ROC curve of a logistic regression.

    This is the mean over five folds, each scored by a model fitted to the other four. For two sets
    from one distribution, its expectation is exactly 1/2, unlike that of an area pooled over folds.
    The training sets of the folds overlap, so its variance is larger than that of one area over all
    rows. To see how far a value may be from 1/2 by chance, compare two sets of real sequences.

    Args:
        frequencies: Rows of ``kmer_frequencies``, at least five.
        others: Rows of the other set, at least five.
        seed: Seed of the folds.

    Raises:
        ValueError: If a set has fewer than five rows.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fewest = min(len(frequencies), len(others))
    if fewest < FOLDS:
        raise ValueError(
            f"discriminator_auroc.frequencies and others must have at least {FOLDS} rows each, got "
            f"{fewest}; give more sequences"
        )
    features = np.concatenate([frequencies, others])
    kinds = np.repeat([0, 1], [len(frequencies), len(others)])
    # The penalty is strong because there are 256 features and often no more rows than that.
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return float(cross_val_score(model, features, kinds, cv=folds, scoring="roc_auc").mean())
