"""What a subcommand of the command line is, for the core and for the domains alike.

A package adds a subcommand with an entry point in the group ``seqdiff.commands`` whose name is the
subcommand and whose object is a ``Command`` (an instance, or a module with the same three names).
File formats are added alike:

- ``seqdiff.writers``, to write samples: the name is a file suffix without its dot, the object a
  ``Writer``;
- ``seqdiff.templates``, for ``sample --infill``: the name is a file suffix without its first dot
  (``fa``, ``fa.gz``), the object a ``TemplateReader``;
- ``seqdiff.readers``, to score: the name is the flag that takes the file, the object a
  ``seqdiff.data.Reader``.

Benchmarks are added in the group ``seqdiff.suites``, for ``evaluate --suite``: the name is that of
the suite, the object a ``seqdiff.data.Suite``.
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
        """Declare the arguments.

        With ``parser.set_defaults(flags=[])`` options that are not declared are no error: ``flags``
        holds them as ``--key=value``, for what the command configures, such as a sampler.
        """
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


@runtime_checkable
class TemplateReader(Protocol):
    """Reads the templates of a file: strings for the run's ``ConstraintTokenizer.allowed``."""

    def __call__(self, path: Path) -> list[tuple[str, str]]:
        """Read the names and the strings, at least one; names are unique, without line breaks.

        Raises:
            ValueError: If the file is not sound.
        """
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


def find_template_reader(path: Path) -> TemplateReader:
    """Choose the reader of a template file by its suffix.

    Raises:
        ValueError: If there is none; with those there are.
    """
    known = {entry.name: entry for entry in entry_points(group="seqdiff.templates")}
    fits = [name for name in known if path.name.endswith("." + name)]
    if not fits:
        raise ValueError(
            f"sample.infill must end in one of {', '.join('.' + name for name in sorted(known))}, "
            f"got {path}; rename it"
        )
    return known[max(fits, key=len)].load()
