"""Extensions of the command line that installed domains register by entry points.

- ``seqdiff.commands``: a list of ``Command``; the name of the entry is the domain's.
- ``seqdiff.sample_options``: a ``SampleOptions`` dataclass, whose fields become options of
  ``seqdiff sample``.
- ``seqdiff.writers``: writes samples; the name is a file suffix without its dot, the object a
  ``Writer``.
- ``seqdiff.templates``: reads templates for ``sample --infill``; the name is a file suffix without
  its first dot (``fa``, ``fa.gz``), the object a ``TemplateReader``.
- ``seqdiff.readers``: reads sequences to score; the name is the option that takes the file, the
  object a ``seqdiff.data.Reader`` dataclass.
- ``seqdiff.suites``: benchmarks for ``evaluate --suite``; the object a ``seqdiff.data.Suite``.
- ``seqdiff.models``: a trained model, a ``seqdiff.run.PackagedModel``; the name is the model's.
- ``seqdiff.hubs``: opens the folders of published networks; the name is their ``model_type``.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from seqdiff.data import Templates
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler, WordAutomaton


class Command(NamedTuple):
    """A command, imported when it is called.

    Attributes:
        name: As it is typed: one word, or two with a space between them.
        function: ``module:function``; its parameters and docstring are the command's options and
            help. The module imports what is slow inside the function.
        group: Heading of ``seqdiff --help``: Train, Evaluate, Generate, DNA, Text, or another.
        help: One line, with an example.
    """

    name: str
    function: str
    group: str
    help: str


@runtime_checkable
class SampleOptions(Protocol):
    """Options of ``seqdiff sample`` that a domain adds: a dataclass of keyword-only fields."""

    def check_infill(self) -> None:
        """Check that the options can go with a file of templates.

        Raises:
            ValueError: If they cannot.
        """
        ...

    def templates(self, run: Run, num: int, length: int) -> Templates | None:
        """Give a template for each sequence; ``None`` if the options ask for none.

        Raises:
            ValueError: If the options do not fit the run.
        """
        ...

    def words(self, run: Run) -> WordAutomaton | None:
        """Give the words that no sequence may hold; ``None`` if there are none.

        Raises:
            ValueError: If the options do not fit the run.
        """
        ...

    def modify(self, run: Run, sampler: Sampler) -> Run:
        """Change the model before anything is drawn.

        Raises:
            ValueError: If the options do not fit the run or the sampler.
        """
        ...


@runtime_checkable
class Writer(Protocol):
    """Writes decoded samples to a path, which is moved into place when this returns."""

    def __call__(self, path: Path, sequences: Iterable[str], names: Iterable[str]) -> None:
        """Write the whole file, each sequence when it is drawn."""
        ...


@runtime_checkable
class TemplateReader(Protocol):
    """Reads the templates of a file: strings for the run's ``ConstraintTokenizer.allowed``."""

    def __call__(self, path: Path) -> list[tuple[str, str]]:
        """Read the names and the strings, at least one; names are unique, without line breaks.

        Raises:
            ValueError: If the file is not valid.
        """
        ...


def command_line(*arguments: str | Path) -> str:
    """Format a command that can be pasted into the same shell, with the trust of this one."""
    from seqdiff.run import trust_options

    called = Path(sys.argv[0])
    program = [sys.executable, "-m", "seqdiff.cli"]
    if called.name == "seqdiff":
        found = shutil.which("seqdiff")
        on_path = found is not None and Path(found).resolve() == called.resolve()
        program = ["seqdiff" if on_path else sys.argv[0]]
    return shlex.join([*program, *map(str, arguments), *trust_options()])


def list_writers() -> list[str]:
    """List the suffixes of the files that samples can be written to."""
    return sorted(f".{entry.name}" for entry in entry_points(group="seqdiff.writers"))


def find_writer(path: Path) -> Writer:
    """Choose the writer of a file by its suffix.

    Raises:
        ValueError: If there is none; with those there are.
    """
    known = {entry.name: entry for entry in entry_points(group="seqdiff.writers")}
    suffix = path.suffix.removeprefix(".")
    if suffix not in known:
        raise ValueError(
            f"sample.out must end in one of {', '.join(list_writers())}, got {path}; rename it"
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
