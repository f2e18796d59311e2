"""One run of a backbone on a task: fine-tuned whole, or its head alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float32
from torch import nn

from genomics.finetune.classifier import SequenceClassifier, measure_both
from genomics.finetune.fitting import (
    Fitted,
    check_finite,
    fit,
    hold_out,
    num_learned,
    predict,
    shuffled,
)
from genomics.finetune.labelled import LabelledTask
from genomics.finetune.plan import Plan
from genomics.finetune.probe import Pooled, fit_probe, pool_task
from genomics.sequence import DNATokenizer
from seqdiff.backbones import Backbone

Pool = Callable[[SequenceClassifier, LabelledTask, Plan], Pooled]


def run_backbone(
    backbone: Backbone,
    task: LabelledTask,
    seen: Bool[np.ndarray, " n"],
    plan: Plan,
    progress: Callable[[int], None] | None = None,
    *,
    pool: Pool = pool_task,
) -> dict[str, object]:
    """Fit, choose the epoch on the validation part, measure on the test set.

    Args:
        backbone: A copy that may be changed.
        task: The task.
        seen: Test rows that training has seen.
        plan: What to do.
        progress: Called with the number of sequences after each step.
        pool: Gives the states of a probe.

    Returns:
        What a line of the results holds besides its key; ``train_seconds`` only where the network
        itself learns.

    Raises:
        DivergedError: If the network's scores are no longer finite.
        ValueError: If a class is missing from the training part, a network that reads both strands
            is to be conjoined, or scikit-learn is not installed.
    """
    assert isinstance(backbone, nn.Module)
    device = next(backbone.parameters()).device
    started = time.perf_counter()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(plan.seed)
        model = SequenceClassifier(
            backbone,
            len(task.classes),
            complement=DNATokenizer().complement,
            conjoin=plan.conjoin,
            pooling=plan.pooling,
        ).to(device)
        if plan.strategy == "probe":
            pooled = pool(model, task, plan)
            fitted, probs = fit_probe(model.head, pooled, task, plan, progress)
        else:
            fitted, probs = _full(model, task, plan, progress)
    speed = {"train_seconds": fitted.train_seconds} if plan.strategy == "full" else {}
    return {
        **fitted.record(),
        **measure_both(task.test.labels, probs, seen),
        "num_train": num_learned(task),
        "seconds": round(time.perf_counter() - started, 2),
        **speed,
    }


def _full(
    model: SequenceClassifier,
    task: LabelledTask,
    plan: Plan,
    progress: Callable[[int], None] | None,
) -> tuple[Fitted, Float32[np.ndarray, "n C"]]:
    recipe = plan.recipe
    train, valid = hold_out(task, plan.seed)
    fitted = fit(
        model,
        recipe.optimiser(model, len(train)),
        recipe.epochs,
        one_pass=shuffled(train, plan.seed, recipe.batch_size, plan.length, plan.width),
        valid_probs=lambda: predict(model, valid, plan.length, plan.width),
        valid_labels=valid.labels,
        progress=progress,
    )
    probs = predict(model, task.test, plan.length, plan.width)
    check_finite(probs, fitted.epoch)
    return fitted, probs
