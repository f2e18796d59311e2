"""The entropy of synthetic genomes, in closed form or with a standard error.

Sources: Cover and Thomas 2006, Elements of Information Theory, theorem 4.2.4 (entropy rate of a
Markov chain) and theorem 4.5.1 (the rate of a hidden Markov process lies between the conditional
entropies with and without the first hidden state).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from genomics.data.sources import MarkovGenome

_BLOCK_ROWS = 512


@dataclass(frozen=True)
class Entropy:
    """An entropy of ``num_tokens`` letters.

    Attributes:
        nats: Total, in nats.
        standard_error: Of ``nats``; 0 where it is a closed form.
        num_tokens: Letters it is spread over.
        bias_bound: The truth is at most this far below the expectation of ``nats``; in nats.
    """

    nats: float
    standard_error: float
    num_tokens: int
    bias_bound: float = 0.0

    @property
    def nats_per_token(self) -> float:
        """Nats a letter."""
        return self.nats / self.num_tokens

    @property
    def bits_per_token(self) -> float:
        """Bits a letter."""
        return self.nats_per_token / math.log(2)

    @property
    def bits_per_token_error(self) -> float:
        """Standard error of ``bits_per_token``."""
        return self.standard_error / self.num_tokens / math.log(2)


def window_entropy(source: MarkovGenome, length: int, *, num: int = 4096, seed: int = 0) -> Entropy:
    """Entropy of a stationary window, which no model's expected nats can be below.

    Without motifs ``H(first k letters) + (length - k) h`` in closed form; with motifs the mean of
    the exact -log p over sampled windows, with the variates of ``_controls`` regressed out.

    Args:
        source: Where windows come from.
        length: Letters of a window.
        num: Windows to sample, at least 16; the standard error falls as its square root.
        seed: Of the sample.

    Raises:
        ValueError: If an argument is too small.
    """
    _check("window_entropy", length, 1, num)
    k = source.order
    if not source.motifs:
        law = source.boundary.reshape(4 ** min(k, length), -1).sum(axis=1)
        nats = _entropy(law) + max(length - k, 0) * _background_rate(source)
        return Entropy(float(nats), 0.0, length)
    nats, controls = [], []
    for rows, states in _windows(source, length, num, seed):
        nats.append(-source.log_prob(rows[:, k:]))
        controls.append(_controls(source, rows, states).sum(axis=1))
    mean, error = _regressed(np.concatenate(nats), np.concatenate(controls))
    return Entropy(mean, error, length)


def entropy_rate(
    source: MarkovGenome, *, length: int = 512, num: int = 1024, seed: int = 0
) -> Entropy:
    """Entropy per letter of an endless sequence, ``num_tokens = 1``.

    With motifs, the mean nats of the second half of windows given the first. It exceeds the
    rate by at most ``bias_bound``, by which knowing the window's first hidden state lowers it.

    Args:
        source: What to measure.
        length: Letters of a window, at least 2.
        num: Windows to sample, at least 16.
        seed: Of the sample.

    Raises:
        ValueError: If an argument is too small.
    """
    _check("entropy_rate", length, 2, num)
    k, half = source.order, length // 2
    if not source.motifs:
        return Entropy(_background_rate(source), 0.0, 1)
    nats, gaps, controls = [], [], []
    for rows, states in _windows(source, length, num, seed):
        upper = source.conditional_nats(rows)[:, k + half :]
        lower = source.conditional_nats(rows, states[:, 0])[:, k + half :]
        nats.append(upper.mean(axis=1))
        gaps.append((upper - lower).mean(axis=1))
        controls.append(_controls(source, rows, states)[:, half:].mean(axis=1))
    mean, error = _regressed(np.concatenate(nats), np.concatenate(controls))
    return Entropy(mean, error, 1, max(0.0, float(np.concatenate(gaps).mean())))


def _windows(
    source: MarkovGenome, length: int, num: int, seed: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Blocks of windows, each after its context of k letters, and their hidden states."""
    for first in range(0, num, _BLOCK_ROWS):
        yield source.sample_paths(min(_BLOCK_ROWS, num - first), length, (seed, first))


def _controls(source: MarkovGenome, rows: np.ndarray, states: np.ndarray) -> np.ndarray:
    """Variates of known mean, that mean taken off, for each place after the context.

    Nats of the letter given its hidden state and context, in the background and in motifs; nats of
    the hidden state given the one before; and whether the state is background. Their stationary
    means are sums over the tables.
    """
    k, contexts = source.order, len(source.transitions)
    steps = states.shape[1] - 1
    context = np.zeros((len(rows), steps), dtype=np.int64)
    for j in range(k):
        context = context * 4 + rows[:, j : j + steps]
    letter, state = rows[:, k:].astype(np.int64), states[:, 1:]
    background = state == 0
    by_row = np.concatenate([source.transitions, source.emissions[1:]])
    row = np.where(background, context, contexts + state - 1)
    emitted = -np.log(by_row[row, letter])
    start_nats = np.zeros(len(source.emissions))
    start_nats[source.starts] = -np.log(source.start_probs)
    law = source.stationary.sum(axis=0)
    free = law[source.ends].sum()
    values = (background * emitted, ~background * emitted, start_nats[state], background)
    means = (
        law[0] * _background_rate(source),
        sum(p * _entropy(e) for p, e in zip(law[1:], source.emissions[1:], strict=True)),
        free * _entropy(source.start_probs),
        law[0],
    )
    return np.stack([v - m for v, m in zip(values, means, strict=True)], axis=-1)


def _regressed(
    values: Float64[np.ndarray, " n"], controls: Float64[np.ndarray, "n c"]
) -> tuple[float, float]:
    """Mean of ``values`` and its standard error, least-squares on controls of mean zero."""
    design = np.column_stack([np.ones(len(values)), controls])
    coefficients, _, rank, _ = np.linalg.lstsq(design, values)
    residual = values - design @ coefficients
    inverse = np.linalg.pinv(design.T @ design)
    variance = float(residual @ residual) / (len(values) - int(rank))
    return float(coefficients[0]), math.sqrt(variance * float(inverse[0, 0]))


def _background_rate(source: MarkovGenome) -> float:
    return float(source.boundary @ [_entropy(row) for row in source.transitions])


def _entropy(law: np.ndarray) -> float:
    positive = law[law > 0]
    return float(-(positive * np.log(positive)).sum())


def _check(owner: str, length: int, least: int, num: int) -> None:
    if length < least or num < 16:
        raise ValueError(
            f"{owner} needs length of at least {least} and num of at least 16, got {length} and "
            f"{num}; use for example length=512, num=1024"
        )
