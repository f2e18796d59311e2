"""Perplexity of samples under an autoregressive model, together with their entropy.

Samples that repeat themselves have a low perplexity although they are bad. Their low entropy shows
this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float64, Int64
from torch import Tensor, nn

from seqdiff.likelihood import Likelihood, ratio_error


@dataclass(frozen=True)
class GenerativePerplexity:
    """Perplexity and entropy of a set of samples.

    Attributes:
        likelihood: Nats and predicted tokens of each sample; ``nfe`` counts its windows. Samples
            without a predicted token are left out.
        entropy: Entropy of the tokens within each sample, in nats.
    """

    likelihood: Likelihood
    entropy: Float64[np.ndarray, " n"]

    @property
    def perplexity(self) -> float:
        """Exp of total nats over total tokens."""
        return self.likelihood.perplexity

    @property
    def nats_per_token_error(self) -> float:
        """Standard error over the choice of samples, which are independent."""
        nats, tokens = self.likelihood.nats, self.likelihood.num_tokens
        return ratio_error(nats, tokens, stretches=len(nats))

    @property
    def perplexity_error(self) -> float:
        """Standard error over the choice of samples, to first order."""
        return self.perplexity * self.nats_per_token_error

    @property
    def entropy_error(self) -> float:
        """Standard error of the mean of ``entropy``; infinite for a single sample."""
        n = len(self.entropy)
        return math.inf if n < 2 else float(self.entropy.std(ddof=1) / math.sqrt(n))


class Window(NamedTuple):
    """A part of a sample that the model reads at once.

    Attributes:
        sample: Index of the sample.
        start: First token of the window.
        end: End of the window, exclusive.
        first: First token that is predicted, after ``start``; the tokens before it are context.
    """

    sample: int
    start: int
    end: int
    first: int


def windows(lengths: Sequence[int], context: int | None) -> list[Window]:
    """Cut samples so that each token except the first is predicted exactly once.

    The stride is half the context. Therefore tokens outside the first window of a sample are
    predicted from at least half a context.

    Args:
        lengths: Number of tokens of each sample.
        context: Maximum number of tokens that the model reads at once; ``None`` if there is no
            limit.

    Raises:
        ValueError: If the context is too short to predict from.
    """
    if context is not None and context < 2:
        raise ValueError(f"windows.context must be at least 2, got {context}; choose another model")
    found = []
    for sample, length in enumerate(lengths):
        context_length = length if context is None else context
        start, done = 0, 1
        while done < length:
            end = min(start + context_length, length)
            found.append(Window(sample, start, end, done))
            start, done = start + max(1, context_length // 2), end
    return found


def unigram_entropy(tokens: Int64[np.ndarray, " n"]) -> float:
    """Compute the entropy of the tokens of one sample in nats.

    It is log n if all tokens differ, and 0 if all are the same.
    """
    fraction = np.unique(tokens, return_counts=True)[1] / max(1, len(tokens))
    return float(-(fraction * np.log(fraction)).sum()) + 0.0


@torch.no_grad()
def generative_perplexity(
    model: nn.Module,
    samples: Sequence[Int64[np.ndarray, " _"]],
    *,
    vocab_size: int,
    bos: int | None,
    context: int | None,
    batch_size: int,
    progress: Callable[[int], None] | None = None,
) -> GenerativePerplexity:
    """Score samples under an autoregressive model of transformers.

    Windows of similar lengths form a batch and are padded on the right, which does not affect a
    causal model. Padding is not counted.

    Args:
        model: A model in eval mode; calling it returns ``logits``.
        samples: Ids of each sample by the tokenizer of the model, without ``bos``.
        vocab_size: Number of ids that the model knows.
        bos: Token to put before each sample, so that the first token of the sample is predicted
            too. If ``None``, the first token is only context.
        context: Maximum number of tokens that the model reads at once; ``None`` if there is no
            limit.
        batch_size: Windows per call.
        progress: Called with the number of windows after each call.

    Raises:
        ValueError: If a sample is empty, an id is out of range, or no token is predicted.
    """
    _check(samples, vocab_size)
    rows, parts = _cut(samples, bos, context)
    nats, tokens, calls = np.zeros((3, len(rows)))
    for first in range(0, len(parts), batch_size):
        together = parts[first : first + batch_size]
        for part, worth in zip(together, _score(model, rows, together), strict=True):
            nats[part.sample] += worth
            tokens[part.sample] += part.end - part.first
            calls[part.sample] += 1
        if progress is not None:
            progress(len(together))
    counted = tokens > 0
    exact = np.zeros(int(counted.sum()))
    likelihood = Likelihood(
        nats[counted],
        tokens[counted].astype(np.int64),
        exact,
        calls[counted].astype(np.int64),
        np.full_like(exact, np.inf),
    )
    return GenerativePerplexity(likelihood, np.array([unigram_entropy(s) for s in samples]))


def _cut(
    samples: Sequence[np.ndarray], bos: int | None, context: int | None
) -> tuple[list[Tensor], list[Window]]:
    """Return the tokens of each sample with ``bos``, and the windows, the longest first."""
    lead = np.empty(0, np.int64) if bos is None else np.array([bos])
    rows = [torch.from_numpy(np.concatenate((lead, sample))) for sample in samples]
    parts = windows([len(row) for row in rows], context)
    if not parts:
        raise ValueError(
            "generative_perplexity.samples must hold a token to predict, got only samples of one "
            "token and a model without a bos token; draw longer samples"
        )
    return rows, sorted(parts, key=lambda part: part.end - part.start, reverse=True)


def _check(samples: Sequence[np.ndarray], vocab_size: int) -> None:
    for number, sample in enumerate(samples):
        if len(sample) == 0:
            raise ValueError(
                f"generative_perplexity.samples must hold at least one token each, got none in "
                f"sample {number}; remove it, and mention it in your results"
            )
        if not 0 <= sample.min() <= sample.max() < vocab_size:
            raise ValueError(
                f"generative_perplexity.samples must hold ids in 0..{vocab_size - 1}, got "
                f"{sample.min()}..{sample.max()} in sample {number}; use the "
                "model's own tokenizer"
            )


def _score(model: nn.Module, rows: list[Tensor], parts: list[Window]) -> list[float]:
    """Compute the nats of the predicted tokens of each window."""
    device = next(model.parameters()).device
    width = max(part.end - part.start for part in parts)
    tokens = torch.zeros((len(parts), width), dtype=torch.int64)
    real = torch.zeros_like(tokens)
    for place, part in enumerate(parts):
        tokens[place, : part.end - part.start] = rows[part.sample][part.start : part.end]
        real[place, : part.end - part.start] = 1
    logits = model(input_ids=tokens.to(device), attention_mask=real.to(device)).logits
    found = []
    for scores, row, part in zip(logits, tokens.to(device), parts, strict=True):
        asked = slice(part.first - part.start, part.end - part.start)
        before = slice(asked.start - 1, asked.stop - 1)
        precise = scores[before].to(torch.promote_types(scores.dtype, torch.float32))
        terms = F.cross_entropy(precise, row[asked], reduction="none")
        found.append(float(terms.sum(dtype=torch.float64)))
    return found
