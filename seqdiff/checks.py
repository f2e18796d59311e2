"""Checks of arguments that several commands and methods take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from numbers import Integral


def check_count(owner: str, count: int, least: int = 1) -> None:
    """Check that a number of things is large enough.

    Args:
        owner: Name of the argument, for the message.
        count: The number.
        least: The smallest valid number.

    Raises:
        ValueError: If it is not an integer of at least ``least``.
    """
    _check_integer(owner, count)
    if count < least:
        raise ValueError(f"{owner} must be at least {least}, got {count}; raise it")


def check_seed(owner: str, seed: int | None) -> None:
    """Check that a seed fits in 32 bits.

    Args:
        owner: Name of the argument, for the message.
        seed: The seed; ``None`` is drawn later.

    Raises:
        ValueError: If it is not an integer in [0, 2^32).
    """
    if seed is None:
        return
    _check_integer(owner, seed)
    if not 0 <= seed < 2**32:
        raise ValueError(f"{owner} must be in [0, 2^32), got {seed}; choose one, such as 0")


def check_strings(owner: str, values: object) -> list[str]:
    """Check that an argument is a list of strings; a single string would be read as characters.

    Args:
        owner: Name of the argument, for the message.
        values: The argument: a list, or any other iterable of strings.

    Returns:
        The strings.

    Raises:
        ValueError: If it is not a list of strings, or it is empty.
    """
    if isinstance(values, str):
        raise ValueError(f"{owner} must be a list, got the string {values[:20]!r}; use [...]")
    if not isinstance(values, Iterable):
        raise ValueError(f"{owner} must be a list of strings, got {values!r}; use [...]")
    strings = list(values)
    if not strings:
        raise ValueError(f"{owner} must hold a string, got an empty list; add one")
    for value in strings:
        check_string(owner, value)
    return strings


def check_string(owner: str, value: object) -> None:
    """Check that an argument is a string.

    Args:
        owner: Name of the argument, for the message.
        value: The argument.

    Raises:
        ValueError: If it is not.
    """
    if not isinstance(value, str):
        raise ValueError(f"{owner} must be text, got {value!r}; give a string")


def _check_integer(owner: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise ValueError(f"{owner} must be an integer, got {value!r}; give a whole number")


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
            raise ValueError(f"{owner} has no option {name}; choose from {', '.join(names)}")


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Check the fractions of train, valid and test.

    Raises:
        ValueError: If one is negative or NaN, or they do not add up to 1.
    """
    if not (all(fraction >= 0 for fraction in fractions) and abs(sum(fractions) - 1) <= 1e-6):
        raise ValueError(
            f"split must be three fractions of train, valid and test that add up to 1, "
            f"got {list(fractions)}; for example [0.9, 0.05, 0.05]"
        )
