"""Types of options and of configuration keys: their names in words, and whether a value fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin

_WORDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    object: "any value",
    Path: "a path",
    Callable: "a function that can be imported, as module.function",
}
_MANY: dict[object, str] = {int: "integers", float: "numbers", str: "words", Path: "paths"}
_EMPTY = ("null", "none", "None", None)


def describe(hint: object) -> str:
    """Describe a type in words.

    Args:
        hint: The type; ``None`` as an alternative is left out.
    """
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    if get_origin(hint) in (list, tuple):
        inner = get_args(hint) or (object,)
        exactly = "" if get_origin(hint) is list or Ellipsis in inner else f"{len(inner)} "
        return f"a list of {exactly}{_MANY.get(inner[0], 'values')} in brackets"
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(describe(kind) for kind in get_args(hint) if kind is not NoneType)
    origin = get_origin(hint) or hint
    return _WORDS.get(origin, getattr(origin, "__name__", str(origin)))


def _fits_all(hint: object, values: list[object]) -> bool | None:
    """Whether the values of a list have its types; a tuple without ``...`` has a length."""
    kinds = get_args(hint)
    if get_origin(hint) is list or Ellipsis in kinds:
        kinds = kinds[:1] * len(values)
    if len(kinds) != len(values):
        return False
    found = [fits(kind, one) for kind, one in zip(kinds, values, strict=True)]
    return False if False in found else None if None in found else True


def fits(hint: object, value: object) -> bool | None:
    """Whether a value, typed or read from YAML, has a type.

    Args:
        hint: The type.
        value: The value; numbers and truth values may be text.

    Returns:
        ``None`` for types that this function does not know, such as classes.
    """
    origin = get_origin(hint)
    if origin is Literal:
        return str(value) in map(str, get_args(hint))
    if origin in (list, tuple):
        return _fits_all(hint, value) if isinstance(value, list) else str(value).startswith("[")
    if hint is NoneType:
        return value in _EMPTY
    if hint in (int, float):
        if isinstance(value, bool | list | dict):
            return False
        try:
            int(str(value).replace("_", "")) if hint is int else float(str(value))
        except ValueError:
            return False
        return True
    if hint is bool:
        return str(value).lower() in ("true", "false", "yes", "no")
    if hint in (str, Path):
        return not isinstance(value, list | dict)
    if origin in (Union, UnionType):
        found = [fits(kind, value) for kind in get_args(hint)]
        return True if True in found else None if None in found else False
    return None
