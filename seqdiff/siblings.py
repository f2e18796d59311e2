"""The packages that are installed beside ``seqdiff``: ``genomics`` and ``text``.

Their names are common. Python searches the folder of a script first, so that a file ``text.py``
that somebody keeps there would be imported, and run, in place of ours. ``import seqdiff`` therefore
adds a finder that looks for the two beside ``seqdiff`` before Python looks anywhere else.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

SIBLINGS = ("genomics", "text")
_FOLDER = str(Path(__file__).absolute().parents[1])


class SiblingFinder:
    """Finds the siblings beside ``seqdiff``; leaves all other modules to Python."""

    @staticmethod
    def find_spec(
        name: str, path: Iterable[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find one of the siblings."""
        return PathFinder.find_spec(name, [_FOLDER], target) if name in SIBLINGS else None


def install_finder() -> None:
    """Add the finder, once."""
    if SiblingFinder not in sys.meta_path:
        sys.meta_path.insert(0, SiblingFinder)


def check_sibling(name: str) -> None:
    """Check that no other module has taken the name of a sibling before ``import seqdiff``.

    Args:
        name: Name of a top-level module.

    Raises:
        ValueError: If one has.
    """
    module = sys.modules.get(name) if name in SIBLINGS else None
    found = getattr(module, "__file__", None)
    if found is not None and Path(found).resolve().parents[1] != Path(_FOLDER).resolve():
        raise ValueError(f"{name} must be seqdiff's, got {found}; rename that file")
