"""Three GLUE tasks, read from their published TSV files.

Source: Wang et al. 2019, arXiv:1804.07461.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Example(NamedTuple):
    """A sentence or a pair of them, and its class."""

    first: str
    second: str | None
    label: int


@dataclass(frozen=True)
class Task:
    """A task of GLUE.

    Attributes:
        name: Name on the command line.
        title: Published name.
        metric: The task's metric, a name in ``text.evaluation.glue.METRICS``.
        published: The metric after MDLM fine-tuning of BERT, times 100 (Sahoo et al. 2024,
            arXiv:2406.07524).
        dev_size: Number of examples in the published dev set.
        columns: Number of columns.
        header: First line of a file; ``None`` if it has none.
        parse: Converts the columns of a line to an example.
    """

    name: str
    title: str
    metric: str
    published: float
    dev_size: int
    columns: int
    header: str | None
    parse: Callable


def _binary(label: str) -> int:
    return {"0": 0, "1": 1}[label]


TASKS = {
    task.name: task
    for task in (
        Task(
            "sst2",
            "SST-2",
            "accuracy",
            92.20,
            872,
            2,
            "sentence\tlabel",
            lambda row: Example(row[0].strip(), None, _binary(row[1])),
        ),
        Task(
            "cola",
            "CoLA",
            "matthews",
            57.69,
            1043,
            4,
            None,
            lambda row: Example(row[3].strip(), None, _binary(row[1])),
        ),
        Task(
            "rte",
            "RTE",
            "accuracy",
            62.09,
            277,
            4,
            "index\tsentence1\tsentence2\tlabel",
            lambda row: Example(
                row[1].strip(), row[2].strip(), {"entailment": 0, "not_entailment": 1}[row[3]]
            ),
        ),
    )
}


def read_task(owner: str, task: Task, path: Path) -> list[Example]:
    """Read a file of a task, plain or gzip; quotes are ordinary characters.

    Args:
        owner: The argument that names the file, for error messages.
        task: The task.
        path: The file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it is not a file of that task, or its examples have fewer than two classes.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{owner} must be an existing file, got {path}; check the path")
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            lines = file.read().split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{owner} must be UTF-8, got a bad byte at offset {error.start} of {path}; convert it"
        ) from error
    except (gzip.BadGzipFile, EOFError) as error:
        raise ValueError(
            f"{owner} must be a gzip file, got {path}: {error}; copy it again"
        ) from error
    start = 0
    if task.header is not None:
        if lines[0].rstrip("\r") != task.header:
            raise ValueError(
                f"{owner} must start with the line {task.header!r}, as {task.title} does, got "
                f"{lines[0][:60]!r} in {path}; give another file or --task"
            )
        start = 1
    examples = [
        _example(owner, task, path, number, line.rstrip("\r"))
        for number, line in enumerate(lines[start:], start=start + 1)
        if line
    ]
    if len({example.label for example in examples}) < 2:
        raise ValueError(
            f"{owner} must hold examples of both classes, got fewer classes in {len(examples)} "
            f"lines of {path}; give the whole file"
        )
    return examples


def _example(owner: str, task: Task, path: Path, number: int, line: str) -> Example:
    row = line.split("\t")
    try:
        if len(row) != task.columns:
            raise ValueError(f"{len(row)} columns")
        return task.parse(row)
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{owner} must hold {task.columns} columns and a label of {task.title} on each line, "
            f"got {error} in line {number} of {path}; give another file or --task"
        ) from error
