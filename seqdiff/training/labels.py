"""Label dropout, for classifier-free guidance."""

from __future__ import annotations

from dataclasses import replace

from seqdiff.rng import LABEL_STREAM, CounterNoise
from seqdiff.types import NO_LABEL, Batch


def drop_labels(batch: Batch, rate: float, noise: CounterNoise) -> Batch:
    """Hide the labels of some examples, which depend on (seed, index) but not on the batch.

    Source: Ho and Salimans 2022, arXiv:2207.12598, algorithm 1.

    Args:
        batch: Rows with or without labels.
        rate: Probability that a label is hidden, in [0, 1].
        noise: Noise of the run.
    """
    if batch.label is None:
        return batch
    hidden = noise.uniform(batch.index, 1, stream=LABEL_STREAM)[:, 0] < rate
    return replace(batch, label=batch.label.masked_fill(hidden, NO_LABEL))
