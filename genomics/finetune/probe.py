"""A linear probe: the head of a classifier on states that are pooled once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float32
from torch import Tensor, nn

from genomics.finetune.classifier import SequenceClassifier, batches
from genomics.finetune.fitting import EVAL_BATCH, Fitted, check_finite, fit, split_rows
from genomics.finetune.labelled import Labelled, LabelledTask
from genomics.finetune.plan import Plan


@dataclass(frozen=True)
class Pooled:
    """States of all sequences of a task, on one strand or on both.

    Attributes:
        train: Of the training set, before anything is held out, ``[n, S, D]``.
        valid: Of the validation set, if the task has one.
        test: Of the test set.
    """

    train: Float32[Tensor, "n S D"]
    valid: Float32[Tensor, "v S D"] | None
    test: Float32[Tensor, "m S D"]


@torch.no_grad()
def pool_task(model: SequenceClassifier, task: LabelledTask, plan: Plan) -> Pooled:
    """Pool the states of all sequences, on both strands if that is asked for at any time.

    Args:
        model: What pools; its head is not used.
        task: The task.
        plan: How rows are read.
    """
    model.eval()
    device = model.head.weight.device

    def pool(data: Labelled) -> Tensor:
        order = np.argsort(data.lengths, kind="stable")
        parts = [
            model.pool(tokens.to(device), padding.to(device), both=plan.conjoin != "none").float()
            for tokens, padding, _ in batches(
                data, order, EVAL_BATCH, plan.length, width=plan.width
            )
        ]
        states = torch.cat(parts).cpu()
        return torch.empty_like(states).index_copy_(0, torch.from_numpy(order), states)

    valid = None if task.valid is None else pool(task.valid)
    return Pooled(pool(task.train), valid, pool(task.test))


class PoolOnce:
    """Pools what is new, and keeps the states that were asked for last.

    A grid that asks for all rates, batch sizes and seeds of one network in a row so reads each
    sequence once, and holds one task's states at a time.
    """

    def __init__(self) -> None:
        self._kept: tuple[Hashable, Pooled] | None = None

    def __call__(
        self, origin: Hashable, model: SequenceClassifier, task: LabelledTask, plan: Plan
    ) -> Pooled:
        """See ``pool_task``.

        Args:
            origin: Names the network's weights and the task's data.
            model: See ``pool_task``.
            task: See ``pool_task``.
            plan: See ``pool_task``.
        """
        key = (origin, plan.conjoin, plan.pooling, plan.length)
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # Frees the memory before more is asked for.
            self._kept = key, pool_task(model, task, plan)
        return self._kept[1]


class _Probe(nn.Module):
    """The head of a classifier on states that were pooled before."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def forward(self, pooled: Float[Tensor, "B S D"]) -> Float[Tensor, "B C"]:
        return self.head(pooled).mean(dim=1)


def fit_probe(
    head: nn.Linear,
    pooled: Pooled,
    task: LabelledTask,
    plan: Plan,
    progress: Callable[[int], None] | None,
) -> tuple[Fitted, Float32[np.ndarray, "n C"]]:
    """Fit a head; with ``conjoin`` at test it learns from the given strand alone.

    Args:
        head: Of the classes.
        pooled: States of the task.
        task: The task.
        plan: What to do.
        progress: Called with the number of sequences after each step.

    Returns:
        The fit, and the probability of each class of the test rows.

    Raises:
        DivergedError: If the scores are no longer finite.
    """
    recipe = plan.recipe
    learned, held, labels, truth = _parts(pooled, task, plan.seed)
    if plan.conjoin == "test":
        learned = learned[:, :1]
    probe = _Probe(head)
    generator = np.random.default_rng(plan.seed)

    def one_pass() -> Iterator[tuple[Tensor, ...]]:
        order = torch.from_numpy(generator.permutation(len(labels)))
        for rows in order.split(recipe.batch_size):
            yield learned[rows], labels[rows]

    @torch.no_grad()
    def probs(states: Tensor) -> np.ndarray:
        return probe(states.to(head.weight.device)).softmax(dim=-1).cpu().numpy()

    fitted = fit(
        probe,
        recipe.optimiser(probe, len(labels)),
        recipe.epochs,
        one_pass=one_pass,
        valid_probs=lambda: probs(held),
        valid_labels=truth,
        progress=progress,
    )
    asked = probs(pooled.test)
    check_finite(asked, fitted.epoch)
    return fitted, asked


def _parts(
    pooled: Pooled, task: LabelledTask, seed: int
) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """States to learn from and to validate on, then their labels."""
    labels = task.train.labels
    if task.valid is not None:
        assert pooled.valid is not None
        return pooled.train, pooled.valid, torch.from_numpy(labels), task.valid.labels
    learned, held = split_rows(task, seed)
    states = pooled.train[torch.from_numpy(learned)], pooled.train[torch.from_numpy(held)]
    return *states, torch.from_numpy(labels[learned]), labels[held]
