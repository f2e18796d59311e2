"""Training with labels: label dropout, and one pass of a classifier over its batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def learn_pass(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rate: torch.optim.lr_scheduler.LRScheduler,
    batches: Iterable[tuple[Tensor, ...]],
    *,
    clip: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Train a classifier on each batch once, by cross-entropy.

    Args:
        model: Maps the inputs of a batch to the scores of classes, ``[B, C]``.
        optimizer: Optimizer of its parameters.
        rate: Learning rate scheduler, stepped after each batch.
        batches: Inputs, and last the labels ``[B]``; they are moved to the model's device.
        clip: Largest gradient norm; ``None`` does not clip.
        progress: Called with the number of rows after each step.
    """
    model.train()
    device = next(model.parameters()).device
    for *inputs, labels in batches:
        loss = F.cross_entropy(model(*(x.to(device) for x in inputs)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        rate.step()
        if progress is not None:
            progress(len(labels))
