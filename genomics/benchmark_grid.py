"""The grid of a benchmark: every network, task, rate, batch size and seed, and the baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import NamedTuple

import torch

from .benchmark_baselines import BASELINES, CNN_BATCH, CNN_LR, run_baseline
from .benchmark_fitting import Recipe, num_learned
from .benchmark_ledger import Ledger
from .benchmark_models import Pretrained
from .benchmark_published import published_length
from .benchmark_runs import Plan, Strategy, run_backbone
from .labelled import LabelledTask
from .labelled_leaks import seen_in_task
from .sequence_classifier import Conjoin, Pooling

DEFAULT_LENGTH = 1024


@dataclass(frozen=True)
class Grid:
    """What is run on every task.

    Attributes:
        lrs: Learning rates.
        batch_sizes: Sequences of a step.
        epochs: Of each run; the best on the validation part counts.
        seeds: How many, each with a split of its own.
        strategies: See ``Plan``.
        conjoin: For networks of one strand, see ``SequenceClassifier``; ``none`` for those of two.
        pooling: See ``SequenceClassifier``.
        max_length: Most bases that are read; ``None`` for those of ``reading_length``.
        baselines: Names of those to train.
    """

    lrs: Sequence[float] = (1e-3, 2e-3)
    batch_sizes: Sequence[int] = (128, 256)
    epochs: int = 10
    seeds: int = 5
    strategies: Sequence[Strategy] = ("full",)
    conjoin: Conjoin = "test"
    pooling: Pooling = "real"
    max_length: int | None = None
    baselines: Sequence[str] = field(default=BASELINES)


def reading_length(task: LabelledTask, grid: Grid) -> int:
    """Say how many bases are read: as asked, as published, or all, but at most 1,024.

    Args:
        task: The task.
        grid: Says what is asked.
    """
    if grid.max_length is not None:
        return grid.max_length
    parts = [part for part in (task.train, task.valid, task.test) if part is not None]
    longest = max(int(part.lengths.max()) for part in parts)
    return published_length(task.name) or min(longest, DEFAULT_LENGTH)


class Cell(NamedTuple):
    """A run of the grid.

    Attributes:
        key: All that its result follows from.
        cost: Sequences that pass through a network in training.
        run: Does it, telling of its progress.
    """

    key: dict[str, object]
    cost: int
    run: Callable[[Callable[[int], None]], dict[str, object]]


def cells(
    task: LabelledTask, models: Sequence[Pretrained], grid: Grid, device: torch.device
) -> Iterator[Cell]:
    """List the runs on a task, the baselines first.

    Args:
        task: The task.
        models: Networks to fine-tune.
        grid: What is run.
        device: Where networks are.

    Raises:
        ValueError: If a network cannot take rows that long.
    """
    known, length = seen_in_task(task), reading_length(task, grid)
    on = {"task": task.name, "data": task.fingerprint}
    cost = grid.epochs * num_learned(task)
    for seed in range(grid.seeds):
        for name in grid.baselines:
            key = {**on, "method": name, "seed": seed}
            if name == "cnn":
                key |= {"epochs": grid.epochs, "length": length, "lr": CNN_LR}
                key["batch_size"] = CNN_BATCH

            def run_rule(
                progress: Callable[[int], None], name: str = name, seed: int = seed
            ) -> dict[str, object]:
                options = {"length": length, "epochs": grid.epochs, "seed": seed}
                return run_baseline(name, task, known, device=device, progress=progress, **options)

            yield Cell(key, cost if name == "cnn" else 0, run_rule)
    for model in models:
        _check_length(model, task, length)
        for plan in _plans(model, grid, length):
            key = {**on, "method": model.name, "weights": model.weights, **asdict(plan)}

            def run_plan(
                progress: Callable[[int], None], model: Pretrained = model, plan: Plan = plan
            ) -> dict[str, object]:
                return run_backbone(model.build(plan.seed), task, known, plan, progress)

            yield Cell(key, cost, run_plan)


def run_cells(todo: Sequence[Cell], ledger: Ledger, progress: Callable[[int], None]) -> None:
    """Run what is not finished, writing down each when it is.

    Args:
        todo: Runs.
        ledger: Of the results.
        progress: Called with the number of sequences after each step.
    """
    for cell in todo:
        if ledger.find(cell.key) is None:
            ledger.add(cell.key, cell.run(progress))


def _plans(model: Pretrained, grid: Grid, length: int) -> Iterator[Plan]:
    conjoin: Conjoin = "none" if model.strands == 2 else grid.conjoin
    for strategy in grid.strategies:
        for lr in grid.lrs:
            for size in grid.batch_sizes:
                for seed in range(grid.seeds):
                    recipe = Recipe(lr, size, grid.epochs)
                    yield Plan(recipe, strategy, conjoin, length, grid.pooling, seed)


def _check_length(model: Pretrained, task: LabelledTask, length: int) -> None:
    if model.max_length is not None and length > model.max_length:
        raise ValueError(
            f"finetune.max_length must be at most the context of {model.name}, "
            f"{model.max_length}, got {length} for {task.name}; give --max_length"
        )
