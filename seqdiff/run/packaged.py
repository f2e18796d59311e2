"""Trained models that installed packages bring along.

A distribution registers each as an entry point of the group ``seqdiff.models``: the name of the
entry is the model's, the object a ``PackagedModel``.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

CONFIG_NAME = "run.yaml"


class PackagedModel(NamedTuple):
    """A model in an installed package.

    Attributes:
        folder: A run directory, without checkpoint and logs, and with a model card ``README.md``.
        about: What the model draws, in a few words.
    """

    folder: Path
    about: str


def packaged_names() -> list[str]:
    """List the names of the packaged models, without importing their packages."""
    return sorted(entry.name for entry in entry_points(group="seqdiff.models"))


def packaged_models() -> dict[str, PackagedModel]:
    """List the packaged models by name."""
    found = {entry.name: entry.load() for entry in entry_points(group="seqdiff.models")}
    return dict(sorted(found.items()))


def find_run(run: Path | str) -> Path:
    """Find the run directory of a path or of the name of a packaged model.

    Args:
        run: A folder, or the name of a packaged model, which is used if there is no such folder.

    Returns:
        The folder; the path itself if it is neither.
    """
    path = Path(run)
    if path.is_dir() or str(run) not in packaged_names():
        return path
    return packaged_models()[str(run)].folder


def packaged_name(directory: Path) -> str | None:
    """Return the name of the packaged model in a folder; ``None`` for any other run."""
    known = {model.folder.resolve(): name for name, model in packaged_models().items()}
    return known.get(directory.resolve())


def no_run(directory: Path) -> FileNotFoundError:
    """Make the error of a path that is neither a run directory nor the name of a packaged model."""
    fix = "check the path (a published network is a downloaded folder with config.json)"
    if not directory.is_dir():
        fix = f"check the path, or name a packaged model: {', '.join(packaged_names())}"
    return FileNotFoundError(
        f"a run directory must hold {CONFIG_NAME}, got none in {directory}; {fix}"
    )


def default_path(run: Path, name: str) -> Path:
    """Return the path of a file that belongs to a run.

    Nothing is written into an installed package, so the files of a packaged model lie in the
    current folder, and their names start with that of the model.

    Args:
        run: A run directory, or the name of a packaged model.
        name: Name of the file.

    Returns:
        ``RUN/name``; ``MODEL-name`` for a packaged model.

    Raises:
        FileNotFoundError: If it is neither.
    """
    folder = find_run(run)
    if not folder.is_dir():
        raise no_run(folder)
    packaged = packaged_name(folder)
    return run / name if packaged is None else Path(f"{packaged}-{name}")
