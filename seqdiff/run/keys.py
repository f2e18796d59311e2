"""The keys of a configuration, for ``seqdiff train --keys`` and the reference."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docstring_parser import DocstringStyle, parse
from jsonargparse import Namespace

from seqdiff.backbones import AdapterConfig
from seqdiff.experts import ExpertsConfig
from seqdiff.run.config import DEFAULTS, RunConfig, follows, list_choices, parse_run
from seqdiff.run.presets import PRESETS
from seqdiff.run.trust import import_path
from seqdiff.training import OptimConfig, TrainerConfig

_GROUPS = {"optim": OptimConfig, "trainer": TrainerConfig}
_OPTIONAL = {"experts": ExpertsConfig, "adapter": AdapterConfig}  # or null


@dataclass(frozen=True)
class Key:
    """A key of a configuration.

    Attributes:
        name: The key as an option writes it, without dashes: ``optim.lr``.
        value: Its default, or its value in a configuration; ``None`` if the key is required.
        meaning: What it sets.
    """

    name: str
    value: str | None
    meaning: str


def list_keys() -> list[Key]:
    """List the keys that every configuration has.

    The arguments of the classes that a configuration chooses are not among them, see
    ``list_keys_of``.
    """
    presets = f"Sets process, parameterization and objective at once: {', '.join(PRESETS)}."
    found = [Key("preset", "null", presets)]
    for key in _keys_of_class(RunConfig):
        if key.name in _GROUPS:
            continue
        if key.name in DEFAULTS:
            key = dataclasses.replace(key, value=DEFAULTS[key.name])
        # Data classes belong to domains, which are imported once a configuration names them.
        choices = [] if key.name == "data" else list_choices(key.name)
        named = f" Classes: {', '.join(choices)}." if choices else ""
        found.append(dataclasses.replace(key, meaning=key.meaning + named))
    for group, kind in _GROUPS.items():
        for key in _keys_of_class(kind):
            found.append(dataclasses.replace(key, name=f"{group}.{key.name}"))
    return found


def list_keys_of(config: Path, flags: Sequence[str] = ()) -> list[Key]:
    """List the keys of a configuration with their values.

    Args:
        config: A YAML file.
        flags: Keys that override it.

    Returns:
        The keys, those of the classes that the configuration chooses included.

    Raises:
        ValueError: As ``parse_run``.
    """
    parsed = parse_run(config, flags, output="RUN")
    meanings = {key.name: key for key in list_keys()}
    found = []
    for field in dataclasses.fields(RunConfig):
        name, value = field.name, parsed[field.name]
        if name in _GROUPS:
            inner = [(f"{name}.{key}", part) for key, part in vars(value).items()]
            found += [Key(key, _write(part), meanings[key].meaning) for key, part in inner]
        elif name in _OPTIONAL and isinstance(value, Namespace):
            said = _meanings(_OPTIONAL[name])
            found += [Key(f"{name}.{k}", _write(v), said[k]) for k, v in vars(value).items()]
        elif isinstance(value, Namespace):
            found += _keys_of_choice(name, value, meanings[name].meaning.partition(" Classes:")[0])
        else:
            found.append(Key(name, _write(value), meanings[name].meaning))
    return found


def _keys_of_choice(name: str, chosen: Namespace, meaning: str) -> Iterator[Key]:
    """List a class that a configuration chooses, and its arguments."""
    yield Key(name, chosen["class_path"], meaning)
    meanings = _meanings(import_path(chosen["class_path"]))
    for argument, value in vars(chosen.get("init_args") or Namespace()).items():
        key, said = f"{name}.{argument}", meanings.get(argument, "")
        if isinstance(value, Namespace) and "class_path" in value:
            yield from _keys_of_choice(key, value, said)
        elif not follows(name, argument):
            yield Key(key, _write(value), said)


def _keys_of_class(kind: type) -> Iterator[Key]:
    """List the fields of a dataclass."""
    meanings = _meanings(kind)
    for field in dataclasses.fields(kind):
        value = None
        if field.default is not dataclasses.MISSING:
            value = _write(field.default)
        elif field.default_factory is not dataclasses.MISSING:
            value = getattr(field.default_factory, "__name__", "")
        yield Key(field.name, value, meanings[field.name])


def _meanings(kind: type) -> dict[str, str]:
    """Read the descriptions of arguments and attributes from the docstrings of a class."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__):
        for text in (owner.__doc__, owner.__init__.__doc__):
            for part in parse(inspect.cleandoc(text or ""), style=DocstringStyle.GOOGLE).params:
                found[part.arg_name] = " ".join((part.description or "").split())
    return found


def _write(value: Any) -> str:
    """Write a value as a configuration file does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_write, value))}]"
    return str(value)
