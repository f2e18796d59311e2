"""One run of a backbone on a task: fine-tuned whole, or its head alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from seqdiff.backbones.protocol import HiddenBackbone

from .alphabet import DNATokenizer
from .benchmark_fitting import EVAL_BATCH, Fitted, Recipe, fit, hold_out, predict, shuffled
from .classification import measure_both
from .labelled import Labelled, LabelledTask
from .sequence_batches import batches
from .sequence_classifier import Conjoin, Pooling, SequenceClassifier

Strategy = Literal["full", "probe"]
STRATEGIES = get_args(Strategy)


@dataclass(frozen=True)
class Plan:
    """What is done with a backbone.

    Attributes:
        recipe: Of the optimisation.
        strategy: Train everything, or the head alone on states that stay (linear probe).
        conjoin: See ``SequenceClassifier``.
        length: Most bases that are read; longer sequences are cut to their middle.
        pooling: See ``SequenceClassifier``; ``padded`` fills all rows up to ``length``.
        seed: Of the split, the head and the order.
    """

    recipe: Recipe
    strategy: Strategy
    conjoin: Conjoin
    length: int
    pooling: Pooling
    seed: int

    @property
    def width(self) -> int | None:
        """Of all batches; ``None`` for as much as their longest rows take."""
        return self.length if self.pooling == "padded" else None


def run_backbone(
    backbone: HiddenBackbone,
    task: LabelledTask,
    seen: Bool[np.ndarray, " n"],
    plan: Plan,
    progress: Callable[[int], None] | None = None,
) -> dict[str, object]:
    """Fit, choose the epoch on the validation part, measure on the test set.

    Args:
        backbone: A copy that may be changed.
        task: The task.
        seen: Test rows that training has seen.
        plan: What to do.
        progress: Called with the number of sequences after each step.

    Returns:
        What a line of the results holds besides its key.
    """
    train, valid = hold_out(task, plan.seed)
    assert isinstance(backbone, nn.Module)
    device = next(backbone.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(plan.seed)
        model = SequenceClassifier(
            backbone,
            len(task.classes),
            complement=DNATokenizer().complement,
            conjoin=plan.conjoin,
            pooling=plan.pooling,
        ).to(device)
        started = time.perf_counter()
        if plan.strategy == "probe":
            fitted, probs = _probe(model, train, valid, task.test, plan, progress)
        else:
            fitted, probs = _full(model, train, valid, task.test, plan, progress)
        seconds = time.perf_counter() - started
    return {
        "epoch": fitted.epoch,
        "valid_accuracy": fitted.valid_accuracy,
        **measure_both(task.test.labels, probs, seen),
        "num_train": len(train),
        "seconds": round(seconds, 2),
    }


def _full(
    model: SequenceClassifier,
    train: Labelled,
    valid: Labelled,
    test: Labelled,
    plan: Plan,
    progress: Callable[[int], None] | None,
) -> tuple[Fitted, np.ndarray]:
    recipe = plan.recipe
    fitted = fit(
        model,
        recipe.optimiser(model, len(train)),
        recipe.epochs,
        one_pass=shuffled(train, plan.seed, recipe.batch_size, plan.length, plan.width),
        valid_probs=lambda: predict(model, valid, plan.length, plan.width),
        valid_labels=valid.labels,
        progress=progress,
    )
    return fitted, predict(model, test, plan.length, plan.width)


class _Probe(nn.Module):
    """The head of a classifier on states that were pooled before."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, pooled: Float[Tensor, "B S D"]) -> Float[Tensor, "B C"]:
        return self.head(pooled).mean(dim=1)


def _probe(
    model: SequenceClassifier,
    train: Labelled,
    valid: Labelled,
    test: Labelled,
    plan: Plan,
    progress: Callable[[int], None] | None,
) -> tuple[Fitted, np.ndarray]:
    recipe = plan.recipe
    learned, held, asked = _pooled(model, (train, valid, test), plan)
    if plan.conjoin == "test":
        learned = learned[:, :1]
    head = _Probe(model.head)
    generator = np.random.default_rng(plan.seed)
    labels = torch.from_numpy(train.labels)

    def one_pass() -> Iterator[tuple[Tensor, ...]]:
        order = torch.from_numpy(generator.permutation(len(train)))
        for rows in order.split(recipe.batch_size):
            yield learned[rows], labels[rows]

    @torch.no_grad()
    def probs(pooled: Tensor) -> np.ndarray:
        device = model.head.weight.device
        return head(pooled.to(device)).softmax(dim=-1).cpu().numpy()

    fitted = fit(
        head,
        recipe.optimiser(head, len(train)),
        recipe.epochs,
        one_pass=one_pass,
        valid_probs=lambda: probs(held),
        valid_labels=valid.labels,
        progress=progress,
    )
    return fitted, probs(asked)


@torch.no_grad()
def _pooled(model: SequenceClassifier, parts: Sequence[Labelled], plan: Plan) -> list[Tensor]:
    """Pool the states of all rows once, on both strands if either is asked for."""
    model.eval()
    device = model.head.weight.device
    both = plan.conjoin != "none"
    return [
        torch.cat(
            [
                model.pool(tokens.to(device), padding.to(device), both=both).cpu()
                for tokens, padding, _ in batches(
                    data, np.arange(len(data)), EVAL_BATCH, plan.length, width=plan.width
                )
            ]
        )
        for data in parts
    ]
