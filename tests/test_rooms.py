"""Code outside of a package imports what its ``__init__`` exports, not the modules inside."""

import ast
from pathlib import Path

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


def _deep_imports(importer: str, source: str, modules: dict[str, Path]) -> list[str]:
    """List the imports of single modules inside another room."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module not in modules:
            continue
        room = node.module.rpartition(".")[0]
        # Kernels use kernels of other folders, which Numba inlines.
        inside = room.startswith("seqdiff.ops.") and importer.startswith("seqdiff.ops.")
        behind = modules[node.module].name != "__init__.py" and room not in _OPEN
        if behind and not inside and not f"{importer}.".startswith(f"{room}."):
            found.append(f"{importer}: from {node.module}")
    return found


def test_code_outside_a_room_imports_from_its_init() -> None:
    modules = _modules()
    found = [
        line
        for name, path in modules.items()
        for line in _deep_imports(name, path.read_text(), modules)
    ]
    assert not found, "\n".join(found)


def test_a_deep_import_is_found() -> None:
    source = "from genomics.io.fasta import read_encoded"
    assert _deep_imports("genomics.data.splits", source, _modules())
    assert not _deep_imports("genomics.io.bed", source, _modules())


def test_every_room_says_what_it_holds() -> None:
    inits = [path for path in _modules().values() if path.name == "__init__.py"]
    for init in inits:
        assert ast.get_docstring(ast.parse(init.read_text())), f"{init} has no docstring"
