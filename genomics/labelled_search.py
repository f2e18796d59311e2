"""Find the tasks of a benchmark folder, whichever form they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .labelled_files import check_link, table_stem

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
    """Where a task lies.

    Attributes:
        name: Of the folder or the file.
        path: It.
        form: How it is laid out.
        parts: The table or the folder of each split, train and test and perhaps valid; empty for a
            lone table.
    """

    name: str
    path: Path
    form: Form
    parts: Mapping[str, Path] = field(default_factory=dict)


def find_tasks(path: Path) -> list[TaskSource]:
    """Find the task that a path is, or all tasks below it, in the order of their paths.

    Args:
        path: A table, the folder of a task, or a folder of such.

    Raises:
        FileNotFoundError: If there is no such path, no task in it, or a link to nothing.
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
    # A folder that merely is called test may hold other tasks.
    if tables or len(folders) > 1:
        parts = tables or folders
        _check_complete(path, parts)
        return [TaskSource(_whole_name(path), path, "splits" if tables else _form(parts), parts)]
    return [source for entry in below for source in _search(entry)]


def _whole_name(path: Path) -> str:
    return f"{path.parent.name}/{path.name}" if path.name.isdigit() else path.name


def _form(parts: Mapping[str, Path]) -> Form:
    tables = any(table_stem(entry) for entry in parts["train"].iterdir())
    return "intervals" if tables else "folders"


def _by_split(path: Path, entries: Iterable[Path]) -> dict[str, Path]:
    """Those of some entries that are named after a split."""
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
            "complete the folder, or give one table itself to have it split by a hash"
        )
