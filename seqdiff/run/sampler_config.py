"""Samplers from their names and flags, which are the arguments of their constructors."""

from __future__ import annotations

import inspect
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser

from seqdiff.run.config_files import one_line, read_flags
from seqdiff.run.kinds import describe, fits
from seqdiff.run.trust import import_path, trust_typed, trusted_modules
from seqdiff.samplers import Sampler, find_sampler, named_samplers, sampler_name


@dataclass(frozen=True)
class Option:
    """Description of an option for users.

    Attributes:
        flag: The flag as it is typed.
        kind: Type of the values, in words.
        meaning: Description from the docstring of the sampler or of a base class.
        default: The default as it would be typed; ``None`` if the option is required.
    """

    flag: str
    kind: str
    meaning: str
    default: str | None


def choose_sampler(name: str) -> type[Sampler]:
    """Find a sampler by its name, or an outside one by its import path.

    Raises:
        ValueError: If there is none.
    """
    if "." not in name:
        return find_sampler(name)
    try:
        trust_typed(name)
        cls = import_path(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"sample.sampler must be importable, got {name!r}: {one_line(str(error))}; "
            "check the path"
        ) from error
    if not (inspect.isclass(cls) and issubclass(cls, Sampler) and not inspect.isabstract(cls)):
        raise ValueError(
            f"sample.sampler must be a seqdiff.samplers.Sampler, got {name!r}; derive it from that"
        )
    return cls


def build_sampler(name: str, flags: Sequence[str] = ()) -> Sampler:
    """Build a sampler.

    Args:
        name: Name as ``seqdiff samplers`` lists it, or an import path.
        flags: Options, ``--key value`` or ``--key=value``; an inner sampler is given by its name.

    Raises:
        ValueError: In one line, if there is no such sampler or option (with the choices), or a
            value does not fit.
    """
    trusted_modules()  # restricts what the parser imports
    cls = choose_sampler(name)
    for _, value in read_flags(flags):
        trust_typed(value)
    given = {flag.partition("=")[0].partition(".")[0] for flag in flags}
    for option, parameter in inspect.signature(cls).parameters.items():
        if parameter.default is parameter.empty and f"--{option}" not in given:
            raise ValueError(
                f"sample.sampler {name} must be given {_flag(option)}; see: seqdiff samplers {name}"
            )
    parser = _parser(cls)
    words = [_import_path(part) for part in flags]
    try:
        parsed = parser.parse_args(words)
    except ArgumentError as error:
        raise ValueError(
            f"sample.sampler {name}: {_complaint(cls, words) or one_line(str(error))}; its options "
            f"are {_options(cls)}; see: seqdiff samplers {name}, and seqdiff sample --help for the "
            "others"
        ) from error
    built = parser.instantiate(parsed)
    return cls(**{option: built[option] for option in inspect.signature(cls).parameters})


def list_options(cls: type[Sampler]) -> list[Option]:
    """List the options of a sampler, in the order of its constructor."""
    actions = {action.dest: action for action in _parser(cls)._actions}
    hints = get_type_hints(cls.__init__)
    found = []
    for name in inspect.signature(cls).parameters:
        action, default = actions[name], None
        if isinstance(action.default, dict):
            default = sampler_name(choose_sampler(action.default["class_path"]))
        elif not action.required:
            default = "none" if action.default is None else str(action.default)
        meaning = " ".join((action.help or "").replace("``", "").split())
        flag = _flag(name)
        if hints.get(name) is Sampler:
            meaning += f" Its own options are spelled like {flag}.temperature."
        found.append(Option(flag, _kind(hints.get(name, object)), meaning, default))
    return found


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _parser(cls: type[Sampler]) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(cls)
    return parser


def _kind(hint: object) -> str:
    """Describe the type of an option in words."""
    return "a sampler that seqdiff samplers lists" if hint is Sampler else describe(hint)


def _complaint(cls: type[Sampler], flags: Sequence[str]) -> str:
    """Name the first option that does not exist or has a wrong value; "" if there is none."""
    within: dict[str, type[Sampler]] = {}
    for name, value in read_flags(flags):
        key, (inner, dot, option) = _flag(name), name.rpartition(".")
        owner = within.get(inner) if dot else cls
        if owner is None:
            owner = _inner_class(cls, inner)
        known = {} if owner is None else inspect.signature(owner).parameters
        if option not in known:
            if not dot or owner is None:
                return f"unrecognized arguments: {key}={value}" if value else f"unrecognized {key}"
            choices = ", ".join(_flag(f"{inner}.{name}") for name in known)
            return f"{_flag(inner)} has no option {option}, only {choices}"
        assert owner is not None
        hint = get_type_hints(owner.__init__).get(option, object)
        reason = _misfit(hint, value)
        if reason is not None:
            return f"{key} must be {_kind(hint)}, got {value}{reason}"
        if hint is Sampler:
            within[option] = choose_sampler(value)
    return ""


def _inner_class(cls: type[Sampler], option: str) -> type[Sampler] | None:
    """Find the class of the sampler that an option holds by default."""
    parameter = inspect.signature(cls).parameters.get(option)
    default = None if parameter is None else parameter.default
    return type(default) if isinstance(default, Sampler) else None


def _misfit(hint: object, value: str) -> str | None:
    """Return why a value does not fit a type; ``None`` if it fits."""
    if hint is Sampler:
        try:
            choose_sampler(value)
        except ValueError:
            return ""
    for kind in get_args(hint) or (hint,):
        if kind is Callable or get_origin(kind) is Callable:
            if value in ("null", "none", "None") and NoneType in get_args(hint):
                return None
            try:
                return None if callable(import_path(value)) else ""
            except (ImportError, AttributeError, ValueError) as error:
                return f" ({one_line(str(error))}; --trust-code finds modules of this folder)"
    return "" if fits(hint, value) is False else None


def _options(cls: type[Sampler]) -> str:
    """List a sampler's options, and how the options of an inner sampler are written."""
    hints = get_type_hints(cls.__init__)
    inner = [name for name, hint in hints.items() if hint is Sampler]
    within = [f"those of its {name} sampler as in {_flag(name)}.temperature" for name in inner]
    return ", ".join([*map(_flag, inspect.signature(cls).parameters), *within])


def _import_path(part: str) -> str:
    """Replace the name of a sampler by its import path, for the parser."""
    key, equals, value = part.rpartition("=")
    cls = named_samplers().get(value.replace("-", "_"))
    return part if cls is None else f"{key}{equals}{cls.__module__}.{cls.__qualname__}"
