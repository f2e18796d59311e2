"""Tests of a sample against an exact distribution, with stated error rates."""

from __future__ import annotations

from scipy.stats import chi2, ncx2
from torch import Tensor

FALSE_ALARM = 1e-6


def pearson(counts: Tensor, distribution: Tensor) -> tuple[float, float]:
    """Pearson's statistic, and the threshold that it exceeds with probability ``FALSE_ALARM``.

    The chi-square approximation needs an expected count of at least 20 in every cell.
    """
    expected = distribution * counts.sum()
    assert expected.min() >= 20, f"smallest expected count {float(expected.min()):.3g}"
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic, float(chi2.isf(FALSE_ALARM, len(distribution) - 1))


def power(wrong: Tensor, distribution: Tensor, draws: int) -> float:
    """Probability that ``pearson`` catches a sampler whose distribution is ``wrong``."""
    noncentrality = draws * float(((wrong - distribution) ** 2 / distribution).sum())
    return float(
        ncx2.sf(chi2.isf(FALSE_ALARM, len(distribution) - 1), len(distribution) - 1, noncentrality)
    )
