"""MkDocs hook: generates the API reference from the rooms' exports, so that it cannot go stale."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]


def rooms() -> list[str]:
    """Packages that export names."""
    found = []
    for top in ("seqdiff", "genomics", "text"):
        for init in sorted((ROOT / top).rglob("__init__.py")):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            if getattr(importlib.import_module(name), "__all__", None):
                found.append(name)
    return found


def api_page(package: str) -> str:
    """One page: every class and function that the package exports, then its constants."""
    module = importlib.import_module(package)
    lines = [f"# {package}", "", module.__doc__ or "", ""]
    constants = []
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            lines += [f"::: {package}.{name}", ""]
        else:
            constants.append(f"| `{name}` | `{value!r:.80}` |")
    if constants:
        lines += ["## Constants and types", "", "| name | value |", "|---|---|", *constants, ""]
    return "\n".join(lines)


def on_files(files, config):
    """Adds the generated pages."""
    for name in rooms():
        files.append(File.generated(config, f"reference/api/{name}.md", content=api_page(name)))
    return files
