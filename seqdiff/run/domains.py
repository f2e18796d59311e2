"""The packages that a run belongs to, which decide between domains that register the same name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path

from seqdiff.files import parse_json
from seqdiff.run.config_files import read_yaml
from seqdiff.run.packaged import CONFIG_NAME, find_run, no_run

_HUB_FILE = "config.json"


def run_packages(run: Path | str) -> frozenset[str]:
    """Find the top-level packages of a run's data module and tokenizer, without importing them.

    For a published network it is the package that opens its ``model_type``.

    Args:
        run: A run directory, the name of a packaged model, or a hub folder.

    Returns:
        The packages, without seqdiff itself.

    Raises:
        FileNotFoundError: If it is none of these.
        ValueError: If its configuration file cannot be read.
    """
    folder = find_run(run)
    if (folder / CONFIG_NAME).is_file():
        content = read_yaml(folder / CONFIG_NAME)
        data = content.get("data") if isinstance(content, dict) else None
        found = {path.partition(".")[0] for path in _class_paths(data)}
    elif (folder / _HUB_FILE).is_file():
        content = parse_json((folder / _HUB_FILE).read_bytes())
        kind = content.get("model_type") if isinstance(content, dict) else None
        hubs = entry_points(group="seqdiff.hubs")
        found = {entry.value.partition(".")[0] for entry in hubs if entry.name == kind}
    else:
        raise no_run(folder)
    return frozenset(found - {"seqdiff"})


def _class_paths(value: object) -> Iterator[str]:
    """Yield the import paths of a part of a configuration."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "class_path":
                yield str(inner)
            yield from _class_paths(inner)
