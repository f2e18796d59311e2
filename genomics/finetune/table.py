"""The table of a benchmark: a row for each method and task, beside published accuracies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from genomics.finetune.protocol import published
from seqdiff.training import Cell, Ledger, Sheet, choose

METRICS = ("accuracy", "matthews", "auroc")
VALUE_METRICS = ("pearson", "spearman", "mse")
_TITLES = {"majority": "majority", "length": "length only", "kmer": "k-mer logistic", "cnn": "CNN"}
_VALUE_TITLES = {**_TITLES, "majority": "mean", "kmer": "k-mer ridge"}
_SPLITS = (
    "Each seed splits train 90/10 into training and validation, unless the task has a validation "
    "set. If it has one, {} do not depend on the seed and are run once. Epoch, learning rate and "
    "batch size are chosen on validation{}. Columns with * use only unseen test rows. "
)
_UNSEEN = (
    "Neither strand of an unseen row is in train or in a validation set of the task, "
    "and its interval does not overlap theirs. Without coordinates, it shares no 50 consecutive "
    "bases with them instead. seq/s is the number of training sequences per second, without "
    "validation and test. A probe has no seq/s, because it reads each sequence once."
)
NOTE = (
    "Values are means over seeds. The range is max - min over seeds of the accuracy to its left. "
    + _SPLITS.format("majority, length and k-mers", "")
    + _UNSEEN
    + " Published accuracies use the official splits of the data set."
)
VALUE_NOTE = (
    "Values are means over seeds and over the columns of the task. The range is max - min over "
    "seeds of the correlation to its left. MSE is in squared units of the columns. "
    + _SPLITS.format("mean, length and k-mers", " by the squared error")
    + _UNSEEN
)


@dataclass(frozen=True)
class Line:
    """A row of the table.

    Attributes:
        task: Name of the task.
        method: Name of the method.
        test: Mean of each metric on the test set; ``None`` if undefined. The metrics are accuracy,
            Matthews correlation and AUROC of classes, or Pearson, Spearman and MSE of values.
        unseen: Mean of each metric on the test rows that do not occur in training.
        spread: Accuracy or Pearson correlation on the test set, max - min over seeds; ``None`` for
            one seed.
        unseen_spread: The same for the test rows that do not occur in training.
        num_test: Number of test rows.
        num_unseen: Number of test rows that do not occur in training.
        seeds: Number of seeds.
        chosen: Learning rate and batch size; ``diverged`` if every choice diverged for some seed.
        per_second: Training sequences per second; ``None`` if no network is trained.
    """

    task: str
    method: str
    test: dict[str, float | None]
    unseen: dict[str, float | None]
    spread: float | None = None
    unseen_spread: float | None = None
    num_test: int | None = None
    num_unseen: int | None = None
    seeds: int | None = None
    chosen: str = ""
    per_second: float | None = None


_Found = list[tuple[dict, dict]]  # keys and results of the seeds of one choice


def _grouped(done: Sequence[Cell], ledger: Ledger) -> dict[tuple[str, str], dict[str, _Found]]:
    """Group results by task and method, then by learning rate and batch size."""
    groups: dict[tuple[str, str], dict[str, _Found]] = {}
    for cell in done:
        result = ledger.find(cell.key)
        assert result is not None
        task = str(cell.key["task"])
        by_choice = groups.setdefault((task, _method(cell.key)), {})
        by_choice.setdefault(_choice(cell.key), []).append((cell.key, result))
    return groups


def summarise(done: Sequence[Cell], ledger: Ledger) -> list[Line]:
    """Choose each method's learning rate and batch size on validation, and average over seeds.

    A choice for which a seed diverged is excluded.

    Args:
        done: All cells of a benchmark.
        ledger: The results of all cells.
    """
    groups = _grouped(done, ledger)
    lines, tasks = [], list(dict.fromkeys(task for task, _ in groups))
    for task in tasks:
        for (owner, method), by_choice in groups.items():
            if owner == task:
                lines.append(_line(task, method, by_choice))
        if any("columns" in cell.key for cell in done if cell.key["task"] == task):
            continue
        for method, accuracy in published(task).items():
            scores: dict[str, float | None] = dict.fromkeys(METRICS)
            lines.append(
                Line(task, f"published {method}", {**scores, "accuracy": accuracy}, scores)
            )
    return lines


def list_diverged(done: Sequence[Cell], ledger: Ledger) -> list[str]:
    """List the runs that diverged, with a line for each choice of a method.

    Args:
        done: All cells of a benchmark.
        ledger: The results of all cells.
    """
    notes = []
    for (task, method), by_choice in _grouped(done, ledger).items():
        for choice, found in by_choice.items():
            runs = [
                f"seed {key['seed']} (finite for {result['diverged']} epochs)"
                for key, result in found
                if "diverged" in result
            ]
            if runs:
                notes.append(f"{task}: {method} diverged at lr/batch {choice}: {', '.join(runs)}")
    return notes


def _method(key: Mapping[str, object]) -> str:
    name = str(key["method"])
    if "strategy" not in key:
        return (_VALUE_TITLES if "columns" in key else _TITLES)[name]
    strands = "" if key["conjoin"] == "none" else f", RC at {key['conjoin']}"
    padding = ", padding pooled" if key["pooling"] == "padded" else ""
    return f"{name}, {key['strategy']}{strands}{padding}"


def _choice(key: Mapping[str, object]) -> str:
    recipe = key.get("recipe", key)
    assert isinstance(recipe, Mapping)
    return f"{recipe['lr']:g}/{recipe['batch_size']}" if "lr" in recipe else ""


def _line(task: str, method: str, by_choice: dict[str, _Found]) -> Line:
    runs = {choice: [result for _, result in found] for choice, found in by_choice.items()}
    of_values = any("columns" in key for found in by_choice.values() for key, _ in found)
    metrics, chooser = (VALUE_METRICS, "valid_r2") if of_values else (METRICS, "valid_accuracy")
    choice = choose(runs, lambda result: max(result[chooser]))
    if choice is None:
        nothing: dict[str, float | None] = dict.fromkeys(metrics)
        return Line(task, method, nothing, nothing, chosen="diverged")
    found = runs[choice]
    learned = sum(
        key.get("recipe", key)["epochs"] * result["num_train"]
        for key, result in by_choice[choice]
        if "train_seconds" in result
    )
    return Line(
        task,
        method,
        {name: _mean([result["test"][name] for result in found]) for name in metrics},
        {name: _mean([result["unseen"][name] for result in found]) for name in metrics},
        _spread([result["test"][metrics[0]] for result in found]),
        _spread([result["unseen"][metrics[0]] for result in found]),
        found[0]["test"]["num"],
        found[0]["unseen"]["num"],
        len(found),
        choice,
        learned / sum(result["train_seconds"] for result in found) if learned else None,
    )


def _spread(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) - min(known) if len(known) == len(values) > 1 else None


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _head(*scores: str) -> tuple[str, ...]:
    return ("method", *scores, *(f"{name}*" for name in scores), "lr/batch", "seeds", "seq/s")


HEADINGS = _head("acc", "range", "MCC", "AUROC")
VALUE_HEADINGS = _head("Pearson", "range", "Spearman", "MSE")


def _cells(line: Line) -> list[str]:
    def shown(value: float | int | None, form: str = ".3f") -> str:
        text = "" if value is None else format(value, form)
        return re.sub(r"^(-?)0\.", r"\1.", text)

    scores = []
    for mean, spread in ((line.test, line.spread), (line.unseen, line.unseen_spread)):
        first, *others = mean.values()
        scores += [shown(value) for value in (first, spread, *others)]
    speed = shown(line.per_second, ",.0f")
    return [line.method, *scores, line.chosen, shown(line.seeds, "d"), speed]


def build_tables(lines: Sequence[Line]) -> list[Sheet]:
    """Build a table for each task, under a title with the number of test rows.

    Args:
        lines: The result of ``summarise``.
    """
    found: dict[str, list[Line]] = {}
    titles = {
        line.task: f"{line.task}: {line.num_test:,} test rows, {line.num_unseen:,} unseen"
        for line in lines
        if line.num_test is not None
    }
    for line in lines:
        found.setdefault(titles.get(line.task, line.task), []).append(line)
    return [
        Sheet(
            title,
            VALUE_HEADINGS if "pearson" in rows[0].test else HEADINGS,
            [_cells(line) for line in rows],
        )
        for title, rows in found.items()
    ]
