"""Tests of a sample against an exact law, with stated error rates."""

from __future__ import annotations

from scipy.stats import chi2, ncx2
from torch import Tensor

FALSE_ALARM = 1e-6


def pearson(counts: Tensor, law: Tensor) -> tuple[float, float]:
    """Pearson's statistic and the threshold it exceeds with probability ``FALSE_ALARM``.

    The chi-square approximation needs an expected count of at least 20 in every cell.
    """
    expected = law * counts.sum()
    assert expected.min() >= 20, f"smallest expected count {float(expected.min()):.3g}"
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return statistic, float(chi2.isf(FALSE_ALARM, len(law) - 1))


def power(wrong: Tensor, law: Tensor, draws: int) -> float:
    """Probability that ``pearson`` catches a sampler whose law is ``wrong``."""
    noncentrality = draws * float(((wrong - law) ** 2 / law).sum())
    return float(ncx2.sf(chi2.isf(FALSE_ALARM, len(law) - 1), len(law) - 1, noncentrality))
