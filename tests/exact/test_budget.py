"""The length of an evaluation's second stage, by quadrature over the variance of the first."""

import numpy as np
import pytest
from scipy.stats import chi2

from seqdiff.likelihood import ExactK
from seqdiff.likelihood.evaluation import Budget, Passes


@pytest.mark.parametrize("evaluations", [16, 32])
def test_the_second_stage_is_planned_for_the_mean_of_one_over_the_variance(
    evaluations: int,
) -> None:
    """For normal values with variance 1 the errors then meet the target.

    The broken twin uses the first variance directly: the mean square error is larger by the factor
    d / (d - 2) for d degrees of freedom.
    """
    target, degrees = 1e-3, evaluations - 1
    budget = Budget(ExactK(evaluations), target_se=target, max_nfe=None)
    chances = (np.arange(4000) + 0.5) / 4000
    variances = chi2.ppf(chances, degrees) / degrees
    passes = [budget.second(Passes([0.0], [np.array([v])]), evaluations) for v in variances]
    assert np.mean(1 / np.array(passes)) == pytest.approx(target**2, rel=2e-3)
    twin = np.ceil(variances / target**2)
    assert np.mean(1 / twin) == pytest.approx(target**2 * degrees / (degrees - 2), rel=2e-3)
