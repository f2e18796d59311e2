"""Fit a network to a task and keep its best epoch; the splits and the recipe of the benchmarks."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float32, Int64
from torch import Tensor, nn

from seqdiff.training.classifying import learn_pass
from seqdiff.training.optim import OptimConfig, build_optimizer, decay_groups, lr_factor

from .labelled import Labelled, LabelledTask
from .sequence_batches import batches

EVAL_BATCH = 256

Batches = Iterable[tuple[Tensor, ...]]


@dataclass(frozen=True)
class Recipe:
    """How a network is fine-tuned: AdamW, a warm-up, then half a cosine down to 0.

    The defaults, over lr 1e-3 and 2e-3 and batches of 128 and 256, are the published protocol
    (Schiff et al. 2024, arXiv:2403.03234).

    Attributes:
        lr: Peak learning rate.
        batch_size: Sequences of a step.
        epochs: Passes over the training part; the best on the validation part is kept.
        weight_decay: Of matrices.
        warmup: Share of the steps over which the rate rises.
    """

    lr: float = 1e-3
    batch_size: int = 128
    epochs: int = 10
    weight_decay: float = 0.1
    warmup: float = 0.01

    def optimiser(
        self, model: nn.Module, rows: int
    ) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
        """Build the optimiser, and what follows its rate from step to step.

        Args:
            model: What is trained, as far as it requires gradients.
            rows: Training sequences.
        """
        steps = self.epochs * -(-rows // self.batch_size)
        config = OptimConfig(
            lr=self.lr,
            weight_decay=self.weight_decay,
            warmup_steps=round(self.warmup * steps),
            schedule="cosine",
        )
        adam = build_optimizer(model, config, decay_groups(model))
        rate = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: lr_factor(config, step, steps))
        return adam, rate


def num_learned(task: LabelledTask) -> int:
    """Say how many sequences ``hold_out`` leaves to learn from.

    Args:
        task: The task.
    """
    num = len(task.train)
    return num if task.valid is not None else num - max(1, num // 10)


def hold_out(task: LabelledTask, seed: int) -> tuple[Labelled, Labelled]:
    """Split the training set 90/10 at random, unless the task has a validation set of its own.

    Args:
        task: The task.
        seed: Of the split.

    Raises:
        ValueError: If a class is missing from the larger part.
    """
    if task.valid is not None:
        return task.train, task.valid
    order = np.random.default_rng(seed).permutation(len(task.train))
    num = num_learned(task)
    train, valid = task.train.select(np.sort(order[:num])), task.train.select(np.sort(order[num:]))
    if len(np.unique(train.labels)) < len(task.classes):
        raise ValueError(
            f"{task.name}: nine tenths of train must hold every class, got {len(train)} sequences "
            "without one; give more of them"
        )
    return train, valid


def shuffled(
    data: Labelled, seed: int, size: int, length: int, width: int | None = None
) -> Callable[[], Batches]:
    """Give what yields the batches of one pass after the other, each in a new order.

    Args:
        data: Training part.
        seed: Of the orders.
        size: Sequences of a batch.
        length: Most bases that are read.
        width: See ``genomics.sequence_batches.pad``.
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
        width: See ``genomics.sequence_batches.pad``.
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
    """

    epoch: int
    valid_accuracy: list[float]


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
        ValueError: If the network diverges.
    """
    found: list[float] = []
    best = copy.deepcopy(model.state_dict())
    for _ in range(epochs):
        learn_pass(model, *optimiser, one_pass(), progress=progress)
        probs = valid_probs()
        if not np.isfinite(probs).all():
            raise ValueError(
                "finetune.lr must keep the network finite, got one that diverged after "
                f"{len(found)} epochs; lower it (what is finished stays finished)"
            )
        found.append(float((probs.argmax(axis=1) == valid_labels).mean()))
        if found[-1] > max(found[:-1], default=-1.0):
            best = copy.deepcopy(model.state_dict())
    model.load_state_dict(best)
    return Fitted(int(np.argmax(found)) + 1, found)
