"""Options that several commands share, and their checks, which come before slow imports."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, get_args

from cyclopts import Parameter

# The RUN or CONFIG of a command, followed by options that the command does not declare: keys of a
# configuration, or options of a sampler.
RunAndFlags = Annotated[str, Parameter(name="RUN", allow_leading_hyphen=True)]
ConfigAndFlags = Annotated[str, Parameter(name="CONFIG", allow_leading_hyphen=True)]
# Several values after one option: --lr 1e-3 2e-3.
Several = Parameter(
    consume_multiple=True, show_default=lambda values: " ".join(str(value) for value in values)
)
FlatOptions = Parameter(name="*")


def respell(flags: Sequence[str]) -> list[str]:
    """Write the keys of options with underscores; values stay."""
    words = []
    for word in flags:
        key, equals, value = word.partition("=")
        words.append("--" + key[2:].replace("-", "_") + equals + value if _is_key(key) else word)
    return words


def part(owner: str, words: Sequence[str], name: str = "RUN") -> tuple[Path, list[str]]:
    """Separate the arguments of a command from options that it does not declare.

    Args:
        owner: The command, for error messages.
        words: The command line without the options that the command declares.
        name: Name of its argument.

    Returns:
        The argument, and the other options as ``--key=value``, with underscores in keys.

    Raises:
        ValueError: If there is not exactly one argument.
    """
    found: list[str] = []
    flags: list[str] = []
    left = respell(words)
    while left:
        word = left.pop(0)
        if not _is_key(word):
            found.append(word)
            continue
        if "=" not in word and left and not left[0].startswith("--"):
            word += "=" + left.pop(0)
        flags.append(word)
    if len(found) != 1:
        got = ", ".join(map(repr, found)) or "none"
        raise ValueError(
            f"{owner} must be given one {name}, got {got}; see: seqdiff {owner} --help"
        )
    return Path(found[0]), flags


def _is_key(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def extend(function: Callable[..., Any], options: Mapping[str, type]) -> Callable[..., Any]:
    """Give a command the options of other packages as keyword arguments.

    Args:
        function: A command with a ``**`` parameter, which receives the arguments.
        options: Dataclasses by argument name. An argument is ``None`` if no option of its dataclass
            is given.
    """
    function.__dict__.pop("__signature__", None)
    signature = inspect.signature(function, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    added = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[kind | None, FlatOptions],
        )
        for name, kind in options.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
    function.__annotations__ = {p.name: p.annotation for p in [*own, *added]}
    return function


def check_spelling(
    owner: str, function: Callable[..., Any], flags: Sequence[str], others: Iterable[str]
) -> None:
    """Check options that a command does not declare against misspelt ones that it does.

    Args:
        owner: The command, for the message.
        function: Its function.
        flags: The options, ``--key=value``.
        others: Names of further options that are valid.

    Raises:
        ValueError: If an option is not valid and resembles another one.
    """
    names = {name.replace("_", "-") for name in (*_option_names(function), *others)}
    for flag in flags:
        key = flag.removeprefix("--").partition("=")[0].partition(".")[0].replace("_", "-")
        close = get_close_matches(key, names, 1)
        if key not in names and close:
            raise ValueError(
                f"{owner} has no option --{key}, did you mean --{close[0]}? see: seqdiff {owner} "
                "--help"
            )


def _option_names(function: Callable[..., Any]) -> list[str]:
    """List the options of a command, with those of its dataclasses."""
    names = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        hints = get_args(parameter.annotation)
        kinds = [kind for hint in hints for kind in get_args(hint) or (hint,)]
        inner = [kind for kind in kinds if is_dataclass(kind)]
        names += [f.name for kind in inner for f in fields(kind)] or [parameter.name]
    return names


def check_guidance(owner: str, strength: float | None) -> None:
    """Check the strength of guidance.

    Args:
        owner: The option, for the error message.
        strength: Strength of guidance; ``None`` without guidance.

    Raises:
        ValueError: If it is negative or not finite.
    """
    if strength is not None and not 0 <= strength < math.inf:
        raise ValueError(
            f"{owner} must be finite and at least 0, got {strength}; 1 samples given the condition"
        )


def parse_signals(owner: str, texts: Sequence[str]) -> dict[str, float]:
    """Read options of the form ``NAME=VALUE``.

    Args:
        owner: The option, for messages.
        texts: The options.

    Raises:
        ValueError: If one has another form, its value is not a finite number, or a name is given
            twice.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not (name and equals and math.isfinite(number)):
            raise ValueError(
                f"{owner} must be NAME=VALUE with a finite number, got {text!r}; write for "
                "example log2_expr=2.5"
            )
        if name in found:
            raise ValueError(f"{owner} must give each signal once, got {name!r} twice; drop one")
        found[name] = number
    return found
