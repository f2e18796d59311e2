"""``seqdiff finetune``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from genomics.finetune import (
    BASELINES,
    BATCH_SIZES,
    CONJOIN,
    DEFAULT_LENGTH,
    EPOCHS,
    LRS,
    POOLING,
    SEEDS,
    STRATEGIES,
)
from seqdiff.cli.options import add_device, check_count
from seqdiff.files import check_folder, write_bytes

if TYPE_CHECKING:
    from genomics.finetune import Cell, Grid, LabelledTask, Ledger

help = "fine-tune DNA networks on labelled sequences, beside trained baselines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.cli.commands.Command``."""
    parser.add_argument(
        "models",
        nargs="*",
        type=Path,
        metavar="RUN_OR_HUB_DIR",
        help="run on DNA, or folder of a published Caduceus; none for the baselines alone",
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="a table, the folder of a task, or one of tasks"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="results; resumes")
    parser.add_argument(
        "--fasta",
        type=Path,
        metavar="FILE_OR_DIR",
        help="genome that interval tasks are cut from, or folder of those in their metadata.yaml",
    )
    for name in ("sequence", "label"):
        parser.add_argument(
            f"--{name}_column", metavar="NAME", help="of a table; default: the usual names"
        )
    rates, sizes = (" ".join(map(str, values)) for values in (LRS, BATCH_SIZES))
    parser.add_argument("--lr", type=float, nargs="+", default=LRS, help=f"default: {rates}")
    parser.add_argument(
        "--batch_size", type=int, nargs="+", default=BATCH_SIZES, help=f"default: {sizes}"
    )
    parser.add_argument(
        "--epochs", type=int, default=EPOCHS, help=f"the best counts; default: {EPOCHS}"
    )
    parser.add_argument(
        "--seeds", type=int, default=SEEDS, help=f"splits of train; default: {SEEDS}"
    )
    _add_choices(parser)
    parser.add_argument(
        "--max_length",
        type=int,
        help="bases read, from the middle of what is longer; default: as published, or "
        f"<= {DEFAULT_LENGTH}",
    )
    parser.add_argument(
        "--scratch", action="store_true", help="add untrained networks of the same shapes"
    )
    parser.add_argument(
        "--baselines",
        choices=BASELINES,
        nargs="*",
        default=BASELINES,
        help="to train; default: all",
    )
    add_device(parser)


def _add_choices(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strategy",
        choices=STRATEGIES,
        nargs="+",
        default=["full"],
        help="train everything, or the head alone; default: full",
    )
    parser.add_argument(
        "--conjoin",
        choices=CONJOIN,
        nargs="+",
        default=["test"],
        help="when a network of one strand reads both; PS always does; default: test",
    )
    parser.add_argument(
        "--pooling",
        choices=POOLING,
        default="real",
        help="positions to average: padded fills rows with N and pools it, as published code; "
        "default: real",
    )


def run(args: argparse.Namespace) -> None:
    """See ``seqdiff.cli.commands.Command``.

    Raises:
        ValueError: If a network, a file or an option cannot be used, or every run of a network
            diverged; then the table is written all the same.
    """
    _check(args)
    from genomics.finetune import Reading, find_tasks, load_tasks
    from seqdiff.extras import require_extra

    require_extra("sklearn", "finetune", "genomics")
    reading = Reading(args.fasta, args.sequence_column, args.label_column)
    tasks = load_tasks(find_tasks(args.data), reading)
    from rich.console import Console

    from genomics.finetune import (
        NOTES,
        Ledger,
        build_tables,
        cells,
        list_diverged,
        load_models,
        run_cells,
        summarise,
        to_json,
        to_markdown,
    )
    from seqdiff.cli.terminal import choose_device, progress

    device = choose_device(args.device)
    models = load_models(args.models, device, scratch=args.scratch)
    _check_names([model.name for model in models])
    grid = _grid(args)
    todo = list(cells(tasks, models, grid, device))
    ledger = Ledger(args.out / "results.jsonl")
    args.out.mkdir(parents=True, exist_ok=True)
    total = sum(cell.cost for cell in todo if ledger.find(cell.key) is None)
    with progress() as bar:
        row = bar.add_task("fine-tuning", total=total)
        run_cells(todo, ledger, lambda count: bar.advance(row, count))
    lines, notes = summarise(todo, ledger), _notes(tasks, grid) + list_diverged(todo, ledger)
    write_bytes(args.out / "table.json", to_json(lines, notes).encode())
    write_bytes(args.out / "table.md", to_markdown(lines, notes).encode())
    for table in build_tables(lines):
        Console().print(table)
    print("\n".join((" ".join(NOTES), *notes)))
    print(f"{args.out}: results.jsonl (a line a run), table.json, table.md")
    _check_finite(todo, ledger)


def _check_finite(todo: list[Cell], ledger: Ledger) -> None:
    found = [ledger.find(cell.key) or {} for cell in todo if "strategy" in cell.key]
    if found and all("diverged" in result for result in found):
        raise ValueError(
            f"finetune.lr must keep a network finite, got {len(found)} runs that all diverged; "
            f"lower it ({ledger.path.parent / 'table.md'} says which, beside the baselines)"
        )


def _check(args: argparse.Namespace) -> None:
    for name in ("epochs", "seeds", "max_length"):
        if getattr(args, name) is not None:
            check_count(f"finetune.{name}", getattr(args, name))
    for size in args.batch_size:
        check_count("finetune.batch_size", size)
    for lr in args.lr:
        if not 0 < lr < math.inf:
            raise ValueError(f"finetune.lr must be above 0, got {lr}; 1e-3 is usual")
    if not args.models and (args.scratch or not args.baselines):
        raise ValueError(
            "finetune.models must be given with --scratch, or without baselines, got none; "
            "name a run"
        )
    check_folder("finetune.out", args.out)


def _check_names(names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"finetune.models must have folders of different names, got {repeated[0]} twice; "
            "rename one"
        )


def _grid(args: argparse.Namespace) -> Grid:
    from genomics.finetune import Grid

    several = ("lr", "batch_size", "strategy", "conjoin", "baselines")
    unique = {name: list(dict.fromkeys(getattr(args, name))) for name in several}
    return Grid(
        unique["lr"],
        unique["batch_size"],
        args.epochs,
        args.seeds,
        unique["strategy"],
        unique["conjoin"],
        args.pooling,
        args.max_length,
        unique["baselines"],
    )


def _notes(tasks: list[LabelledTask], grid: Grid) -> list[str]:
    """Say of each task how it is split, and how many sequences are cut."""
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
                f"{task.name}: {cut:,} of {total:,} sequences are cut to their middle {length:,} "
                "bases by networks"
            )
    return notes
