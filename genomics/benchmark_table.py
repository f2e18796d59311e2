"""What a benchmark came to: one row for each method of each task, beside the published numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from .benchmark_grid import Cell
from .benchmark_ledger import Ledger
from .benchmark_published import published

if TYPE_CHECKING:
    from rich.table import Table

METRICS = ("accuracy", "matthews", "auroc")
_TITLES = {"majority": "majority", "length": "length only", "kmer": "k-mer logistic", "cnn": "CNN"}
NOTES = (
    "Mean over seeds; ± is max - min over seeds; each seed has its own 90/10 split of train unless",
    "the task has a validation set; epoch, rate and batch size are chosen on validation.",
    "*: on unseen test rows, on neither strand in train or a validation set of the task, with no",
    "base of their intervals or, where no coordinates are known, no 50 of their bases in a row.",
    "Published: on the official splits of that data set.",
)


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        task: Its name.
        method: As the table calls it.
        test: Mean of each metric on the test set; ``None`` where it is not defined.
        unseen: The same on the rows that training has not seen.
        spread: Of the accuracy on the test set, max - min over seeds; ``None`` for one seed.
        num_test: Test rows.
        num_unseen: Those of them that training has not seen.
        seeds: How many.
        chosen: Rate and batch size.
        per_second: Training sequences a second, with the time of measuring.
    """

    task: str
    method: str
    test: dict[str, float | None]
    unseen: dict[str, float | None]
    spread: float | None = None
    num_test: int | None = None
    num_unseen: int | None = None
    seeds: int | None = None
    chosen: str = ""
    per_second: float | None = None


def summarise(done: Sequence[Cell], ledger: Ledger) -> list[Line]:
    """Choose each method's rate and batch size on validation, and average over seeds.

    Args:
        done: All cells of a benchmark.
        ledger: With the results of all of them.
    """
    groups: dict[tuple[str, str], dict[str, list[tuple[dict, dict]]]] = {}
    for cell in done:
        result = ledger.find(cell.key)
        assert result is not None
        task = str(cell.key["task"])
        by_choice = groups.setdefault((task, _method(cell.key)), {})
        by_choice.setdefault(_choice(cell.key), []).append((cell.key, result))
    lines, tasks = [], list(dict.fromkeys(task for task, _ in groups))
    for task in tasks:
        for (owner, method), by_choice in groups.items():
            if owner == task:
                lines.append(_line(task, method, by_choice))
        for method, accuracy in published(task).items():
            scores: dict[str, float | None] = dict.fromkeys(METRICS)
            lines.append(
                Line(task, f"published {method}", {**scores, "accuracy": accuracy}, scores)
            )
    return lines


def _method(key: Mapping[str, object]) -> str:
    name = str(key["method"])
    if "strategy" not in key:
        return _TITLES[name]
    strands = "" if key["conjoin"] == "none" else f", RC at {key['conjoin']}"
    padding = ", padding pooled" if key["pooling"] == "padded" else ""
    return f"{name}, {key['strategy']}{strands}{padding}"


def _choice(key: Mapping[str, object]) -> str:
    recipe = key.get("recipe", key)
    assert isinstance(recipe, Mapping)
    return f"{recipe['lr']:g}/{recipe['batch_size']}" if "lr" in recipe else ""


def _line(task: str, method: str, by_choice: dict[str, list[tuple[dict, dict]]]) -> Line:
    def validated(choice: str) -> float:
        return float(np.mean([max(found["valid_accuracy"]) for _, found in by_choice[choice]]))

    choice = max(by_choice, key=validated)
    found = [result for _, result in by_choice[choice]]
    accuracies = [result["test"]["accuracy"] for result in found]
    epochs = [key.get("recipe", key).get("epochs", 0) for key, _ in by_choice[choice]]
    seen = sum(n * result["num_train"] for n, result in zip(epochs, found, strict=True))
    seconds = sum(result["seconds"] for result in found)
    return Line(
        task,
        method,
        {name: _mean([result["test"][name] for result in found]) for name in METRICS},
        {name: _mean([result["unseen"][name] for result in found]) for name in METRICS},
        max(accuracies) - min(accuracies) if len(found) > 1 else None,
        found[0]["test"]["num"],
        found[0]["unseen"]["num"],
        len(found),
        choice,
        seen / seconds if seen and seconds else None,
    )


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


HEADINGS = (
    "method",
    "acc",
    "±",
    "MCC",
    "AUROC",
    "acc*",
    "MCC*",
    "AUROC*",
    "lr/batch",
    "seeds",
    "seq/s",
)


def _cells(line: Line) -> list[str]:
    def shown(value: float | int | None, form: str = ".3f") -> str:
        return "" if value is None else format(value, form).replace("0.", ".", 1)

    return [
        line.method,
        shown(line.test["accuracy"]),
        shown(line.spread),
        shown(line.test["matthews"]),
        shown(line.test["auroc"]),
        *(shown(line.unseen[name]) for name in METRICS),
        line.chosen,
        shown(line.seeds, "d"),
        shown(line.per_second, ",.0f"),
    ]


def _by_task(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """Rows under a title for each task, which says how many test rows there are."""
    found: dict[str, list[Line]] = {}
    titles = {
        line.task: f"{line.task}: {line.num_test:,} test rows, {line.num_unseen:,} unseen"
        for line in lines
        if line.num_test is not None
    }
    for line in lines:
        found.setdefault(titles[line.task], []).append(line)
    return found


def build_tables(lines: Sequence[Line]) -> list[Table]:
    """Lay out the rows for a terminal, a table for each task; its columns are those of Markdown.

    Args:
        lines: From ``summarise``.
    """
    from rich import box
    from rich.table import Table

    tables = []
    for title, rows in _by_task(lines).items():
        table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=0)
        for place, heading in enumerate(HEADINGS):
            wide = "left" if place == 0 else "right"
            width = max(len(_cells(line)[place]) for line in rows)
            table.add_column(heading, justify=wide, overflow="fold", min_width=place and width)
        for line in rows:
            table.add_row(*_cells(line))
        tables.append(table)
    return tables


def to_markdown(lines: Sequence[Line], notes: Sequence[str]) -> str:
    """Lay out the rows as Markdown, a table for each task.

    Args:
        lines: From ``summarise``.
        notes: Below the tables.
    """
    rule = ["---", *["---:"] * (len(HEADINGS) - 1)]
    parts = []
    for title, rows in _by_task(lines).items():
        table = [HEADINGS, rule, *map(_cells, rows)]
        parts.append(f"**{title}**\n\n" + "\n".join(f"| {' | '.join(row)} |" for row in table))
    return "\n\n".join((*parts, " ".join(NOTES), *notes)) + "\n"


def to_json(lines: Sequence[Line], notes: Sequence[str]) -> str:
    """Give the rows as JSON.

    Args:
        lines: From ``summarise``.
        notes: What a reader must know.
    """
    rows = [asdict(line) for line in lines]
    return json.dumps({"rows": rows, "notes": [*NOTES, *notes]}, indent=1) + "\n"
