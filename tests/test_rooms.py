"""Code outside of a package imports what its ``__init__`` exports, not the modules inside."""

import ast
from importlib.util import resolve_name
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Entry points and other commands import single modules of these packages.
_OPEN = {"seqdiff", "genomics", "text", "seqdiff.cli", "genomics.commands", "text.commands"}


def _modules() -> dict[str, Path]:
    found = {}
    for package in ("seqdiff", "genomics", "text"):
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def _base(node: ast.ImportFrom, importer: str, modules: dict[str, Path]) -> str:
    """Name the module or package after ``from``."""
    package = importer
    if importer in modules and modules[importer].name != "__init__.py":
        package = importer.rpartition(".")[0]
    return resolve_name("." * node.level + (node.module or ""), package)


def _exports(path: Path) -> set[str]:
    """List the names that an ``__init__`` takes from its modules, or that its stub lists."""
    files = (path, path.with_suffix(".pyi"))
    nodes = [n for file in files if file.exists() for n in ast.walk(ast.parse(file.read_text()))]
    return {a.asname or a.name for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}


def _imported(importer: str, source: str, modules: dict[str, Path]) -> list[str]:
    """List the modules and packages that a source imports, in any form."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, importer, modules)
            exported = _exports(modules[base]) if base in modules else set()
            found.append(base)
            found += [f"{base}.{a.name}" for a in node.names if a.name not in exported]
    return [name for name in found if name in modules]


def _deep_imports(importer: str, source: str, modules: dict[str, Path]) -> list[str]:
    """List the imports of single modules inside another room."""
    found = []
    for name in _imported(importer, source, modules):
        room = name.rpartition(".")[0]
        # Kernels use kernels of other folders, which Numba inlines.
        inside = room.startswith("seqdiff.ops.") and importer.startswith("seqdiff.ops.")
        behind = modules[name].name != "__init__.py" and room not in _OPEN
        if behind and not inside and not f"{importer}.".startswith(f"{room}."):
            found.append(f"{importer}: {name}")
    return found


def test_code_outside_a_room_imports_from_its_init() -> None:
    modules = _modules()
    found = [
        line
        for name, path in modules.items()
        for line in _deep_imports(name, path.read_text(), modules)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "source",
    [
        "from genomics.io.fasta import read_encoded",
        "from genomics.io.fasta import *",
        "from genomics.io import fasta",
        "from genomics.io import Genome, fasta as files",
        "import genomics.io.fasta",
        "import os, genomics.io.fasta as fasta",
        "from ..io.fasta import read_encoded",
        "from ..io import fasta",
        "def late():\n    import genomics.io.fasta",
    ],
)
def test_a_deep_import_is_found(source: str) -> None:
    assert _deep_imports("genomics.data.splits", source, _modules()) == [
        "genomics.data.splits: genomics.io.fasta"
    ]
    assert not _deep_imports("genomics.io.bed", source, _modules())


@pytest.mark.parametrize(
    "source",
    [
        "from genomics.io import Genome, read_vcf",
        "from genomics import io",
        "import genomics.io",
        "from seqdiff import progress",
        "import seqdiff.progress",
        "import torch.nn.functional",
        "from seqdiff.likelihood import contrast",  # the function, not the module of its name
        "from . import windows",
    ],
)
def test_imports_of_rooms_and_of_open_modules_are_not(source: str) -> None:
    assert not _deep_imports("genomics.data.splits", source, _modules())


def test_every_room_says_what_it_holds() -> None:
    inits = [path for path in _modules().values() if path.name == "__init__.py"]
    for init in inits:
        assert ast.get_docstring(ast.parse(init.read_text())), f"{init} has no docstring"
