"""Find and load the tasks of a benchmark folder, in all supported formats."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from genomics.finetune.labelled import (
    Labelled,
    LabelledTask,
    Row,
    either_strand,
    gather,
    number_classes,
)
from genomics.finetune.labelled_files import (
    check_link,
    read_class_folder,
    read_intervals,
    read_table,
    table_stem,
)
from genomics.finetune.labelled_genomes import ClassGenome, find_genomes, read_metadata
from genomics.io import SequenceTable, describe_names, split_rows
from genomics.io import read_table as read_values
from genomics.sequence import encode

Form = Literal["folders", "intervals", "splits", "table"]

_SPLITS = {
    "train": "train",
    "dev": "valid",
    "valid": "valid",
    "val": "valid",
    "validation": "valid",
    "test": "test",
}


@dataclass(frozen=True)
class TaskSource:
    """The location of a task.

    Attributes:
        name: Name of the folder or the file.
        path: The folder or the file.
        form: Its format.
        parts: The table or the folder of each split: train, test and optionally valid; empty for a
            single table.
    """

    name: str
    path: Path
    form: Form
    parts: Mapping[str, Path] = field(default_factory=dict)


def find_tasks(path: Path) -> list[TaskSource]:
    """Find the task at a path, or all tasks below it, sorted by path.

    Args:
        path: A table, the folder of a task, or a folder of tasks.

    Raises:
        FileNotFoundError: If the path does not exist, holds no task, or holds a broken link.
        ValueError: If a task has train or test without the other, or two files for one split.
    """
    check_link(path)
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
        replace(source, name=str(source.path.relative_to(path)))
        if names.count(source.name) > 1
        else source
        for source in found
    ]


def _search(path: Path) -> list[TaskSource]:
    if path.is_file():
        return [TaskSource(table_stem(path), path, "table")] if table_stem(path) else []
    below = sorted(path.iterdir()) if path.is_dir() else []
    for entry in below:
        check_link(entry)
    tables = _by_split(path, [entry for entry in below if entry.is_file()])
    folders = _by_split(path, [entry for entry in below if entry.is_dir()])
    # A folder called test may hold other tasks.
    if tables or len(folders) > 1:
        parts = tables or folders
        _check_complete(path, parts)
        form: Form = "splits"
        if not tables:
            in_tables = any(table_stem(entry) for entry in parts["train"].iterdir())
            form = "intervals" if in_tables else "folders"
        name = f"{path.parent.name}/{path.name}" if path.name.isdigit() else path.name
        return [TaskSource(name, path, form, parts)]
    return [source for entry in below for source in _search(entry)]


def _by_split(path: Path, entries: Iterable[Path]) -> dict[str, Path]:
    """Select the entries that are named after a split."""
    found: dict[str, Path] = {}
    for entry in entries:
        split = _SPLITS.get(entry.name if entry.is_dir() else table_stem(entry))
        if split is None:
            continue
        if split in found:
            raise ValueError(
                f"{path}: must hold one {split} set, got {found[split].name} and {entry.name}; "
                "remove one"
            )
        found[split] = entry
    return found


def _check_complete(path: Path, parts: Mapping[str, Path]) -> None:
    missing = [split for split in ("train", "test") if split not in parts]
    if missing:
        got = " and ".join(entry.name for entry in parts.values())
        raise ValueError(
            f"{path}: must hold train and test, got {got} without {' and '.join(missing)}; "
            "complete the folder, or give a single table, which is split by a hash"
        )


_HELD_OUT = 10  # percent of a single table for validation, and for test


@dataclass(frozen=True)
class Reading:
    """Options of reading a task.

    Attributes:
        fasta: Genome of the intervals, or a folder of genomes, see ``find_genomes``.
        sequence_column: See ``read_table``.
        label_column: See ``read_table``.
    """

    fasta: Path | None = None
    sequence_column: str | None = None
    label_column: str | None = None


def load_tasks(sources: Sequence[TaskSource], reading: Reading) -> list[LabelledTask]:
    """Read tasks, after checking that the genomes of all tasks exist.

    Args:
        sources: The result of ``find_tasks``.
        reading: Options.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a task is invalid, see ``load_task``.
    """
    for source in sources:
        if source.form == "intervals":
            find_genomes(
                source.path, _class_files(source.parts["train"], "intervals"), reading.fasta
            )
    return [load_task(source, reading) for source in sources]


def load_task(source: TaskSource, reading: Reading) -> LabelledTask:
    """Read a task.

    Args:
        source: A result of ``find_tasks``.
        reading: Options.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is invalid, the splits have different classes, or there is only one
            class; the message begins with the file.
    """
    if source.form == "table":
        return _split_by_hash(source, reading)
    if source.form == "splits":
        parts = {split: _table(path, reading) for split, path in source.parts.items()}
    else:
        parts = _by_class(source, reading)
    classes = number_classes(list(parts.values()))
    for split, rows in parts.items():
        end = f":{rows[-1].line}" if source.form == "splits" else ""
        _check_classes(f"{source.parts[split]}{end}", rows, classes)
    made = {split: gather(rows, classes) for split, rows in parts.items()}
    note = ""
    if "valid" in made:
        note = f"validation is {source.parts['valid'].name} of the benchmark"
    return LabelledTask(source.name, classes, made["train"], made.get("valid"), made["test"], note)


def _table(path: Path, reading: Reading) -> list[Row]:
    return read_table(
        path, sequence_column=reading.sequence_column, label_column=reading.label_column
    )


def _by_class(source: TaskSource, reading: Reading) -> dict[str, list[Row]]:
    """Read a folder or a table for each class of each split, sorted by class name."""
    files = {split: _class_files(path, source.form) for split, path in source.parts.items()}
    classes = tuple(sorted(set().union(*files.values())))
    _check_metadata(source.path, classes)
    if source.form == "folders":
        return {
            split: [row for name in sorted(of) for row in read_class_folder(of[name], name)]
            for split, of in files.items()
        }
    chosen = find_genomes(source.path, classes, reading.fasta)
    opened = {path: ClassGenome(path) for path in set(chosen.values())}
    return {
        split: [
            row
            for name in sorted(of)
            for row in read_intervals(of[name], name, opened[chosen[name]])
        ]
        for split, of in files.items()
    }


def _class_files(path: Path, form: str) -> dict[str, Path]:
    """Find the folder or the table of each class of a split."""
    found: dict[str, Path] = {}
    for entry in sorted(path.iterdir()):
        check_link(entry)
        name = table_stem(entry) if form == "intervals" else entry.name
        if not name or entry.is_dir() != (form == "folders"):
            continue
        if name in found:
            raise ValueError(
                f"{path}: class {name!r} must have one table, got {found[name].name} and "
                f"{entry.name}; remove one"
            )
        found[name] = entry
    return found


def _check_metadata(path: Path, classes: tuple[str, ...]) -> None:
    """Check the classes against metadata.yaml, if it exists."""
    file = path / "metadata.yaml"
    if not file.is_file():
        return
    wanted = tuple(sorted(read_metadata(file)))
    if wanted != classes:
        raise ValueError(
            f"{file}: classes must be those of the files, {describe_names(classes)}, got "
            f"{describe_names(wanted)}; complete the folder"
        )


def _check_classes(where: str, rows: Sequence[Row], classes: tuple[str, ...]) -> None:
    if len(classes) < 2:
        raise ValueError(
            f"{where}: a task must have at least two classes, got only {describe_names(classes)}; "
            "give the whole data set"
        )
    missing = tuple(sorted(set(classes) - {row.label for row in rows}))
    if missing:
        raise ValueError(
            f"{where}: every split must hold every class, got no {describe_names(missing)}; "
            "give the whole data set"
        )


def _split_by_hash(source: TaskSource, reading: Reading) -> LabelledTask:
    """Split a single table 80/10/10 by a digest of each sequence that both strands share."""
    rows = _table(source.path, reading)
    classes = number_classes([rows])
    _check_classes(f"{source.path}:{rows[-1].line}", rows, classes)
    parts: dict[str, list[Row]] = {"train": [], "valid": [], "test": []}
    for row in rows:
        digest = hashlib.sha256(either_strand(row.ids)).digest()
        percent = int.from_bytes(digest[:8], "big") % 100
        split = "test" if percent < _HELD_OUT else "valid" if percent < 2 * _HELD_OUT else "train"
        parts[split].append(row)
    for split, part in parts.items():
        for name in sorted(set(classes) - {row.label for row in part}):
            lines = [row.line for row in rows if row.label == name]
            raise ValueError(
                f"{source.path}:{lines[-1]}: every split must hold every class, got no row of "
                f"class {name!r} ({len(lines)} rows, this is the last) in {split} after the split "
                "80/10/10 by a hash; give tables for train, valid and test, or more rows"
            )
    train, valid, test = (gather(part, classes) for part in parts.values())
    note = "one table, split 80/10/10 by a hash of each sequence; not the official splits"
    return LabelledTask(source.name, classes, train, valid, test, note)


def load_regression(
    path: Path,
    columns: Sequence[str],
    *,
    sequence_column: str | None = None,
    group: str | None = None,
) -> LabelledTask:
    """Read a table of sequences with measured values.

    A column ``split`` divides the rows if all of its values are train, valid or test. Otherwise
    they are split 80/10/10 by a hash of their group or, without groups, of the sequence.

    Args:
        path: The table, see ``genomics.io.read_table``.
        columns: Columns of the values; empty cells and ``NA`` are missing values.
        sequence_column: Column of the sequences; default: ``sequence``.
        group: Column of groups, which are never divided between splits.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the table is invalid, or train or test has no row.
    """
    table = read_values(path, sequence=sequence_column or "sequence", signals=columns, group=group)
    rows = split_rows(table)
    if "test" not in rows:
        raise ValueError(
            f"{path}: the test split must hold a row, got none of {len(table):,}; mark some rows "
            "test in the column split, or remove that column"
        )
    parts = {split: _gather_values(table.select(some)) for split, some in rows.items()}
    by = "sequence" if group is None else group
    note = "" if table.split else f"split 80/10/10 by a hash of each {by}"
    if table.split and "valid" in parts:
        note = "train, validation and test are those of the column split"
    name = path.name.split(".")[0]
    return LabelledTask(
        name, (), parts["train"], parts.get("valid"), parts["test"], note, tuple(columns)
    )


def _gather_values(table: SequenceTable) -> Labelled:
    return Labelled(tuple(encode(text) for text in table.sequences), table.values)
