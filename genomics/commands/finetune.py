"""``seqdiff finetune``."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from genomics.commands.options import parse_names
from genomics.finetune import (
    BASELINES,
    BATCH_SIZES,
    EPOCHS,
    LRS,
    SEEDS,
    Baseline,
    Conjoin,
    Pooling,
    Strategy,
)
from seqdiff.cells import say
from seqdiff.checks import check_count
from seqdiff.cli.options import Several
from seqdiff.files import check_folder

if TYPE_CHECKING:
    from genomics.finetune import Grid, LabelledTask


def finetune(
    *models: Path,
    data: Path,
    out: Path,
    task: Literal["classification", "regression"] = "classification",
    signals: Annotated[tuple[str, ...], Several] = (),
    group: str | None = None,
    fasta: Path | None = None,
    sequence_column: str | None = None,
    label_column: str | None = None,
    lr: Annotated[tuple[float, ...], Several] = LRS,
    batch_size: Annotated[tuple[int, ...], Several] = BATCH_SIZES,
    epochs: int = EPOCHS,
    seeds: int = SEEDS,
    strategy: Annotated[tuple[Strategy, ...], Several] = ("full",),
    conjoin: Annotated[tuple[Conjoin, ...], Several] = ("test",),
    pooling: Pooling = "real",
    max_length: int | None = None,
    scratch: bool = False,
    baselines: Annotated[tuple[Baseline, ...], Several] = BASELINES,
    device: str | None = None,
) -> None:
    """Fine-tune DNA networks on labelled sequences, and train baselines to compare them with.

    The defaults are the published protocol. The same command continues after an interruption.

    Args:
        models: Runs on DNA, names of packaged models, or folders of a published Caduceus; without
            any, only baselines are trained.
        data: A table, the folder of a task, or a folder of tasks.
        out: Folder of the results.
        task: Predict classes; or, for a table with --signals, measured values.
        signals: Columns of the measured values; empty cells and NA are missing values.
        group: Column of groups of similar sequences, which are never divided between the splits of
            a regression.
        fasta: Genome of interval tasks, or a folder with the genomes that metadata.yaml names.
        sequence_column: Column of a table; default: the usual names, or sequence for regression.
        label_column: Column of the classes of a table; default: the usual names.
        lr: Learning rates.
        batch_size: Batch sizes.
        epochs: Epochs; the result is that of the best epoch on validation.
        seeds: Number of seeds, each with its own split of train.
        strategy: Train all weights, or only the head.
        conjoin: When to run a network that reads one strand on both (Caduceus-PS reads both).
        pooling: Positions to average; padded fills rows with N and averages over N too, as
            published code does.
        max_length: Bases read, from the middle of longer sequences; default: as published, or 1024.
        scratch: Add untrained networks of the same shapes.
        baselines: Baselines to train; without a value, none are trained. For regression, majority
            is the mean of train.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If a network, a file or an option cannot be used, or every run of a network
            diverged (the table is written nevertheless).
    """
    check_count("finetune.epochs", epochs)
    check_count("finetune.seeds", seeds)
    if max_length is not None:
        check_count("finetune.max_length", max_length)
    for size in batch_size:
        check_count("finetune.batch_size", size)
    for rate in lr:
        if not 0 < rate < math.inf:
            raise ValueError(f"finetune.lr must be above 0, got {rate}; 1e-3 is usual")
    if not models and (scratch or not baselines):
        raise ValueError(
            "finetune.models must be given if --scratch is set or --baselines is empty, got none; "
            "name a run"
        )
    columns = _check_task(task, signals, group, fasta, label_column)
    check_folder("finetune.out", out)
    from rich.console import Console

    from genomics.finetune import (
        NOTE,
        VALUE_NOTE,
        Grid,
        Reading,
        build_tables,
        cells,
        find_tasks,
        list_diverged,
        load_models,
        load_regression,
        load_tasks,
        summarise,
    )
    from seqdiff.extras import require_extra
    from seqdiff.run import choose_device
    from seqdiff.training import Ledger, check_converged, run_cells, write_tables

    require_extra("sklearn", "finetune", "genomics")
    if task == "regression":
        if not data.is_file():
            raise FileNotFoundError(
                f"finetune.data must be a table for --task regression, got {data}; name a file"
            )
        options = {"sequence_column": sequence_column, "group": group}
        tasks = [load_regression(data, columns, **options)]
    else:
        tasks = load_tasks(find_tasks(data), Reading(fasta, sequence_column, label_column))
    place = choose_device(device)
    networks = load_models(list(models), place, scratch=scratch)
    _check_names([model.name for model in networks])
    grid = Grid(
        lrs=list(dict.fromkeys(lr)),
        batch_sizes=list(dict.fromkeys(batch_size)),
        epochs=epochs,
        seeds=seeds,
        strategies=list(dict.fromkeys(strategy)),
        conjoins=list(dict.fromkeys(conjoin)),
        pooling=pooling,
        max_length=max_length,
        baselines=list(dict.fromkeys(baselines)),
    )
    todo = list(cells(tasks, networks, grid, place))
    ledger = Ledger(out / "results.jsonl")
    out.mkdir(parents=True, exist_ok=True)
    results = run_cells(todo, ledger)
    lines = summarise(todo, ledger)
    note = VALUE_NOTE if task == "regression" else NOTE
    notes = [note, *_notes(tasks, grid), *list_diverged(todo, ledger)]
    tables = build_tables(lines)
    write_tables(out, tables, [asdict(line) for line in lines], notes)
    for table in tables:
        Console().print(table.to_rich())
    print("\n".join(notes))
    say(f"{out}: results.jsonl (a line per run), table.json, table.md")
    networks_only = [r for cell, r in zip(todo, results, strict=True) if "strategy" in cell.key]
    where = f" ({out / 'table.md'} lists them beside the baselines)"
    check_converged("finetune.lr", networks_only, where)


def _check_task(
    task: str,
    signals: tuple[str, ...],
    group: str | None,
    fasta: Path | None,
    label_column: str | None,
) -> tuple[str, ...]:
    """Check that options go with the task, and return the columns of the values.

    Raises:
        ValueError: If one does not, or a regression has no columns.
    """
    other = {"--fasta": fasta, "--label-column": label_column}
    if task == "classification":
        other = {"--signals": " ".join(signals) or None, "--group": group}
    for flag, value in other.items():
        if value is not None:
            raise ValueError(
                f"finetune.task must go with its options, got {task} with {flag} {value}; leave "
                "it out, or choose the other task"
            )
    return parse_names("finetune", signals) if task == "regression" else ()


def _check_names(names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"finetune.models must have folders of different names, got {repeated[0]} twice; "
            "rename one"
        )


def _notes(tasks: list[LabelledTask], grid: Grid) -> list[str]:
    """Describe how each task is split, and how many of its sequences are cut."""
    from genomics.finetune import reading_length

    notes = []
    for task in tasks:
        length = reading_length(task, grid)
        parts = [part for part in (task.train, task.valid, task.test) if part is not None]
        cut = sum(int((part.lengths > length).sum()) for part in parts)
        total = sum(map(len, parts))
        if task.note:
            notes.append(f"{task.name}: {task.note}")
        if cut:
            notes.append(
                f"{task.name}: networks read only the middle {length:,} bases of {cut:,} of "
                f"{total:,} sequences"
            )
    return notes
