"""Names of files in a configuration, made independent of the folder that a command is typed in."""

from __future__ import annotations

from importlib import import_module
from os.path import abspath
from pathlib import Path
from typing import Protocol, runtime_checkable

from jsonargparse import Namespace


@runtime_checkable
class Located(Protocol):
    """A class that a configuration names, some of whose arguments name files."""

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Whether a value of an argument is looked for as a file, a folder or a glob.

        Args:
            argument: Of the constructor.
            value: Perhaps a name of something else, say on a hub.
        """
        ...


def make_absolute(parsed: Namespace) -> None:
    """Replace relative names of files that are there by absolute ones, wherever a class has some.

    Args:
        parsed: A configuration; changed.
    """
    for value in vars(parsed).values():
        if not isinstance(value, Namespace):
            continue
        options = vars(value).get("init_args")
        if isinstance(options, Namespace):
            module, _, name = value["class_path"].rpartition(".")
            owner = getattr(import_module(module), name)
            for argument, given in vars(options).items():
                if isinstance(owner, Located):
                    options[argument] = _absolute(owner, argument, given)
        make_absolute(value)


def _absolute(owner: Located, argument: str, given: object) -> object:
    if isinstance(given, list):
        return [_absolute(owner, argument, one) for one in given]
    if isinstance(given, Path):
        return Path(str(_absolute(owner, argument, str(given))))
    if isinstance(given, str) and owner.is_path(argument, given):
        return abspath(Path(given).expanduser())
    return given
