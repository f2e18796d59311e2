"""Fine-tuning of a whole network on a task, or of its head alone (a linear probe)."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int64
from torch import Tensor, nn

from genomics.finetune.classifier import SequenceClassifier, batches
from genomics.finetune.goals import Goal, build_goal
from genomics.finetune.labelled import Labelled, LabelledTask, Labels
from genomics.finetune.protocol import WARMUP, WEIGHT_DECAY, Conjoin, Pooling, Strategy
from genomics.sequence import DNATokenizer
from seqdiff.backbones import Backbone
from seqdiff.training import (
    Advance,
    Batches,
    Fitted,
    OptimConfig,
    Optimiser,
    build_optimizer,
    check_finite,
    decay_groups,
    fit,
    lr_factor,
)

EVAL_BATCH = 256


@dataclass(frozen=True)
class Recipe:
    """Hyperparameters of AdamW with a linear warm-up and a cosine decay to 0.

    Attributes:
        lr: Peak learning rate.
        batch_size: Sequences per step.
        epochs: Passes over the training part; the best on the validation part is kept.
        weight_decay: Weight decay of matrices.
        warmup: Fraction of the steps used for warm-up.
    """

    lr: float
    batch_size: int
    epochs: int
    weight_decay: float = WEIGHT_DECAY
    warmup: float = WARMUP

    def optimiser(self, model: nn.Module, rows: int) -> Optimiser:
        """Build the optimizer and the learning rate scheduler.

        Args:
            model: Model whose parameters that require gradients are trained.
            rows: Number of training sequences.
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


@dataclass(frozen=True)
class Plan:
    """How a backbone is fine-tuned on a task.

    Attributes:
        recipe: Hyperparameters of the optimizer.
        strategy: Whether to train all weights, or only the head on fixed states (linear probe).
        conjoin: See ``SequenceClassifier``.
        length: Maximum number of bases that are read; of longer sequences, the middle is read.
        pooling: See ``SequenceClassifier``; ``padded`` pads all rows to ``length``.
        seed: Seed of the split, the head and the order of the sequences.
    """

    recipe: Recipe
    strategy: Strategy
    conjoin: Conjoin
    length: int
    pooling: Pooling
    seed: int

    @property
    def width(self) -> int | None:
        """Width of all batches; ``None`` means that of the longest row of each batch."""
        return self.length if self.pooling == "padded" else None


def num_learned(task: LabelledTask) -> int:
    """Return the number of training sequences that ``hold_out`` leaves."""
    num = len(task.train)
    return num if task.valid is not None else num - max(1, num // 10)


def split_rows(
    task: LabelledTask, seed: int
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " m"]]:
    """Split the training set 90/10 at random; both parts keep the order of the file.

    Args:
        task: A task without a validation set.
        seed: Seed of the split.

    Raises:
        ValueError: If a class is missing from the larger part, or a value does not vary in a part.
    """
    order = np.random.default_rng(seed).permutation(len(task.train))
    num = num_learned(task)
    learned, held = np.sort(order[:num]), np.sort(order[num:])
    if task.columns:
        _check_values(
            task, "the 90% of train that are used for training", task.train.labels[learned]
        )
        _check_values(
            task, "the 10% of train that are used for validation", task.train.labels[held]
        )
    elif len(np.unique(task.train.labels[learned])) < len(task.classes):
        raise ValueError(
            f"{task.name}: the 90% of train that are used for training must hold every class, got "
            f"{num} sequences in which a class is missing; add more sequences"
        )
    return learned, held


def _check_values(task: LabelledTask, part: str, values: Labels) -> None:
    """Check that every value varies, so that it can be standardised and its error compared.

    Raises:
        ValueError: If one has fewer than two different known values.
    """
    for place, column in enumerate(task.columns):
        known = np.unique(values[:, place])
        if len(known[~np.isnan(known)]) < 2:
            raise ValueError(
                f"{task.name}: {part} must hold two different values of {column}, got fewer in "
                f"{len(values):,} rows; add rows, or drop the column from --signals"
            )


def hold_out(task: LabelledTask, seed: int) -> tuple[Labelled, Labelled]:
    """Return the training and the validation set; without the latter, ``split_rows`` splits it off.

    Raises:
        ValueError: If a value does not vary in a part; see ``split_rows``.
    """
    if task.valid is not None:
        _check_values(task, "train", task.train.labels)
        _check_values(task, "validation", task.valid.labels)
        return task.train, task.valid
    learned, held = split_rows(task, seed)
    return task.train.select(learned), task.train.select(held)


