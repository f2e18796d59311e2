"""The grid of a benchmark: networks, tasks, learning rates, batch sizes, seeds and baselines."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

import numpy as np
import torch
from jaxtyping import Bool

from genomics.finetune.baselines import CNN_BATCH, CNN_LR, run_baseline
from genomics.finetune.labelled import LabelledTask, seen_in_task
from genomics.finetune.models import Pretrained
from genomics.finetune.protocol import (
    DEFAULT_LENGTH,
    Baseline,
    Conjoin,
    Pooling,
    Strategy,
    published_length,
)
from genomics.finetune.runs import Plan, PoolOnce, Recipe, hold_out, num_learned, run_backbone
from seqdiff.training import Advance, Cell


@dataclass(frozen=True)
class Grid:
    """The settings of a benchmark.

    Attributes:
        lrs: Learning rates.
        batch_sizes: Sequences per step.
        epochs: Epochs of each run; the result is that of the best epoch on validation.
        seeds: Number of seeds, each with its own split.
        strategies: See ``Plan``.
        conjoins: Values of ``SequenceClassifier.conjoin`` for networks that read one strand.
        pooling: See ``SequenceClassifier``.
        max_length: Maximum number of bases that are read; ``None`` means ``reading_length``.
        baselines: Names of the baselines to train.
    """

    lrs: Sequence[float]
    batch_sizes: Sequence[int]
    epochs: int
    seeds: int
    strategies: Sequence[Strategy]
    conjoins: Sequence[Conjoin]
    pooling: Pooling
    max_length: int | None
    baselines: Sequence[Baseline]


def reading_length(task: LabelledTask, grid: Grid) -> int:
    """Return how many bases are read: as set, as published, or all, but at most 1,024.

    Args:
        task: The task.
        grid: The settings.
    """
    if grid.max_length is not None:
        return grid.max_length
    parts = [part for part in (task.train, task.valid, task.test) if part is not None]
    longest = max(int(part.lengths.max()) for part in parts)
    return published_length(task.name) or min(longest, DEFAULT_LENGTH)


def cells(
    tasks: Sequence[LabelledTask], models: Sequence[Pretrained], grid: Grid, device: torch.device
) -> Iterator[Cell]:
    """List the runs, task by task, the baselines first.

    The runs of a network are adjacent, so that linear probes share its hidden states.

    Args:
        tasks: The tasks.
        models: Networks to fine-tune.
        grid: The settings.
        device: Device of the networks.

    Raises:
        ValueError: If a network cannot take rows that long, or a seed's training part lacks a
            class or a value that varies.
    """
    pool = PoolOnce()
    for task in tasks:
        known, length = seen_in_task(task), reading_length(task, grid)
        for seed in range(grid.seeds):
            hold_out(task, seed)
        on: dict[str, object] = {"task": task.name, "data": task.fingerprint}
        if task.columns:
            on["columns"] = list(task.columns)
        on["seen"] = hashlib.sha256(known.tobytes()).hexdigest()[:16]
        yield from _baseline_cells(task, known, on, grid, length, device)
        for model in models:
            if model.max_length is not None and length > model.max_length:
                raise ValueError(
                    f"finetune.max_length must be at most the context of {model.name}, "
                    f"{model.max_length}, got {length} for {task.name}; lower --max-length"
                )
            yield from _model_cells(task, known, on, grid, length, model, pool)


def _baseline_cells(
    task: LabelledTask,
    known: Bool[np.ndarray, " n"],
    on: dict[str, object],
    grid: Grid,
    length: int,
    device: torch.device,
) -> Iterator[Cell]:
    """List the runs of baselines; if validation is given, only the CNN depends on the seed."""
    cost = grid.epochs * num_learned(task)
    for seed in range(grid.seeds):
        for name in grid.baselines:
            if seed and name != "cnn" and task.valid is not None:
                continue
            key = {**on, "method": name, "seed": seed}
            if name == "cnn":
                key |= {"epochs": grid.epochs, "length": length, "lr": CNN_LR}
                key["batch_size"] = CNN_BATCH

            def run(
                progress: Advance, name: Baseline = name, seed: int = seed
            ) -> dict[str, object]:
                options = {"length": length, "epochs": grid.epochs, "seed": seed}
                return run_baseline(name, task, known, device=device, progress=progress, **options)

            yield Cell(key, cost if name == "cnn" else 0, run)


def _model_cells(
    task: LabelledTask,
    known: Bool[np.ndarray, " n"],
    on: dict[str, object],
    grid: Grid,
    length: int,
    model: Pretrained,
    pool: PoolOnce,
) -> Iterator[Cell]:
    for plan in _plans(model, grid, length):
        key = {**on, "method": model.name, "weights": model.weights, **asdict(plan)}
        origin = on["data"], model.weights, plan.seed if model.seeded else None

        def run(
            progress: Advance, plan: Plan = plan, origin: tuple[object, ...] = origin
        ) -> dict[str, object]:
            shared = partial(pool, origin)
            return run_backbone(model.build(plan.seed), task, known, plan, progress, pool=shared)

        yield Cell(key, grid.epochs * num_learned(task), run)


def _plans(model: Pretrained, grid: Grid, length: int) -> Iterator[Plan]:
    conjoins: Sequence[Conjoin] = ("none",) if model.strands == 2 else grid.conjoins
    seeds = range(grid.seeds)
    for strategy, conjoin, seed, lr, size in product(
        grid.strategies, conjoins, seeds, grid.lrs, grid.batch_sizes
    ):
        recipe = Recipe(lr, size, grid.epochs)
        yield Plan(recipe, strategy, conjoin, length, grid.pooling, seed)
