"""The discriminator on sets of one distribution and on sets that are easy to distinguish."""

import numpy as np
import pytest

from genomics.baselines.discriminator import discriminator_auroc, kmer_frequencies
from genomics.sequence.alphabet import decode, encode
from tests.genomics import report_oracles as plain


def rows(num: int, seed: int, p=(0.25, 0.25, 0.25, 0.25)) -> list[np.ndarray]:
    drawn = np.random.default_rng(seed).choice(4, (num, 100), p=p)
    return list(drawn.astype(np.uint8))


def area(ours: list[np.ndarray], theirs: list[np.ndarray], seed: int) -> float:
    return discriminator_auroc(kmer_frequencies(ours), kmer_frequencies(theirs), seed)


def test_one_distribution_gives_a_half() -> None:
    """On held-out rows the mean area is exactly 1/2.

    For 40 sets per side the standard deviation is sqrt(81 / 19200) = .065 within folds of 8 and
    below .10 with the dependence of folds; that of the mean of 30 is below .018. The false-alarm
    rate 1e-6 is at 4.9 times that, .09. A classifier scored on its own training rows exceeds .9.
    """
    found = [area(rows(40, i), rows(40, 1000 + i), i) for i in range(30)]
    assert np.mean(found) == pytest.approx(0.5, abs=0.09)
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score

    features = kmer_frequencies([*rows(40, 0), *rows(40, 1000)])
    kinds = np.repeat([0, 1], 40)
    seen = LogisticRegression(C=1e6, max_iter=2000).fit(features * 100, kinds)
    assert roc_auc_score(kinds, seen.decision_function(features * 100)) > 0.9


@pytest.mark.parametrize("seed", [0, 2])
def test_penalty_and_folds(seed: int) -> None:
    """Each fold has 8 and 8 rows; a solver may order two differently, which changes the mean by
    1/320.
    """
    ours, theirs = rows(40, 0), rows(40, 1, (0.28, 0.22, 0.24, 0.26))
    texts = [decode(row) for row in ours], [decode(row) for row in theirs]
    found = area(ours, theirs, seed)
    assert found == pytest.approx(plain.area(*texts, seed), abs=0.004)
    weak, unshuffled = plain.area(*texts, seed, penalty=1e-6), plain.area(*texts, 0, shuffle=False)
    assert min(abs(found - weak), abs(found - unshuffled)) > 0.008, "the twins"


def test_other_composition_gives_one() -> None:
    assert area(rows(40, 0), rows(40, 1, (0.45, 0.05, 0.05, 0.45)), 0) == 1


def test_strands_are_alike() -> None:
    row, opposite = encode("AACCGTTTTA"), encode("TAAAACGGTT")
    np.testing.assert_array_equal(*kmer_frequencies([row, opposite]))


def test_too_few_rows() -> None:
    with pytest.raises(
        ValueError, match=r"others must have at least 5 rows each, got 4; give more"
    ):
        area(rows(4, 0), rows(9, 1), 0)
