"""Likelihoods of a set of sequences, and their means per token with standard errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import stdtrit

# Schmeiser 1982: more than 30 batches hardly make a standard error more precise, and longer
# stretches are less correlated with each other.
_MOST_STRETCHES = 30


@dataclass(frozen=True)
class RowNats:
    """Negative log-likelihoods of the rows of a set, in the order of the set.

    Attributes:
        nats: Negative log-likelihood of each row, or a bound on it, in nats.
        num_tokens: Tokens counted in each row.
    """

    nats: Float64[np.ndarray, " n"]
    num_tokens: Int64[np.ndarray, " n"]

    @property
    def nats_per_token(self) -> float:
        """Total nats over total tokens."""
        return float(self.nats.sum() / self.num_tokens.sum())

    @property
    def nats_per_token_error(self) -> float:
        """Standard error over the choice of rows, by ``ratio_error``; infinite for a single row.

        An estimator's own noise is included.
        """
        return ratio_error(self.nats, self.num_tokens, self.num_stretches)

    @property
    def num_stretches(self) -> int:
        """Number of contiguous stretches of rows whose totals ``nats_per_token_error`` compares.

        It is 30, or 2 sqrt(n) for fewer than 225 rows. Stretches are few and long, because real
        sequences are correlated at all distances: with 114, 57, 32 and 16 stretches of 1 kb windows
        of human chr20, the error of an order-8 Markov chain is 1.4, 1.7, 1.8 and 2.1 times that of
        independent windows. Correlations beyond the length of a stretch are still missed. The
        relative error of the standard error itself is about 1 / sqrt(2 (stretches - 1)), 13% with
        30 stretches.
        """
        return min(_MOST_STRETCHES, len(self.nats), math.isqrt(4 * len(self.nats)))

    @property
    def nats_per_token_degrees(self) -> int:
        """Degrees of freedom of ``nats_per_token_error``, for intervals by Student's t."""
        return self.num_stretches - 1

    @property
    def bits_per_token(self) -> float:
        """Total bits over total tokens."""
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_token_error(self) -> float:
        """``nats_per_token_error`` in bits."""
        return self.nats_per_token_error / math.log(2)

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(self.nats_per_token)

    @property
    def perplexity_error(self) -> float:
        """Standard error of ``perplexity`` over the choice of rows, by linearisation."""
        return self.perplexity * self.nats_per_token_error

    def minus(self, other: RowNats) -> RowNats:
        """Subtract the values of another model for the same rows.

        The variation between rows that both models have in common cancels in the error.

        Args:
            other: Values of the same rows, in the same order.

        Raises:
            ValueError: If the two do not count the same tokens.
        """
        if not np.array_equal(self.num_tokens, other.num_tokens):
            raise ValueError(
                "RowNats.minus: other must count as many tokens in each row, got "
                f"{len(other.num_tokens):,} rows with {other.num_tokens.sum():,} tokens for "
                f"{len(self.num_tokens):,} with {self.num_tokens.sum():,}; score the same rows"
            )
        return RowNats(self.nats - other.nats, self.num_tokens)

    @property
    def counted(self) -> RowNats:
        """The rows with at least one counted token; ``evaluate`` leaves out the others."""
        chosen = self.num_tokens > 0
        return RowNats(self.nats[chosen], self.num_tokens[chosen])