def shuffled(
    data: Labelled, seed: int, size: int, length: int, width: int | None = None
) -> Callable[[], Batches]:
    """Return a function that yields the batches of the next pass, in a new order each time.

    Args:
        data: Training set.
        seed: Seed of the orders.
        size: Sequences per batch.
        length: Maximum number of bases that are read.
        width: See ``genomics.finetune.classifier.pad``.
    """
    generator = np.random.default_rng(seed)

    def one_pass() -> Iterator[tuple[Tensor, ...]]:
        yield from batches(data, generator.permutation(len(data)), size, length, width=width)

    return one_pass


@torch.no_grad()
def predict(
    model: nn.Module, goal: Goal, data: Labelled, length: int, width: int | None = None
) -> Float32[np.ndarray, "n C"]:
    """Predict the probability of each class, or the values, for each row.

    Args:
        model: Maps ids and padding to outputs.
        goal: What the outputs stand for.
        data: Sequences.
        length: Maximum number of bases that are read.
        width: See ``genomics.finetune.classifier.pad``.
    """
    model.eval()
    device = next(model.parameters()).device
    order = np.argsort(data.lengths, kind="stable")
    parts = [
        goal.read(model(tokens.to(device), padding.to(device)).float()).cpu()
        for tokens, padding, _ in batches(data, order, EVAL_BATCH, length, width=width)
    ]
    found = torch.cat(parts)
    return torch.empty_like(found).index_copy_(0, torch.from_numpy(order), found).numpy()


def fit_goal(
    model: nn.Module,
    optimiser: Optimiser,
    epochs: int,
    goal: Goal,
    *,
    one_pass: Callable[[], Batches],
    valid_predictions: Callable[[], Float32[np.ndarray, "n C"]],
    valid_labels: Labels,
    progress: Advance | None = None,
) -> Fitted:
    """Fit a network and keep the epoch with the best metric on validation.

    Args:
        model: The network.
        optimiser: See ``seqdiff.training.finetuning.fit``.
        epochs: Number of passes.
        goal: The loss and the metric.
        one_pass: Yields the batches of the next pass.
        valid_predictions: Returns the predictions for the validation set.
        valid_labels: Classes or values of the validation set.
        progress: Called with the number of rows after each step.

    Raises:
        DivergedError: If a prediction is not finite.
    """

    def validate(epochs: int) -> dict[str, float]:
        predictions = valid_predictions()
        check_finite(predictions, epochs)
        return {goal.metric: goal.score(valid_labels, predictions)}

    options = {"one_pass": one_pass, "validate": validate, "progress": progress}
    return fit(model, optimiser, epochs, metric=goal.metric, loss=goal.loss, **options)


def record(fitted: Fitted, goal: Goal) -> dict[str, object]:
    """Return the entries of a result that describe the choice of the epoch."""
    scores = [found[goal.metric] for found in fitted.metrics]
    return {"epoch": fitted.epoch, f"valid_{goal.metric}": scores}


@dataclass(frozen=True)
class Pooled:
    """Pooled states of all sequences of a task, on one strand or on both.

    Attributes:
        train: States of the training set, before a validation set is split off, ``[n, S, D]``.
        valid: States of the validation set, if the task has one.
        test: States of the test set.
    """

    train: Float32[Tensor, "n S D"]
    valid: Float32[Tensor, "v S D"] | None
    test: Float32[Tensor, "m S D"]


