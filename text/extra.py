"""The libraries of the extra ``text``, imported when they are first needed."""

from __future__ import annotations

from types import ModuleType

from seqdiff.extras import require_extra


def require(module: str, owner: str) -> ModuleType:
    """Import a library of the extra; see ``seqdiff.extras.require_extra``.

    Args:
        module: Its import name, perhaps dotted.
        owner: What needs it, for the message.
    """
    return require_extra(module, owner, "text")
