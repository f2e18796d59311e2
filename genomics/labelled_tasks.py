"""Find the tasks of a benchmark folder, and load one, whichever form it has."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml

from .cache import describe_names
from .indexed import IndexedFasta
from .labelled import Labelled, LabelledTask, Row, gather, number_classes
from .labelled_files import TABLES, is_table, read_class_folder, read_intervals, read_table
from .labelled_leaks import either_strand

Form = Literal["folders", "intervals", "splits", "table"]

_SPLITS = ("train", "dev", "test")
_HELD_OUT = 10  # percent of a lone table for validation, and for testing


@dataclass(frozen=True)
class TaskSource:
    """Where a task lies.

    Attributes:
        name: Of the folder or the file.
        path: It.
        form: How it is laid out.
    """

    name: str
    path: Path
    form: Form


@dataclass(frozen=True)
class Reading:
    """What reading a task takes besides its path.

    Attributes:
        fasta: Genome that intervals are cut from.
        sequence_column: See ``read_table``.
        label_column: See ``read_table``.
    """

    fasta: Path | None = None
    sequence_column: str | None = None
    label_column: str | None = None


def find_tasks(path: Path) -> list[TaskSource]:
    """Find the task that a path is, or all tasks below it, in the order of their paths.

    Args:
        path: A table, the folder of a task, or a folder of such.

    Raises:
        FileNotFoundError: If there is no such path, or no task in it.
    """
    if not path.exists():
        raise FileNotFoundError(f"finetune.data must exist, got {path}; check the path")
    found = _search(path)
    if not found:
        raise FileNotFoundError(
            f"finetune.data must hold a task, got none in {path}; a task is a table, or a folder "
            "with train and test, as folders of classes or as tables"
        )
    names = [source.name for source in found]
    return [
        TaskSource(str(source.path.relative_to(path)), source.path, source.form)
        if names.count(source.name) > 1
        else source
        for source in found
    ]


def _search(path: Path) -> list[TaskSource]:
    name = path.name
    if path.is_file():
        stem = name[: -len(next(s for s in TABLES if name.endswith(s)))] if is_table(path) else ""
        return [TaskSource(stem, path, "table")] if stem else []
    if all(_split_table(path, split) for split in ("train", "test")):
        whole = f"{path.parent.name}/{name}" if name.isdigit() else name
        return [TaskSource(whole, path, "splits")]
    if all((path / split).is_dir() for split in ("train", "test")):
        tables = any(is_table(file) for file in (path / "train").iterdir())
        return [TaskSource(name, path, "intervals" if tables else "folders")]
    return [source for below in sorted(path.iterdir()) for source in _search(below)]


def load_task(source: TaskSource, reading: Reading) -> LabelledTask:
    """Read a task.

    Args:
        source: From ``find_tasks``.
        reading: What that takes besides.

    Raises:
        FileNotFoundError: If a file is not there.
        ValueError: If a file is not sound, the splits have not the same classes, or there is only
            one class; the message begins with the file.
    """
    if source.form == "table":
        return _split_by_hash(source, reading)
    if source.form == "splits":
        found = {split: _split_table(source.path, split) for split in _SPLITS}
        parts = {split: _table(path, reading) for split, path in found.items() if path is not None}
    else:
        parts = _by_class(source, reading)
    classes = number_classes(list(parts.values()))
    for split, rows in parts.items():
        _check_classes(source.path / split, rows, classes)
    train, test = (gather(parts[split], classes) for split in ("train", "test"))
    valid = gather(parts["dev"], classes) if "dev" in parts else None
    note = "validation is the dev split of the benchmark" if valid is not None else ""
    return LabelledTask(source.name, classes, train, valid, test, note)


def _split_table(path: Path, split: str) -> Path | None:
    return next((path / (split + s) for s in TABLES if (path / (split + s)).is_file()), None)


def _table(path: Path, reading: Reading) -> list[Row]:
    return read_table(
        path, sequence_column=reading.sequence_column, label_column=reading.label_column
    )


def _by_class(source: TaskSource, reading: Reading) -> dict[str, list[Row]]:
    """Read a folder or a table for each class of each split, in the order of class names."""
    fasta = None
    if source.form == "intervals":
        if reading.fasta is None:
            raise ValueError(
                f"finetune.fasta must be given for the intervals of {source.path}, got none; "
                "give the genome that they are cut from"
            )
        fasta = IndexedFasta(reading.fasta)
    parts: dict[str, list[Row]] = {}
    for split in ("train", "test"):
        parts[split] = []
        for name, path in sorted(_classes(source.path / split, fasta is not None).items()):
            parts[split] += (
                read_class_folder(path, name)
                if fasta is None
                else read_intervals(path, name, fasta)
            )
    _check_metadata(source.path, number_classes(list(parts.values())))
    return parts


def _classes(path: Path, tables: bool) -> dict[str, Path]:
    if not tables:
        return {entry.name: entry for entry in path.iterdir() if entry.is_dir()}
    return {entry.name.partition(".")[0]: entry for entry in path.iterdir() if is_table(entry)}


def _check_metadata(path: Path, classes: tuple[str, ...]) -> None:
    """Compare with the classes that metadata.yaml names, where there is one."""
    file = path / "metadata.yaml"
    if not file.is_file():
        return
    try:
        named = yaml.safe_load(file.read_text(encoding="utf-8")).get("classes", classes)
        wanted = tuple(sorted(map(str, named)))
    except (yaml.YAMLError, AttributeError, TypeError, UnicodeDecodeError) as error:
        reason = str(error).replace("\n", " ")
        raise ValueError(f"{file}: must be YAML with classes ({reason}); copy it again") from error
    if wanted != classes:
        raise ValueError(
            f"{file}: classes must be those of the files, {describe_names(classes)}, got "
            f"{describe_names(wanted)}; complete the folder"
        )


def _check_classes(where: Path, rows: list[Row], classes: tuple[str, ...]) -> None:
    found = {row.label for row in rows}
    if len(classes) < 2:
        raise ValueError(
            f"{where}: a task must have at least two classes, got only {describe_names(classes)}; "
            "give the whole data set"
        )
    missing = sorted(set(classes) - found)
    if missing:
        raise ValueError(
            f"{where}: every split must hold every class, got no {describe_names(tuple(missing))}; "
            "give the whole data set"
        )


def _split_by_hash(source: TaskSource, reading: Reading) -> LabelledTask:
    """Split a lone table 80/10/10 by a digest of each sequence, on whichever strand."""
    rows = _table(source.path, reading)
    classes = number_classes([rows])
    parts: dict[str, list[Row]] = {"train": [], "dev": [], "test": []}
    for row in rows:
        digest = hashlib.sha256(either_strand(row.ids)).digest()
        percent = int.from_bytes(digest[:8], "big") % 100
        split = "test" if percent < _HELD_OUT else "dev" if percent < 2 * _HELD_OUT else "train"
        parts[split].append(row)
    for part in parts.values():
        _check_classes(source.path, part, classes)
    made: dict[str, Labelled] = {split: gather(part, classes) for split, part in parts.items()}
    note = "one table, split 80/10/10 by a hash of each sequence: not the official splits"
    return LabelledTask(source.name, classes, made["train"], made["dev"], made["test"], note)