@torch.no_grad()
def pool_task(model: SequenceClassifier, task: LabelledTask, plan: Plan) -> Pooled:
    """Pool the states of all sequences, on both strands unless ``plan.conjoin`` is ``none``.

    Args:
        model: The classifier, whose head is not used.
        task: The task.
        plan: How sequences are read.
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
    """Computes pooled states and caches those of the last network and task.

    In a grid, the runs of a network on a task are adjacent. Therefore each sequence is read once,
    and only the states of one task are in memory.
    """

    def __init__(self) -> None:
        self._kept: tuple[Hashable, Pooled] | None = None

    def __call__(
        self, origin: Hashable, model: SequenceClassifier, task: LabelledTask, plan: Plan
    ) -> Pooled:
        """Return pooled states, see ``pool_task``.

        Args:
            origin: Identifies the weights of the network and the data of the task.
            model: See ``pool_task``.
            task: See ``pool_task``.
            plan: See ``pool_task``.
        """
        key = (origin, plan.conjoin, plan.pooling, plan.length)
        if self._kept is None or self._kept[0] != key:
            self._kept = None  # frees the memory before new states are computed
            self._kept = key, pool_task(model, task, plan)
        return self._kept[1]


class _Probe(nn.Module):
    """The head of a classifier, applied to pooled states."""

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
    progress: Advance | None,
) -> tuple[Fitted, Float32[np.ndarray, "n C"]]:
    """Fit a head; if ``conjoin`` is ``test``, only the given strand is used in training.

    Args:
        head: The output layer.
        pooled: States of the task.
        task: The task.
        plan: How the head is trained.
        progress: Called with the number of sequences after each step.

    Returns:
        The fit, and the predictions for the test rows.

    Raises:
        DivergedError: If the scores are no longer finite.
    """
    recipe = plan.recipe
    learned, held, labels, truth = _parts(pooled, task, plan.seed)
    goal = build_goal(task, hold_out(task, plan.seed)[0])
    if plan.conjoin == "test":
        learned = learned[:, :1]
    probe = _Probe(head)
    generator = np.random.default_rng(plan.seed)

    def one_pass() -> Iterator[tuple[Tensor, ...]]:
        order = torch.from_numpy(generator.permutation(len(labels)))
        for rows in order.split(recipe.batch_size):
            yield learned[rows], labels[rows]

    @torch.no_grad()
    def predictions(states: Tensor) -> np.ndarray:
        return goal.read(probe(states.to(head.weight.device))).cpu().numpy()

    fitted = fit_goal(
        probe,
        recipe.optimiser(probe, len(labels)),
        recipe.epochs,
        goal,
        one_pass=one_pass,
        valid_predictions=lambda: predictions(held),
        valid_labels=truth,
        progress=progress,
    )
    asked = predictions(pooled.test)
    check_finite(asked, fitted.epoch)
    return fitted, asked


def _parts(
    pooled: Pooled, task: LabelledTask, seed: int
) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """Return the states for training and validation, then their labels."""
    labels = task.train.labels
    if task.valid is not None:
        assert pooled.valid is not None
        return pooled.train, pooled.valid, torch.from_numpy(labels), task.valid.labels
    learned, held = split_rows(task, seed)
    states = pooled.train[torch.from_numpy(learned)], pooled.train[torch.from_numpy(held)]
    return *states, torch.from_numpy(labels[learned]), labels[held]


Pool = Callable[[SequenceClassifier, LabelledTask, Plan], Pooled]


def run_backbone(
    backbone: Backbone,
    task: LabelledTask,
    seen: Bool[np.ndarray, " n"],
    plan: Plan,
    progress: Advance | None = None,
    *,
    pool: Pool = pool_task,
) -> dict[str, object]:
    """Fine-tune a backbone, choose the epoch on validation, and evaluate on the test set.

    Args:
        backbone: A copy that may be changed.
        task: The task.
        seen: True for test rows that occur in training.
        plan: How the backbone is fine-tuned.
        progress: Called with the number of sequences after each step.
        pool: Returns the pooled states for a probe.

    Returns:
        The content of a line of results.jsonl, without its key; ``train_seconds`` is left out for
        a probe.

    Raises:
        DivergedError: If the network's scores are no longer finite.
        ValueError: If a class is missing from the training part, ``conjoin`` is set for a network
            that reads both strands, or scikit-learn is not installed.
    """
    assert isinstance(backbone, nn.Module)
    device = next(backbone.parameters()).device
    started = time.perf_counter()
    train, valid = hold_out(task, plan.seed)
    goal = build_goal(task, train)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(plan.seed)
        model = SequenceClassifier(
            backbone,
            goal.num_outputs,
            complement=DNATokenizer().complement,
            conjoin=plan.conjoin,
            pooling=plan.pooling,
        ).to(device)
        if plan.strategy == "probe":
            pooled = pool(model, task, plan)
            fitted, found = fit_probe(model.head, pooled, task, plan, progress)
        else:
            recipe = plan.recipe
            fitted = fit_goal(
                model,
                recipe.optimiser(model, len(train)),
                recipe.epochs,
                goal,
                one_pass=shuffled(train, plan.seed, recipe.batch_size, plan.length, plan.width),
                valid_predictions=lambda: predict(model, goal, valid, plan.length, plan.width),
                valid_labels=valid.labels,
                progress=progress,
            )
            found = predict(model, goal, task.test, plan.length, plan.width)
            check_finite(found, fitted.epoch)
    speed = {"train_seconds": fitted.train_seconds} if plan.strategy == "full" else {}
    return {
        **record(fitted, goal),
        **goal.measure_both(task.test.labels, found, seen),
        "num_train": num_learned(task),
        "seconds": round(time.perf_counter() - started, 2),
        **speed,
    }
