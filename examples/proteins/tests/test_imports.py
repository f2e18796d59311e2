"""The package uses what seqdiff documents for domains, and is installed by its own metadata."""

import ast
import importlib
from importlib.metadata import distribution
from pathlib import Path

import pytest
import seqdiff_proteins

SOURCES = sorted(Path(seqdiff_proteins.__file__).parent.glob("*.py"))


def private_imports(source: str) -> list[str]:
    """List imports of other domains, of modules inside seqdiff's rooms, and of private names.

    Open are the rooms themselves, such as ``seqdiff.data``, with what they export; the modules
    beside them, such as ``seqdiff.files``; and ``seqdiff.cli.extensions``.
    """
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            named = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            named = [(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for module, name in named:
            root, *inner = module.split(".")
            if root in ("genomics", "text", "tests"):
                found.append(module)
            elif root == "seqdiff":
                deep = len(inner) > 1 and module != "seqdiff.cli.extensions"
                hidden = any(part.startswith("_") for part in (*inner, name or ""))
                opened = importlib.import_module(module)
                exported = name is None or name in getattr(opened, "__all__", dir(opened))
                if deep or hidden or not exported or name == "*":
                    found.append(f"{module}: {name}")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_only_public_modules_are_imported(path: Path) -> None:
    assert not private_imports(path.read_text())


@pytest.mark.parametrize(
    "source",
    [
        "from genomics.io import read_fasta",
        "import text.corpora",
        "from seqdiff.data.reader import Record",
        "import seqdiff.run.directory",
        "from seqdiff.files import _behind_links",
        "from seqdiff.run import Trained",
        "from seqdiff.data import *",
        "def late():\n    from seqdiff.backbones.base import Backbone",
    ],
)
def test_a_private_import_would_be_found(source: str) -> None:
    assert private_imports(source)


def test_every_entry_point_loads() -> None:
    entries = distribution("seqdiff-proteins").entry_points
    groups = {entry.group.removeprefix("seqdiff.") for entry in entries}
    assert groups == {"components", "commands", "writers", "templates", "readers"}
    for entry in entries:
        assert entry.load() is not None
