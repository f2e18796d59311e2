"""Split a task, fit a network to it and keep its best epoch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from genomics.finetune.classifier import batches
from genomics.finetune.labelled import Labelled, LabelledTask
from seqdiff.training import learn_pass

EVAL_BATCH = 256

Batches = Iterable[tuple[Tensor, ...]]


class DivergedError(Exception):
    """A network whose scores are no longer finite.

    Attributes:
        epochs: How many it was finite after.
    """

    def __init__(self, epochs: int) -> None:
        super().__init__(f"diverged after {epochs} epochs")
        self.epochs = epochs


def check_finite(probs: Float32[np.ndarray, "n C"], epochs: int) -> None:
    """Refuse scores that are not finite.

    Args:
        probs: Probability of each class.
        epochs: How many the network was finite after.

    Raises:
        DivergedError: If one is not.
    """
    if not np.isfinite(probs).all():
        raise DivergedError(epochs)


def num_learned(task: LabelledTask) -> int:
    """Say how many sequences ``hold_out`` leaves to learn from.

    Args:
        task: The task.
    """
    num = len(task.train)
    return num if task.valid is not None else num - max(1, num // 10)


def split_rows(
    task: LabelledTask, seed: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " m"]]:
    """Split the rows of the training set 90/10 at random, each part in the order of the file.

    Args:
        task: A task without a validation set of its own.
        seed: Of the split.

    Raises:
        ValueError: If a class is missing from the larger part.
    """
    order = np.random.default_rng(seed).permutation(len(task.train))
    num = num_learned(task)
    learned, held = np.sort(order[:num]), np.sort(order[num:])
    if len(np.unique(task.train.labels[learned])) < len(task.classes):
        raise ValueError(
            f"{task.name}: nine tenths of train must hold every class, got {num} sequences "
            "without one; give more of them"
        )
    return learned, held


def hold_out(task: LabelledTask, seed: int) -> tuple[Labelled, Labelled]:
    """Give what is learned from and what validates; ``split_rows`` splits where one is lacking.

    Args:
        task: The task.
        seed: Of the split.

    Raises:
        ValueError: See ``split_rows``.
    """
    if task.valid is not None:
        return task.train, task.valid
    learned, held = split_rows(task, seed)
    return task.train.select(learned), task.train.select(held)


def shuffled(
    data: Labelled, seed: int, size: int, length: int, width: int | None = None
) -> Callable[[], Batches]:
    """Give what yields the batches of one pass after the other, each in a new order.

    Args:
        data: Training part.
        seed: Of the orders.
        size: Sequences of a batch.
        length: Most bases that are read.
        width: See ``genomics.finetune.classifier.pad``.
    """
    generator = np.random.default_rng(seed)

    def one_pass() -> Iterator[tuple[Tensor, ...]]:
        yield from batches(data, generator.permutation(len(data)), size, length, width=width)

    return one_pass


@torch.no_grad()
def predict(
    model: nn.Module, data: Labelled, length: int, width: int | None = None
) -> Float32[np.ndarray, "n C"]:
    """Give the probability of each class, in the order of the rows.

    Args:
        model: Maps ids and padding to scores.
        data: Sequences.
        length: Most bases that are read.
        width: See ``genomics.finetune.classifier.pad``.
    """
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(data.lengths, kind="stable")
    parts = [
        model(tokens.to(device), padding.to(device)).float().softmax(dim=-1).cpu()
        for tokens, padding, _ in batches(data, order, EVAL_BATCH, length, width=width)
    ]
    probs = torch.cat(parts)
    return torch.empty_like(probs).index_copy_(0, torch.from_numpy(order), probs).numpy()


@dataclass(frozen=True)
class Fitted:
    """What became of a fit.

    Attributes:
        epoch: The best on the validation part, from 1; the first of equals.
        valid_accuracy: After each epoch.
        train_seconds: Spent on learning, not on predicting.
    """

    epoch: int
    valid_accuracy: list[float]
    train_seconds: float

    def record(self) -> dict[str, object]:
        """Give what JSON holds of the choice of the epoch."""
        return {"epoch": self.epoch, "valid_accuracy": self.valid_accuracy}


def fit(
    model: nn.Module,
    optimiser: tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler],
    epochs: int,
    *,
    one_pass: Callable[[], Batches],
    valid_probs: Callable[[], Float32[np.ndarray, "n C"]],
    valid_labels: Int64[np.ndarray, " n"],
    progress: Callable[[int], None] | None = None,
) -> Fitted:
    """Train a model and leave it with the weights of its best epoch.

    Args:
        model: What is trained.
        optimiser: And its rate.
        epochs: How many passes.
        one_pass: Yields the batches of the next pass.
        valid_probs: Predicts the validation part.
        valid_labels: Its classes.
        progress: Called with the number of rows after each step.

    Raises:
        DivergedError: If the network's scores are no longer finite.
    """
    found: list[float] = []
    best, seconds = copy.deepcopy(model.state_dict()), 0.0
    for _ in range(epochs):
        started = time.perf_counter()
        learn_pass(model, *optimiser, one_pass(), progress=progress)
        if next(model.parameters()).is_cuda:
            torch.cuda.synchronize()
        seconds += time.perf_counter() - started
        probs = valid_probs()
        check_finite(probs, len(found))
        found.append(float((probs.argmax(axis=1) == valid_labels).mean()))
        if found[-1] > max(found[:-1], default=-1.0):
            best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return Fitted(int(np.argmax(found)) + 1, found, seconds)
