"""Checks of arguments that several commands and methods take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields


def check_count(owner: str, count: int) -> None:
    """Check that a number of things is positive.

    Args:
        owner: Name of the argument, for the message.
        count: The number.

    Raises:
        ValueError: If it is less than 1.
    """
    if count < 1:
        raise ValueError(f"{owner} must be at least 1, got {count}; raise it")


def check_seed(owner: str, seed: int | None) -> None:
    """Check that a seed fits in 32 bits.

    Args:
        owner: Name of the argument, for the message.
        seed: The seed; ``None`` is drawn later.

    Raises:
        ValueError: If it is not in [0, 2^32).
    """
    if seed is not None and not 0 <= seed < 2**32:
        raise ValueError(f"{owner} must be in [0, 2^32), got {seed}; choose one, such as 0")


def check_list(owner: str, values: object) -> None:
    """Check that an argument is not one string, which would be read as a list of characters.

    Args:
        owner: Name of the argument, for the message.
        values: The argument.

    Raises:
        ValueError: If it is a string.
    """
    if isinstance(values, str):
        raise ValueError(f"{owner} must be a list, got the string {values[:20]!r}; use [...]")


def check_options(owner: str, options: Mapping[str, object], kind: type) -> None:
    """Check that keyword arguments are fields of a dataclass.

    Args:
        owner: Name of the function, for the message.
        options: The keyword arguments.
        kind: The dataclass.

    Raises:
        ValueError: If one is not.
    """
    names = [field.name for field in fields(kind)]
    for name in options:
        if name not in names:
            raise ValueError(f"{owner}: {name} is no option; choose from {', '.join(names)}")
