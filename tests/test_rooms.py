"""Rooms: other rooms import from a room's door, and every door says what lives behind it."""

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
# Commands are opened by entry points and by each other. Kernels share kernels, which Numba inlines.
_OPEN = {"seqdiff", "genomics", "text", "seqdiff.cli", "genomics.commands", "text.commands"}


def _modules() -> dict[str, Path]:
    found = {}
    for package in ("seqdiff", "genomics", "text"):
        for path in (ROOT / package).rglob("*.py"):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def _trespasses(importer: str, source: str, modules: dict[str, Path]) -> list[str]:
    """Imports that reach past the door of another room."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ImportFrom) or node.module not in modules:
            continue
        room = node.module.rpartition(".")[0]
        inside = room.startswith("seqdiff.ops.") and importer.startswith("seqdiff.ops.")
        behind = modules[node.module].name != "__init__.py" and room not in _OPEN
        if behind and not inside and not f"{importer}.".startswith(f"{room}."):
            found.append(f"{importer}: from {node.module}")
    return found


def test_other_rooms_import_from_the_door() -> None:
    modules = _modules()
    found = [
        line
        for name, path in modules.items()
        for line in _trespasses(name, path.read_text(), modules)
    ]
    assert not found, "\n".join(found)


def test_a_trespass_is_found() -> None:
    source = "from genomics.io.fasta import read_encoded"
    assert _trespasses("genomics.data.leaks", source, _modules())
    assert not _trespasses("genomics.io.bed", source, _modules())


def test_every_door_says_what_lives_there() -> None:
    doors = [path for path in _modules().values() if path.name == "__init__.py"]
    for door in doors:
        assert ast.get_docstring(ast.parse(door.read_text())), f"{door} has no docstring"
