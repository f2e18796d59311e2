"""Build a sampler from its name and flags, and say what flags it takes: its constructor tells."""

from __future__ import annotations

import inspect
import re
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import NoneType
from typing import Literal, get_args, get_origin, get_type_hints

from jsonargparse import ArgumentParser

from seqdiff.run.config_files import one_line
from seqdiff.samplers import Sampler, find_sampler, named_samplers, sampler_name

_KINDS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
    object: "any value",
    Sampler: "a sampler that seqdiff samplers lists",
    Callable: "a function that can be imported, as module.function",
}


@dataclass(frozen=True)
class Option:
    """What a user should know of an option.

    Attributes:
        flag: As it is typed.
        kind: What it takes, in words.
        meaning: From the docstring of the sampler, or of a class that it is derived from.
        default: As it would be typed; ``None`` if the option must be given.
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
    module, _, attribute = name.rpartition(".")
    if not module:
        return find_sampler(name)
    try:
        cls = getattr(import_module(module), attribute)
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
        name: As ``seqdiff samplers`` lists it, or an import path.
        flags: Its options, ``--key value`` or ``--key=value``; a sampler within it by its name.

    Raises:
        ValueError: In one line, if there is no such sampler or option (with the choices), or a
            value does not fit.
    """
    cls = choose_sampler(name)
    parser = _parser(cls)
    try:
        parsed = parser.parse_args([_import_path(part) for part in flags])
    except ArgumentError as error:
        raise ValueError(
            f"sample.sampler {name}: {_complaint(cls, flags, one_line(str(error)))}; its options "
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
        flag = "--" + name.replace("_", "-")
        if hints.get(name) is Sampler:
            meaning += f" Its own options are spelled like {flag}.temperature."
        found.append(Option(flag, _kind(hints.get(name, object)), meaning, default))
    return found


def _parser(cls: type[Sampler]) -> ArgumentParser:
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(cls)
    return parser


def _kind(hint: object) -> str:
    """Say in words what an option takes."""
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    kinds = [kind for kind in get_args(hint) or (hint,) if kind is not NoneType]
    return " or ".join(_KINDS.get(kind, getattr(kind, "__name__", str(kind))) for kind in kinds)


def _complaint(cls: type[Sampler], flags: Sequence[str], message: str) -> str:
    """Say which value does not fit what, in place of what the parser says of its types."""
    keys = re.findall(r'Parser key "(\w+)"', message)
    inner = re.findall(r"class_path '([\w.]+)'", message)
    refused = re.search(r"Option '(\w+)' is not accepted", message)
    if refused and inner:
        within, known = ".".join(keys), inspect.signature(choose_sampler(inner[-1])).parameters
        return (
            f"--{within} has no option {refused[1]}, only "
            f"{', '.join(f'--{within}.{name}' for name in known)}"
        )
    option = ".".join(keys)
    given = [value for key, value in _pairs(flags) if key == f"--{option}"]
    owner = choose_sampler(inner[-1]) if len(keys) > 1 and inner else cls
    hint = get_type_hints(owner.__init__).get(keys[-1]) if keys else None
    if not given or hint is None:
        return re.sub(r"^error: ", "", message)
    why = re.search(r"No module named '[\w.]+'|has no attribute '\w+'", message)
    reason = f" ({why[0]}; PYTHONPATH=. finds what lies in this folder)" if why else ""
    return f"--{option} must be {_kind(hint)}, got {given[-1]}{reason}"


def _pairs(flags: Sequence[str]) -> list[tuple[str, str]]:
    """Read ``--key=value`` and ``--key value``."""
    found = []
    for flag, following in zip(flags, [*flags, ""][1:], strict=True):
        key, equals, value = flag.partition("=")
        found.append((key, value if equals else following))
    return found


def _options(cls: type[Sampler]) -> str:
    """List a sampler's options, and how those of a sampler within it are spelled."""
    hints = get_type_hints(cls.__init__)
    inner = [name for name, hint in hints.items() if hint is Sampler]
    within = [f"those of its {name} sampler as in --{name}.temperature" for name in inner]
    return ", ".join([*(f"--{name}" for name in inspect.signature(cls).parameters), *within])


def _import_path(part: str) -> str:
    """Spell the name of a sampler so that the parser can import it."""
    key, equals, value = part.rpartition("=")
    cls = named_samplers().get(value.replace("-", "_"))
    return part if cls is None else f"{key}{equals}{cls.__module__}.{cls.__qualname__}"
