"""The likelihoods of a set of sequences, and what they come to per token."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64


@dataclass(frozen=True)
class Likelihood:
    """Negative log-likelihoods of a set of sequences, or bounds on them.

    Attributes:
        nats: Estimate for each sequence, in nats; what of is the estimator's ``quantity``.
        standard_error: Standard error of each entry of ``nats``, from independent evaluations; its
            square is unbiased. 1.96 of them cover the truth in about 95% of sequences from some 128
            evaluations on. With few it is itself uncertain, and they cover less: on a table of
            four tokens 86% with the 16 of ``StratifiedK``, 92% with those of ``ExactK``, 69% with
            two orders.
        num_tokens: Tokens counted in each sequence, at least 1.
        nfe: Network evaluations spent on each sequence.
    """

    nats: Float64[np.ndarray, " n"]
    standard_error: Float64[np.ndarray, " n"]
    num_tokens: Int64[np.ndarray, " n"]
    nfe: Int64[np.ndarray, " n"]

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
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return math.exp(self.nats_per_token)
