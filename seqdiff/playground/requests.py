"""Requests of the page as dataclasses, checked before anything is computed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints


@dataclass(frozen=True, kw_only=True)
class Condition:
    """What sequences are conditioned on.

    Attributes:
        label: Class, for a run with labels.
        signal: Values by name, for a run with signals.
    """

    label: str | None = None
    signal: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Draw(Condition):
    """Sequences to draw; see ``seqdiff sample`` for the meaning.

    Attributes:
        template: Template of all sequences; empty to draw them from nothing.
        length: Tokens of each sequence, or of a prompt with what follows it.
        num: Number of sequences.
        seed: Seed of the draws; ``None`` to draw one.
        sampler: Name of the sampler.
        options: Options of the sampler as they would be typed, by flag.
        domain: Options of the run's domain, by name.
        guidance: Strength of guidance.
    """

    template: str = ""
    length: int | None = None
    num: int = 4
    seed: int | None = None
    sampler: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    domain: dict[str, list[str] | bool] = field(default_factory=dict)
    guidance: float | None = None


@dataclass(frozen=True, kw_only=True)
class Score(Condition):
    """Sequences to score.

    Attributes:
        sequences: The sequences.
        seed: Seed of the draws.
    """

    sequences: list[str]
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Mutate:
    """A sequence to mutate.

    Attributes:
        sequence: The sequence.
    """

    sequence: str


@dataclass(frozen=True, kw_only=True)
class Predict(Condition):
    """A position to predict.

    Attributes:
        tokens: Ids of a sequence.
        position: The position, from 0.
    """

    tokens: list[int]
    position: int


Request = TypeVar("Request", bound=Condition | Mutate)


def read(kind: type[Request], body: object) -> Request:
    """Check the content of a request against a dataclass.

    Args:
        kind: The dataclass.
        body: Parsed JSON.

    Raises:
        ValueError: If a key is unknown or missing, or a value has another type.
    """
    owner = kind.__name__.lower()
    if not isinstance(body, Mapping):
        raise ValueError(f"{owner} must be a JSON object, got {body!r}; send one")
    hints = get_type_hints(kind)
    for name in body:
        if name not in hints:
            raise ValueError(f"{owner} must have keys of {', '.join(hints)}, got {name!r}")
    for entry in fields(kind):
        name, optional = entry.name, {entry.default, entry.default_factory} != {MISSING}
        if name not in body and not optional:
            raise ValueError(f"{owner}.{name} must be given; add it")
        if name in body and not _fits(hints[name], body[name]):
            raise ValueError(
                f"{owner}.{name} must be of type {entry.type}, got {body[name]!r}; correct it"
            )
    return kind(**{name: _with_floats(hints[name], value) for name, value in body.items()})


def _fits(hint: Any, value: object) -> bool:
    """Whether a value of JSON has a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(kind, value) for kind in inner)
    if hint is NoneType:
        return value is None
    if hint is bool or isinstance(value, bool):
        return hint is bool and isinstance(value, bool)
    if hint is float:
        return isinstance(value, int | float) and math.isfinite(value)
    if origin is list:
        return isinstance(value, list) and all(_fits(inner[0], one) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(_fits(inner[1], one) for one in value.values())
    return isinstance(value, hint)


def _with_floats(hint: Any, value: Any) -> Any:
    """Turn integers into floats where a float is wanted; JSON has only numbers."""
    if isinstance(value, dict):
        return {key: _with_floats(get_args(hint)[1], one) for key, one in value.items()}
    whole = isinstance(value, int) and not isinstance(value, bool)
    return float(value) if whole and float in (hint, *get_args(hint)) else value
