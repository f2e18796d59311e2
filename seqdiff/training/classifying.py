"""One pass of fine-tuning a classifier, shared by the domains."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def learn_pass(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    rate: torch.optim.lr_scheduler.LRScheduler,
    batches: Iterable[tuple[Tensor, ...]],
    *,
    clip: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> None:
    """Learn from each batch once, by cross-entropy.

    Args:
        model: Maps the inputs of a batch to the scores of classes, ``[B, C]``.
        optimizer: Of its parameters.
        rate: Follows the learning rate; moved on after each step.
        batches: Inputs, and last the labels ``[B]``; they are moved to the model's device.
        clip: Norm that gradients are clipped to; ``None`` for no bound.
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
