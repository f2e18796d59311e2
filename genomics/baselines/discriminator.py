"""Can a simple classifier tell generated sequences from real ones?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, UInt8

from genomics.sequence import count_kmers_of_each, opposite_strand

WORD = 4
FOLDS = 5


def kmer_frequencies(rows: Sequence[UInt8[np.ndarray, " _"]]) -> Float64[np.ndarray, "n words"]:
    """Frequencies of the words of four bases in each row, both strands together."""
    counts = count_kmers_of_each(rows, WORD).toarray().astype(np.int64)
    counts += np.apply_along_axis(opposite_strand, 1, counts)
    return counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)


def discriminator_auroc(
    frequencies: Float64[np.ndarray, "n words"],
    others: Float64[np.ndarray, "m words"],
    seed: int,
) -> float:
    """Area under the ROC curve of a logistic regression on rows it has not seen.

    The mean over five folds: each is scored by a model fitted to the four others. For two sets of
    one law its expectation is exactly 1/2; areas pooled over folds would fall below. Folds share
    rows, so its spread is wider than that of one area over all rows; a second set of real sequence
    shows how wide.

    Args:
        frequencies: See ``kmer_frequencies``; at least five rows.
        others: The same, of the other kind.
        seed: Of the folds.

    Raises:
        ValueError: If there are fewer than five rows of a kind.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    fewest = min(len(frequencies), len(others))
    if fewest < FOLDS:
        raise ValueError(
            f"discriminator_auroc.frequencies must have at least {FOLDS} rows of each kind, got "
            f"{fewest}; give more sequences"
        )
    features = np.concatenate([frequencies, others])
    kinds = np.repeat([0, 1], [len(frequencies), len(others)])
    # A strong penalty: there are 256 features, and often no more rows than that.
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=1000))
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    return float(cross_val_score(model, features, kinds, cv=folds, scoring="roc_auc").mean())
