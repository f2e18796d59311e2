"""Dropout of labels and signals, for classifier-free guidance."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from seqdiff.rng import LABEL_STREAM, SIGNAL_STREAM, CounterNoise
from seqdiff.types import NO_LABEL, Batch


@dataclass(frozen=True)
class ConditionDropout:
    """The conditions of some training examples are hidden, so that the model can do without them.

    What is hidden depends on (seed, index) but not on the batch.
    Source: Ho and Salimans 2022, arXiv:2207.12598, algorithm 1.

    Attributes:
        label: Probability that the label of an example is hidden.
        signal: Probability that all signals of an example are hidden; if an example has several
            and they are not all hidden, each is hidden with this probability too.
    """

    label: float = 0.0
    signal: float = 0.0

    def __call__(self, batch: Batch, noise: CounterNoise) -> Batch:
        """Hide labels and signals of a batch.

        Args:
            batch: Rows with or without labels and signals.
            noise: Noise of the run.
        """
        label, signal = batch.label, batch.signal
        if label is None and signal is None:
            return batch
        if label is not None:
            hidden = noise.uniform(batch.index, 1, stream=LABEL_STREAM)[:, 0] < self.label
            label = label.masked_fill(hidden, NO_LABEL)
        if signal is not None:
            count = signal.shape[-1]
            hidden = noise.uniform(batch.index, 1 + count, stream=SIGNAL_STREAM) < self.signal
            each = hidden[:, :1] | hidden[:, 1:] if count > 1 else hidden[:, :1]
            each = each if signal.dim() == 2 else each[:, None]
            signal = signal.masked_fill(each, torch.nan)
        return replace(batch, label=label, signal=signal)
