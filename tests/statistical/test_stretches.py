"""Standard errors over rows that are cut from consecutive sequence.

The variance of the mean of the sources is known in closed form. The broken twin is the formula for
independent rows; on these sources it is off by a factor of sqrt(3) and fails every test.
"""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import binom, norm, t

from seqdiff.likelihood import Likelihood, RowNats, ratio_error

TOKENS, SERIES, PHI = 16, 2000, 0.5
SIGMAS = float(norm.isf(0.5e-6))


def rows(nats: np.ndarray, tokens: int = TOKENS) -> RowNats:
    return RowNats(nats.astype(float), np.full(len(nats), tokens))


def naive(found: RowNats) -> float:
    """Broken twin: treats each row as a stretch."""
    return ratio_error(found.nats, found.num_tokens, len(found.nats))


def autoregressive(num: int, phi: float, seed: int = 0) -> np.ndarray:
    """Draw stationary AR(1) series x_i = phi x_(i-1) + e_i with e of variance 1, one per row."""
    noise = np.random.default_rng(seed).standard_normal((num, SERIES))
    noise[0] /= math.sqrt(1 - phi**2)
    for place in range(1, num):
        noise[place] += phi * noise[place - 1]
    return noise.T + 100


def variance_of_sum(num: int, phi: float) -> float:
    """Variance of a sum of ``num`` values: the sum over lags of (num - |lag|) phi^|lag| / (1 -
    phi^2).
    """
    lags = np.arange(1, num)
    return (num + 2 * ((num - lags) * phi**lags).sum()) / (1 - phi**2)


def test_an_error_worked_out_by_hand() -> None:
    """Ratio 12/8; residuals -2, -1, 0, 3; the sum of their squares times 4/3, over 8 tokens
    squared.
    """
    found = rows(np.array([1, 2, 3, 6]), tokens=2)
    assert found.num_stretches == 4
    assert found.nats_per_token_error == pytest.approx(math.sqrt(14 * 4 / 3) / 8, rel=1e-12)
    assert ratio_error(found.nats, found.num_tokens, 2) == pytest.approx(
        math.sqrt((9 + 9) * 2) / 8, rel=1e-12
    )
    # Stretches of 1 and 3 tokens: ratio 1; residuals 1, -1; 2 / (1 - 1/16 - 9/16) / 16.
    uneven = RowNats(np.array([2.0, 2.0]), np.array([1, 3]))
    assert uneven.nats_per_token_error == pytest.approx(math.sqrt(2 / (6 / 16)) / 4, rel=1e-12)
    single = rows(np.array([3]))
    assert single.nats_per_token_error == single.perplexity_error == math.inf


