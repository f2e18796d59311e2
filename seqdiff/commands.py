"""What a subcommand of the command line is, for the core and for the domains alike.

A package adds a subcommand with an entry point in the group ``seqdiff.commands`` whose name is the
subcommand and whose object is a ``Command`` (an instance, or a module with the same three names),
a sample format with one in the group ``seqdiff.writers`` whose name is a file suffix without its
dot and whose object is a ``Writer``, and a file format to score with one in the group
``seqdiff.readers`` whose name is the flag that takes the file and whose object is a
``seqdiff.data.reader.Reader``.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol, runtime_checkable


@runtime_checkable
class Command(Protocol):
    """One subcommand. Import what is slow in ``run``, so that ``--help`` stays fast."""

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""
        ...

    def run(self, args: argparse.Namespace) -> None:
        """Do it.

        Raises:
            ValueError: In one line: shown without a traceback, exit code 2; so are ``TypeError``,
                ``OSError`` and ``ArithmeticError``.
        """
        ...


@runtime_checkable
class Writer(Protocol):
    """Writes decoded samples to a path, which is moved into place when this returns."""

    def __call__(self, path: Path, sequences: list[str], names: list[str]) -> None:
        """Write the whole file."""
        ...


def command_line(*arguments: str | Path) -> str:
    """Spell a command that works when pasted where this one ran.

    Args:
        arguments: What follows the program's name, unquoted.
    """
    called = Path(sys.argv[0])
    program = [sys.executable, "-m", "seqdiff.cli"]
    if called.name == "seqdiff":
        found = shutil.which("seqdiff")
        on_path = found is not None and Path(found).resolve() == called.resolve()
        program = ["seqdiff" if on_path else sys.argv[0]]
    return shlex.join([*program, *map(str, arguments)])


def find_writer(path: Path) -> Writer:
    """Choose the writer of a file by its suffix.

    Raises:
        ValueError: If there is none; with those there are.
    """
    known = {entry.name: entry for entry in entry_points(group="seqdiff.writers")}
    suffix = path.suffix.removeprefix(".")
    if suffix not in known:
        raise ValueError(
            f"sample.out must end in one of {', '.join('.' + name for name in sorted(known))}, "
            f"got {path}; rename it"
        )
    return known[suffix].load()
