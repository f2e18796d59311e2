"""Modules whose classes a configuration may name.

A run directory may come from somebody else, and to import a module is to run its code. Therefore a
configuration may name classes of the distributions that register a module by the entry point
``seqdiff.components``, as seqdiff does, and of modules that the user trusts.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jsonargparse import set_parsing_settings

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_trusted: set[str] = set()


class UntrustedCodeError(ValueError):
    """A configuration names a class of a module that nobody trusts."""


@cache
def _registered() -> frozenset[str]:
    """List the modules of ``seqdiff.components``, and restrict the parser's imports to them."""
    found = {entry.value.partition(".")[0] for entry in entry_points(group="seqdiff.components")}
    found.add("seqdiff")
    set_parsing_settings(import_path_denylist=["*"], import_path_allowlist=sorted(found))
    return frozenset(found)


def trusted_modules() -> list[str]:
    """List the top-level modules whose classes a configuration may name."""
    return sorted(_registered() | _trusted)


def trust_code(*modules: str) -> None:
    """Allow configurations to name classes of more modules, until the process ends.

    Opening a run then imports such a module, which runs its code. Use it for your own modules, and
    for those of others that you have read.

    Args:
        modules: Names of modules, such as ``proteins``. All of the top-level package is trusted.
            A module that is not found elsewhere may lie in the current folder.

    Raises:
        ValueError: If there is no such module.

    Example:
        >>> seqdiff.trust_code("proteins")
        >>> run = seqdiff.load("runs/proteins")
    """
    _registered()
    for module in modules:
        root = module.partition(".")[0]
        if not root.isidentifier():
            raise ValueError(
                f"trust_code.modules must be names of modules, got {module!r}; give one such as "
                "proteins"
            )
        here = str(Path.cwd())
        if not _exists(root):
            if PathFinder.find_spec(root, [here]) is None:
                raise ValueError(
                    f"trust_code.modules must exist, got {module}; install it, or change to its "
                    "folder"
                )
            sys.path.append(here)
        set_parsing_settings(import_path_allowlist=[root])
        _trusted.add(root)


def trust_options() -> list[str]:
    """List the options of a command that trusts what the user trusts now."""
    return [word for name in sorted(_trusted - _registered()) for word in ("--trust-code", name)]


def trust_typed(text: str) -> None:
    """Trust the module of an import path that the caller typed; other text has no effect.

    Args:
        text: A value from the command line, perhaps an import path such as ``rewards.gc_content``.
    """
    root = text.partition(".")[0]
    if _IMPORT_PATH.fullmatch(text) and _exists(root):
        trust_code(root)


def _exists(root: str) -> bool:
    """Whether a module can be imported; it is not."""
    try:
        return find_spec(root) is not None
    except ValueError:  # of ``__main__``
        return False


def check_trusted(owner: str, path: str) -> None:
    """Check that a configuration may name a class.

    Args:
        owner: The key that names it, for the message.
        path: Import path of the class.

    Raises:
        UntrustedCodeError: If it is not part of a trusted module.
    """
    root, known = path.partition(".")[0], trusted_modules()
    if "." in path and not _IMPORT_PATH.fullmatch(path):
        raise UntrustedCodeError(
            f"{owner} must be an import path such as module.Class, got {path}; correct it"
        )
    if "." in path and root not in known and not _exists(root):
        raise UntrustedCodeError(
            f"{owner} must be a class of {', '.join(known)}, got {path}, and no module {root} is "
            f"installed; correct it, or add --trust-code {root} if the module lies in the current "
            "folder and you trust its code"
        )
    if "." in path and root not in known:
        raise UntrustedCodeError(
            f"{owner} must be a class of {', '.join(known)}, got {path}; if you trust the code of "
            f"{root}, add --trust-code {root} (in Python: seqdiff.trust_code({root!r}))"
        )


def import_path(path: str) -> Any:
    """Import an object of a trusted module by its path, ``module.name``.

    Raises:
        AttributeError: If the module has no such name.
        ImportError: If there is no such module.
        UntrustedCodeError: If the module is not trusted.
        ValueError: If the path has no module.
    """
    root = path.partition(".")[0]
    if "." in path and root not in trusted_modules() and not _exists(root):
        raise ModuleNotFoundError(f"No module named {root!r}")
    check_trusted("import_path.path", path)
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)
