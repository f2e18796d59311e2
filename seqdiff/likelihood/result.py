"""The likelihoods of a set of sequences, and what they come to per token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from scipy.special import stdtrit


@dataclass(frozen=True)
class Likelihood:
    """Negative log-likelihoods of a set of sequences, or bounds on them.

    Attributes:
        nats: Estimate for each sequence, in nats; what of is the estimator's ``quantity``.
        standard_error: Standard error of each entry of ``nats``, from independent evaluations; its
            square is unbiased unless a target ended the sequence, see ``Budget``.
        num_tokens: Tokens counted in each sequence, at least 1.
        nfe: Network evaluations spent on each sequence.
        degrees: Degrees of freedom of each ``standard_error``, for Student's t; infinite where the
            estimate is exact.
    """

    nats: Float64[np.ndarray, " n"]
    standard_error: Float64[np.ndarray, " n"]
    num_tokens: Int64[np.ndarray, " n"]
    nfe: Int64[np.ndarray, " n"]
    degrees: Float64[np.ndarray, " n"]

    def interval(
        self, level: float = 0.95
    ) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
        """Confidence intervals by Student's t, for the expectation of each entry of ``nats``.

        Of 95% intervals, 93% to 97% cover the truth with the estimators' own numbers of
        evaluations, on average over the rows of tables of arbitrary conditionals; fewer evaluations
        cover less, down to 90%. Of differences, see ``contrast``, they cover 94% to 95% in each of
        twelve joint laws with ``SmallK``; with ``StratifiedK``, whose draws of few masked tokens
        are rare, down to 82%.

        Args:
            level: How often an interval is to cover, in (0, 1).

        Returns:
            Lower and upper ends, in nats a sequence.

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
        """Average independent estimates of one thing, or of several ways to read it.

        Args:
            rows: Which entries; they have equally many tokens. The evaluations are added up.
        """
        variances = self.standard_error[rows] ** 2
        return Likelihood(
            self.nats[rows].mean(keepdims=True),
            np.sqrt(variances.sum(keepdims=True)) / len(rows),
            self.num_tokens[rows[:1]],
            self.nfe[rows].sum(keepdims=True),
            np.array([effective_degrees(variances, self.degrees[rows])]),
        )

    @property
    def nats_per_token(self) -> float:
        """Total nats over total tokens."""
        return float(self.nats.sum() / self.num_tokens.sum())

    @property
    def nats_per_token_error(self) -> float:
        """Standard error over the choice of sequences, the estimator's own noise included.

        That of a ratio of sums, by linearisation; infinite for a single sequence.
        """
        n = len(self.nats)
        if n < 2:
            return math.inf
        residual = self.nats - self.nats_per_token * self.num_tokens
        return float(np.sqrt(n / (n - 1) * (residual**2).sum()) / self.num_tokens.sum())

    @property
    def nats_per_token_estimator_error(self) -> float:
        """Standard error from the estimator's draws alone, for these very sequences."""
        return float(np.sqrt((self.standard_error**2).sum()) / self.num_tokens.sum())

    @property
    def bits_per_token(self) -> float:
        """Total bits over total tokens."""
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_token_error(self) -> float:
        """``nats_per_token_error`` in bits."""
        return self.nats_per_token_error / math.log(2)

    @property
    def bits_per_token_estimator_error(self) -> float:
        """``nats_per_token_estimator_error`` in bits."""
        return self.nats_per_token_estimator_error / math.log(2)

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(self.nats_per_token)

    @property
    def perplexity_error(self) -> float:
        """Standard error of ``perplexity`` over the choice of sequences, by linearisation."""
        return self.perplexity * self.nats_per_token_error


def half_width(
    standard_error: Float64[np.ndarray, " n"], degrees: Float64[np.ndarray, " n"], level: float
) -> Float64[np.ndarray, " n"]:
    """Half of a confidence interval by Student's t.

    Args:
        standard_error: Of an estimate.
        degrees: Its degrees of freedom, above 0.
        level: In (0, 1).
    """
    return stdtrit(degrees, (1 + level) / 2) * standard_error


def effective_degrees(
    variances: Float64[np.ndarray, " components"], degrees: Float64[np.ndarray, " ..."] | float
) -> float:
    """Degrees of freedom of a sum of independent estimates of variances (Satterthwaite 1946).

    The sum is as uncertain as chi-square with (sum v)^2 / sum(v^2 / d) degrees of freedom. Squares
    of estimates are too large by 1 + 2 / d in the mean, which is corrected for: with a single
    degree of freedom each, it would otherwise come out at a third.

    Args:
        variances: The estimates.
        degrees: Degrees of freedom of all of them, or of each.
    """
    each = np.broadcast_to(degrees, variances.shape)
    if not variances.any():
        return float(each.sum())
    shares = variances / variances.sum()
    unbiased = shares**2 / (each + 2)
    return float(min(1 / unbiased.sum() - 2, each.sum()))
