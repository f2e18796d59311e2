"""Libraries of optional extras, imported when they are first needed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType


def require_extra(module: str, owner: str, extra: str) -> ModuleType:
    """Import a library of an extra.

    Args:
        module: Its import name, perhaps dotted.
        owner: Name of what needs it, for the message.
        extra: The extra that installs it.

    Raises:
        ValueError: If it is not installed; names the command that installs it.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ValueError(
            f"{owner} must have the package {module.partition('.')[0]}, got none ({error}); "
            f"run: pip install -e '.[{extra}]'"
        ) from error
