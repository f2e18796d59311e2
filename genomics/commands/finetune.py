"""``seqdiff finetune``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from genomics.finetune import BASELINES, BATCH_SIZES, EPOCHS, LRS, SEEDS
from seqdiff.cli.options import Several, check_count
from seqdiff.files import check_folder, write_bytes

if TYPE_CHECKING:
    from genomics.finetune import Cell, Grid, LabelledTask, Ledger


class Settings(NamedTuple):
    """The options that make the grid of runs."""

    models: list[Path]
    lr: list[float]
    batch_size: list[int]
    epochs: int
    seeds: int
    strategy: list[str]
    conjoin: list[str]
    pooling: Literal["real", "padded"]
    max_length: int | None
    scratch: bool
    baselines: list[str]

    def check(self, out: Path) -> None:
        """Check the options before slow work.

        Raises:
            OSError: If the folder of the results cannot be written to.
            ValueError: If a number is out of range, or there is nothing to train.
        """
        for name in ("epochs", "seeds", "max_length"):
            if getattr(self, name) is not None:
                check_count(f"finetune.{name}", getattr(self, name))
        for size in self.batch_size:
            check_count("finetune.batch_size", size)
        for lr in self.lr:
            if not 0 < lr < math.inf:
                raise ValueError(f"finetune.lr must be above 0, got {lr}; 1e-3 is usual")
        if not self.models and (self.scratch or not self.baselines):
            raise ValueError(
                "finetune.models must be given with --scratch, or without baselines, got none; "
                "name a run"
            )
        check_folder("finetune.out", out)

    def grid(self) -> Grid:
        """Give the grid of runs, without repeated values."""
        from genomics.finetune import Grid

        several = ("lr", "batch_size", "strategy", "conjoin", "baselines")
        unique = {name: list(dict.fromkeys(getattr(self, name))) for name in several}
        return Grid(
            unique["lr"],
            unique["batch_size"],
            self.epochs,
            self.seeds,
            unique["strategy"],
            unique["conjoin"],
            self.pooling,
            self.max_length,
            unique["baselines"],
        )


def finetune(
    *models: Path,
    data: Path,
    out: Path,
    fasta: Path | None = None,
    sequence_column: str | None = None,
    label_column: str | None = None,
    lr: Annotated[tuple[float, ...], Several] = tuple(LRS),
    batch_size: Annotated[tuple[int, ...], Several] = tuple(BATCH_SIZES),
    epochs: int = EPOCHS,
    seeds: int = SEEDS,
    strategy: Annotated[tuple[Literal["full", "probe"], ...], Several] = ("full",),
    conjoin: Annotated[tuple[Literal["none", "test", "train"], ...], Several] = ("test",),
    pooling: Literal["real", "padded"] = "real",
    max_length: int | None = None,
    scratch: bool = False,
    baselines: Annotated[
        tuple[Literal["majority", "length", "kmer", "cnn"], ...], Several
    ] = BASELINES,
    device: str | None = None,
) -> None:
    """Fine-tune DNA networks on labelled sequences, beside trained baselines.

    The defaults are the published protocol. The same command continues after an interruption.

    Args:
        models: Runs on DNA, or folders of a published Caduceus; none for the baselines alone.
        data: A table, the folder of a task, or a folder of tasks.
        out: Folder of the results.
        fasta: Genome that interval tasks are cut from, or a folder of those in their metadata.yaml.
        sequence_column: Column of a table; default: the usual names.
        label_column: Column of a table; default: the usual names.
        lr: Learning rates.
        batch_size: Batch sizes.
        epochs: Epochs, of which the best counts.
        seeds: Number of splits of train.
        strategy: Train everything, or the head alone.
        conjoin: When a network of one strand reads both (PS always does).
        pooling: Positions to average: padded fills rows with N and pools it, as published code.
        max_length: Bases read, from the middle of longer sequences; default: as published, or 1024.
        scratch: Add untrained networks of the same shapes.
        baselines: Baselines to train; without a value none.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If a network, a file or an option cannot be used, or every run of a network
            diverged; then the table is written all the same.
    """
    settings = Settings(
        list(models),
        list(lr),
        list(batch_size),
        epochs,
        seeds,
        list(strategy),
        list(conjoin),
        pooling,
        max_length,
        scratch,
        list(baselines),
    )
    settings.check(out)
    from genomics.finetune import Reading, find_tasks, load_tasks
    from seqdiff.extras import require_extra

    require_extra("sklearn", "finetune", "genomics")
    reading = Reading(fasta, sequence_column, label_column)
    tasks = load_tasks(find_tasks(data), reading)
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
    from seqdiff.progress import progress
    from seqdiff.run import choose_device

    place = choose_device(device)
    networks = load_models(list(models), place, scratch=scratch)
    _check_names([model.name for model in networks])
    grid = settings.grid()
    todo = list(cells(tasks, networks, grid, place))
    ledger = Ledger(out / "results.jsonl")
    out.mkdir(parents=True, exist_ok=True)
    total = sum(cell.cost for cell in todo if ledger.find(cell.key) is None)
    with progress() as bar:
        row = bar.add_task("fine-tuning", total=total)
        run_cells(todo, ledger, lambda count: bar.advance(row, count))
    lines, notes = summarise(todo, ledger), _notes(tasks, grid) + list_diverged(todo, ledger)
    write_bytes(out / "table.json", to_json(lines, notes).encode())
    write_bytes(out / "table.md", to_markdown(lines, notes).encode())
    for table in build_tables(lines):
        Console().print(table)
    print("\n".join((" ".join(NOTES), *notes)))
    print(f"{out}: results.jsonl (a line a run), table.json, table.md")
    _check_finite(todo, ledger)


def _check_finite(todo: list[Cell], ledger: Ledger) -> None:
    found = [ledger.find(cell.key) or {} for cell in todo if "strategy" in cell.key]
    if found and all("diverged" in result for result in found):
        raise ValueError(
            f"finetune.lr must keep a network finite, got {len(found)} runs that all diverged; "
            f"lower it ({ledger.path.parent / 'table.md'} says which, beside the baselines)"
        )


def _check_names(names: list[str]) -> None:
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise ValueError(
            f"finetune.models must have folders of different names, got {repeated[0]} twice; "
            "rename one"
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
