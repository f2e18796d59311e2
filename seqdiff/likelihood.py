"""How well a denoiser models sequences: the bound, with standard errors, in honest units.

The bound depends on the network alone, not on the noise schedule: it is the mean over k of the
cross-entropy at k masked tokens (Ou et al. 2024, arXiv:2406.03736, theorem 2). So evaluation masks
exactly k tokens, k spread evenly over 1..n, and no end of the time interval is dropped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from seqdiff.losses import weighted_mlm
from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.rng import MASK_STREAM, TIME_STREAM, CounterNoise
from seqdiff.types import Batch


@dataclass(frozen=True)
class Likelihood:
    """The NELBO of a set of sequences.

    Attributes:
        nats: Bound of each sequence, in nats; an unbiased estimate.
        standard_error: Standard error of each entry of ``nats``, from independent evaluations.
        num_tokens: Tokens counted in each sequence, at least 1.
        nfe: Network evaluations spent on each sequence.
    """

    nats: Float64[np.ndarray, " n"]
    standard_error: Float64[np.ndarray, " n"]
    num_tokens: Int64[np.ndarray, " n"]
    nfe: int

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
        """Standard error from masking alone, for these very sequences."""
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


@torch.no_grad()
def evaluate(
    denoiser: Denoiser,
    batches: Iterable[Batch],
    *,
    process: MaskedDiffusion,
    evaluations: int = 16,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> Likelihood:
    """Estimate the NELBO of every sequence with the stratified-k estimator.

    Each sequence's k runs through ``evaluations / 2`` equal strata of 1..n, with two independent
    draws in each: their differences give an unbiased standard error. Positions outside
    ``loss_mask`` are given, not counted; sequences without any counted position are left out.

    Args:
        denoiser: In eval mode, on the device of the batches.
        batches: What to evaluate; ``index`` must not repeat.
        process: Supplies the mask.
        evaluations: Network evaluations a sequence; even, at least 2.
        seed: Of the masks, in [0, 2^32).
        progress: Called with the number of sequences after each batch.

    Raises:
        ValueError: If ``evaluations`` is odd or less than 2, or no position counts at all.
    """
    check_evaluations(evaluations)
    noise = CounterNoise(seed)
    parts = []
    for batch in batches:
        counts = batch.loss_mask.any(dim=-1)
        if counts.any():
            chosen = Batch(batch.tokens[counts], batch.loss_mask[counts], batch.index[counts])
            parts.append(_evaluate_batch(denoiser, process, chosen, evaluations, noise))
        if progress is not None:
            progress(len(batch.tokens))
    if not parts:
        raise ValueError(
            "evaluate.batches must hold at least one position with loss_mask True, got none; "
            "check the split and that the sequences are not all unknown symbols"
        )
    nats, errors, tokens = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Likelihood(nats, errors, tokens, evaluations)


def check_evaluations(evaluations: int) -> None:
    """Refuse a number of evaluations that ``evaluate`` cannot spread over its strata.

    Raises:
        ValueError: If it is odd or less than 2.
    """
    if evaluations < 2 or evaluations % 2:
        raise ValueError(
            f"evaluate.evaluations must be even and at least 2, got {evaluations}; every stratum "
            f"takes two for its standard error: give {max(2, evaluations + 1)}"
        )


def _evaluate_batch(
    denoiser: Denoiser,
    process: MaskedDiffusion,
    batch: Batch,
    evaluations: int,
    noise: CounterNoise,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Bound, standard error and counted tokens of each row."""
    num_tokens = batch.loss_mask.sum(dim=-1)
    keep = ~batch.loss_mask
    strata = evaluations // 2
    draws = []
    for evaluation in range(evaluations):
        index = batch.index * evaluations + evaluation
        count = _stratified_count(num_tokens, evaluation // 2, strata, index, noise)
        masks = noise.uniform(index, batch.tokens.shape[1], stream=MASK_STREAM)
        x_t = process.corrupt_exactly(batch.tokens, count, keep=keep, noise=masks)
        share = count.double() / num_tokens
        log_probs = denoiser(x_t, process.schedule.inverse(1 - share))
        terms = weighted_mlm(log_probs, batch.tokens, x_t, 1 / share)
        draws.append(terms.sum(dim=-1, dtype=torch.float64))
    pairs = torch.stack(draws).unflatten(0, (strata, 2))
    differences = pairs[:, 0] - pairs[:, 1]
    error = (differences**2).sum(dim=0).sqrt() / evaluations
    return (
        pairs.mean(dim=(0, 1)).cpu().numpy(),
        error.cpu().numpy(),
        num_tokens.cpu().numpy(),
    )


def _stratified_count(
    num_tokens: Tensor, stratum: int, strata: int, index: Tensor, noise: CounterNoise
) -> Tensor:
    """Draw k in 1..n from the given one of ``strata`` equal parts of (0, 1]."""
    u = noise.uniform(index, 1, stream=TIME_STREAM)[:, 0]
    return (num_tokens * ((stratum + u) / strata)).long().clamp_max(num_tokens - 1) + 1
