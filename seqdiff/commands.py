"""What a subcommand of the command line is, for the core and for the domains alike.

A package adds a subcommand with an entry point in the group ``seqdiff.commands`` whose name is the
subcommand and whose object is a ``Command`` (an instance, or a module with the same three names),
a sample format with one in the group ``seqdiff.writers`` whose name is a file suffix without its
dot and whose object is a ``Writer``, and a file format to score with one in the group
``seqdiff.readers`` whose name is the flag that takes the file and whose object is a ``Reader``.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Integer

    from seqdiff.data.tokenizer import Tokenizer


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


class Record(NamedTuple):
    """A sequence to score.

    Attributes:
        name: Without tabs and line breaks.
        readings: Ids in ``0..K`` of each way to read it, all equally long; their likelihoods are
            averaged. One for most; a DNA record may be read on both strands.
    """

    name: str
    readings: tuple[Integer[np.ndarray, " L"], ...]


@runtime_checkable
class Reader(Protocol):
    """Reads the sequences of a file; import what is slow in ``read``."""

    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare further arguments of the format, if it has any."""
        ...

    def read(self, path: Path, args: argparse.Namespace, tokenizer: Tokenizer) -> list[Record]:
        """Read the whole file, at least one record.

        Args:
            path: An existing file.
            args: What was given on the command line.
            tokenizer: Of the run that will score the records.

        Raises:
            ValueError: If the file is not sound, or the tokenizer is not for such files.
        """
        ...


def find_readers() -> dict[str, Reader]:
    """Load every installed reader, by the flag that takes its file."""
    found = sorted(entry_points(group="seqdiff.readers"), key=lambda entry: entry.name)
    return {entry.name: entry.load() for entry in found}


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