@pytest.mark.parametrize("stretches", [2, 3, 4, 5])
def test_the_variance_of_independent_rows_has_no_bias(stretches: int) -> None:
    """All 3^5 sets of five rows; the twin without n / (n - 1) is too small by at least a fifth."""
    values, probs = np.array([0.0, 1.0, 5.0]), np.array([0.5, 0.3, 0.2])
    variance = probs @ values**2 - (probs @ values) ** 2
    expected = uncorrected = 0.0
    for chosen in product(range(3), repeat=5):
        nats, weight = values[list(chosen)], float(probs[list(chosen)].prod())
        squared = ratio_error(nats, np.full(5, TOKENS), stretches) ** 2
        sizes = np.diff([*(5 * np.arange(stretches) // stretches), 5]) / 5
        expected += weight * squared
        uncorrected += weight * squared * (1 - (sizes**2).sum())
    truth = variance / 5 / TOKENS**2
    assert expected == pytest.approx(truth, rel=1e-12)
    assert uncorrected < 0.81 * truth


def test_the_number_of_stretches() -> None:
    expected = {1: 1, 2: 2, 3: 3, 4: 4, 10: 6, 100: 20, 224: 29, 225: 30, 10**6: 30}
    for num, stretches in expected.items():
        found = rows(np.zeros(num))
        assert (found.num_stretches, found.nats_per_token_degrees) == (stretches, stretches - 1)


@pytest.mark.parametrize("num", [1024, 1000])
def test_correlated_rows_have_the_error_of_their_source(num: int) -> None:
    """The squared error, averaged over 2,000 series, agrees with the autocovariances.

    With 30 stretches of b rows it should be (30 V(b) - V(n) / 30) * 30 / 29 for the sum, which is
    0.91 to 0.99 of the true V(n). The false-alarm rate is 1e-6; the twin reports a third.
    """
    series = autoregressive(num, PHI)
    truth = variance_of_sum(num, PHI) / (num * TOKENS) ** 2
    sizes = np.diff([*(num * np.arange(30) // 30), num])
    between = sum(variance_of_sum(int(size), PHI) for size in sizes)
    # The fraction of each stretch in the whole, for stretches of unequal sizes.
    shares, cross = sizes / num, np.array([covariance(num, sizes, i) for i in range(30)])
    expected = between - 2 * (shares @ cross) + (shares**2).sum() * variance_of_sum(num, PHI)
    expected /= (1 - (shares**2).sum()) * (num * TOKENS) ** 2
    assert 0.91 < expected / truth < 0.99
    squared = np.array([rows(line).nats_per_token_error ** 2 for line in series])
    assert abs(squared.mean() - expected) < SIGMAS * squared.std() / math.sqrt(SERIES)
    assert np.mean([naive(rows(line)) ** 2 for line in series[:100]]) < 0.4 * truth


def covariance(num: int, sizes: np.ndarray, which: int) -> float:
    """Covariance of a stretch's sum with the sum of all."""
    first = int(sizes[:which].sum())
    inside, every = np.arange(first, first + sizes[which]), np.arange(num)
    return float((PHI ** np.abs(inside[:, None] - every)).sum() / (1 - PHI**2))


def coverage(series: np.ndarray, *, independent: bool = False) -> float:
    """Fraction of 95% intervals by Student's t that contain the true mean."""
    held = []
    for line in series:
        found = rows(line, tokens=1)
        error, degrees = found.nats_per_token_error, found.nats_per_token_degrees
        if independent:
            error, degrees = naive(found), len(line) - 1
        held.append(abs(found.nats_per_token - 100) < t.isf(0.025, degrees) * error)
    return float(np.mean(held))


def test_intervals_over_correlated_rows_cover() -> None:
    """2,000 series of 900 rows: with a coverage of 94%, 91% to 97% fails with probability below
    1e-6.

    The twin covers 74% and passes with probability below 1e-6.
    """
    series = autoregressive(900, PHI)
    assert 0.91 <= coverage(series) <= 0.97
    twin = coverage(series, independent=True)
    assert twin < 0.8
    low, high = (binom.cdf(0.91 * SERIES - 1, SERIES, 0.94), binom.sf(0.97 * SERIES, SERIES, 0.94))
    assert low + high < 1e-6 and binom.sf(0.91 * SERIES - 1, SERIES, 0.8) < 1e-6


def test_independent_rows_have_about_the_error_of_the_plain_formula() -> None:
    """29 degrees of freedom give noise of 13%, so none of 2,000 is off by more than five times
    that.
    """
    series = np.random.default_rng(1).standard_normal((SERIES, 1024))
    ratio = np.array([rows(line).nats_per_token_error / naive(rows(line)) for line in series])
    assert (ratio**2).mean() == pytest.approx(1, abs=SIGMAS * math.sqrt(2 / 29 / SERIES))
    assert 1 - 5 / math.sqrt(58) < ratio.min() and ratio.max() < 1 + 5 / math.sqrt(58)


def test_a_moving_average_with_negative_correlation() -> None:
    """Neighbours that cancel: x_i = e_i - e_(i-1) / 2.

    The variance of the sum of n is n (1 - 1/2)^2 + 1; the plain formula gives n * 5/4.
    """
    noise = np.random.default_rng(2).standard_normal((400, 1025))
    series = noise[:, 1:] - noise[:, :-1] / 2
    truth = (1024 * 0.25 + 1) / (1024 * TOKENS) ** 2
    squared = np.array([rows(line).nats_per_token_error ** 2 for line in series])
    assert 0.95 < squared.mean() / truth < 1.2
    assert np.mean([naive(rows(line)) ** 2 for line in series]) > 4 * truth


def test_the_order_of_rows_matters() -> None:
    """Shuffled rows look independent, so an evaluation has to read its rows in order."""
    line = autoregressive(1024, 0.9)[0]
    ordered = rows(line).nats_per_token_error
    shuffled = rows(np.random.default_rng(3).permutation(line)).nats_per_token_error
    assert ordered > 2 * shuffled


def test_a_paired_difference_has_none_of_what_both_share() -> None:
    """Two models differ by 1 nat with noise of 0.1, on rows that vary by 100 times as much."""
    shared = autoregressive(900, 0.9)[0] * 10
    noise = np.random.default_rng(4).normal(1, 0.1, 900)
    model, baseline = rows(shared + noise), rows(shared)
    difference = model.minus(baseline)
    assert difference.nats_per_token == pytest.approx(noise.mean() / TOKENS)
    assert difference.nats_per_token_error < 0.01 * model.nats_per_token_error
    with pytest.raises(ValueError, match=r"other must count as many tokens in each row, got 900 r"):
        model.minus(RowNats(shared, np.full(900, TOKENS + 1)))


def test_a_likelihood_is_its_rows() -> None:
    nats, tokens = np.array([1.0, 2.0, 4.0]), np.array([1, 1, 2])
    found = Likelihood(nats, tokens, nats / 10, np.full(3, 8), np.full(3, 7.0))
    plain = RowNats(nats, tokens)
    for name in ("nats_per_token", "bits_per_token_error", "perplexity", "perplexity_error"):
        assert getattr(found, name) == getattr(plain, name)
    assert found.minus(plain).nats.tolist() == [0, 0, 0]
    empty = RowNats(np.array([0.0, 2.0]), np.array([0, 3])).counted
    assert (empty.nats.tolist(), empty.num_tokens.tolist()) == ([2.0], [3])