@dataclass(frozen=True)
class Likelihood(RowNats):
    """Negative log-likelihoods of a set of sequences, or bounds on them.

    Attributes:
        nats: Estimate of the estimator's ``quantity`` for each sequence, in nats.
        num_tokens: Tokens counted in each sequence, at least 1.
        standard_error: Standard error of each entry of ``nats``, from independent evaluations. Its
            square is unbiased; with a ``target_se`` see ``Budget``.
        nfe: Network evaluations spent on each sequence.
        degrees: Degrees of freedom of each ``standard_error``, for Student's t; infinite where the
            estimate is exact.
    """

    standard_error: Float64[np.ndarray, " n"]
    nfe: Int64[np.ndarray, " n"]
    degrees: Float64[np.ndarray, " n"]

    def interval(
        self, level: float = 0.95
    ) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Confidence intervals by Student's t, for the expectation of each entry of ``nats``.

        The actual coverage depends on the network. With the default numbers of evaluations, 93% to
        97% of the 95% intervals cover the truth for tables of arbitrary conditional distributions,
        averaged over rows. If a few rare masks make most of the variance, most draws miss them and
        the intervals are too narrow. In rows of 64 tokens with ``StratifiedK``, the coverage is
        91.6% for a network that is sure of almost every token given both neighbours but takes 2
        nats for every eighth, and 89% if it takes 5 nats for every sixteenth; ``ExactK`` covers
        95%, with wider intervals. With fewer evaluations the coverage falls, to 90% on the tables.
        Intervals of differences, see ``contrast``, cover 94% to 95% in each of twelve joint
        distributions with ``SmallK``, and as little as 82% with ``StratifiedK``, which rarely draws
        few masked tokens.

        Args:
            level: Nominal coverage, in (0, 1).

        Returns:
            Lower and upper ends, in nats per sequence.

        Raises:
            ValueError: If ``level`` is not in (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(
                f"Likelihood.level must be between 0 and 1, got {level}; 0.95 is usual"
            )
        half = half_width(self.standard_error, self.degrees, level)
        return self.nats - half, self.nats + half

    def mean_of(self, rows: list[int]) -> Likelihood:
        """Average independent estimates of one sequence, or of several readings of it.

        Args:
            rows: Indices of the entries, which have equally many tokens. Their evaluations are
                added up.
        """
        variances = self.standard_error[rows] ** 2
        return Likelihood(
            self.nats[rows].mean(keepdims=True),
            self.num_tokens[rows[:1]],
            np.sqrt(variances.sum(keepdims=True)) / len(rows),
            self.nfe[rows].sum(keepdims=True),
            np.array([effective_degrees(variances, self.degrees[rows])]),
        )

    @property
    def nats_per_token_estimator_error(self) -> float:
        """Standard error from the estimator's draws alone, with these sequences held fixed."""
        return float(np.sqrt((self.standard_error**2).sum()) / self.num_tokens.sum())

    @property
    def bits_per_token_estimator_error(self) -> float:
        """``nats_per_token_estimator_error`` in bits."""
        return self.nats_per_token_estimator_error / math.log(2)


def ratio_error(
    nats: Float64[np.ndarray, " n"], num_tokens: Int64[np.ndarray, " n"], stretches: int
) -> float:
    """Standard error of total nats over total tokens, by the method of batch means.

    Rows are cut from consecutive sequence, and neighbouring rows are correlated, so that the
    formula for independent rows gives too small an error. Here the rows are added up in contiguous
    stretches of nearly equal numbers of rows, whose totals are nearly independent if the stretches
    are long. A stretch may contain the end of a record or document: rows on either side of it are
    merely less correlated. For independent rows whose variance is proportional to their number of
    tokens, the estimated variance is unbiased with any number of stretches. With as many stretches
    as rows this is the formula for independent rows.

    The ratio is linearised: the residual of a stretch is nats - ratio * tokens. Source: Schmeiser
    1982, "Batch size effects in the analysis of simulation output", Operations Research 30:556.

    Args:
        nats: Nats of each row, in the order of the sequence.
        num_tokens: Tokens of each row, at least one.
        stretches: Number of stretches; with fewer than 2 the error is infinite.
    """
    if stretches < 2:
        return math.inf
    total = num_tokens.sum()
    first = len(nats) * np.arange(stretches) // stretches
    residual = np.add.reduceat(nats - nats.sum() / total * num_tokens, first)
    weight = np.add.reduceat(num_tokens, first) / total
    return float(np.sqrt((residual**2).sum() / (1 - (weight**2).sum())) / total)


def half_width(
    standard_error: Float64[np.ndarray, " n"], degrees: Float64[np.ndarray, " n"], level: float
) -> Float64[np.ndarray, " n"]:
    """Half of a confidence interval by Student's t.

    Args:
        standard_error: Standard error of an estimate.
        degrees: Its degrees of freedom, above 0.
        level: Nominal coverage, in (0, 1).
    """
    return stdtrit(degrees, (1 + level) / 2) * standard_error


def effective_degrees(
    variances: Float64[np.ndarray, " components"], degrees: Float64[np.ndarray, " ..."] | float
) -> float:
    """Degrees of freedom of a sum of independent estimates of variances (Satterthwaite 1946).

    The sum is about as uncertain as chi-square with (sum v)^2 / sum(v^2 / d) degrees of freedom.
    Squares of estimates are too large by a factor of 1 + 2 / d on average, which is corrected for:
    with one degree of freedom each, the result would otherwise be a third of the true one.
    """
    each = np.full(len(variances), degrees, dtype=np.float64)  # faster than broadcast_to
    if not variances.any():
        return float(each.sum())
    fractions = variances / variances.sum()
    unbiased = fractions**2 / (each + 2)
    return float(min(1 / unbiased.sum() - 2, each.sum()))
