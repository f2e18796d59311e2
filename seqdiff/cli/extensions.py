"""Extensions of the command line that installed domains register by entry points.

Several domains may register commands of one name, or a writer or reader for one file suffix. For a
run, seqdiff then uses those of the package that its data module or tokenizer comes from. The page
``docs/how-to/domain.md`` explains all of them with an example.

- ``seqdiff.components``: a package whose classes configurations may name.
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
- ``seqdiff.mutagenesis``: computes the effects of all substitutions of a sequence for ``seqdiff
  playground``; the object a ``Mutagenesis``.
- ``seqdiff.hubs``: opens the folders of published networks; the name is their ``model_type``.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float64

    from seqdiff.data import Templates
    from seqdiff.run import Engine, Run
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


@runtime_checkable
class Mutagenesis(Protocol):
    """Computes the effects of all substitutions of a sequence."""

    def __call__(self, run: Run, sequence: str, engine: Engine) -> Float64[np.ndarray, "L K"]:
        """Return the effect in nats of each id at each token; NaN where it has none.

        Raises:
            ValueError: If the run or the sequence cannot be used.
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
    return sorted({f".{entry.name}" for entry in entry_points(group="seqdiff.writers")})


def find_writer(path: Path, run: Path | str) -> Writer:
    """Choose the writer of a file by its suffix and, among several, by the domain of the run.

    Args:
        path: The file.
        run: The run that is sampled.

    Raises:
        ValueError: If there is none; with those there are.
    """
    suffix = path.suffix.removeprefix(".")
    fits = [entry for entry in entry_points(group="seqdiff.writers") if entry.name == suffix]
    if not fits:
        raise ValueError(
            f"sample.out must end in one of {', '.join(list_writers())}, got {path}; rename it"
        )
    return _of_run(f"sample.out {path}", fits, run).load()


def find_template_reader(path: Path, run: Path | str) -> TemplateReader:
    """Choose the reader of a template file by its suffix and, among several, by the run's domain.

    Args:
        path: The file.
        run: The run that is sampled.

    Raises:
        ValueError: If there is none; with those there are.
    """
    known = list(entry_points(group="seqdiff.templates"))
    names = {entry.name for entry in known}
    fits = [name for name in names if path.name.endswith("." + name)]
    if not fits:
        raise ValueError(
            f"sample.infill must end in one of {', '.join('.' + name for name in sorted(names))}, "
            f"got {path}; rename it"
        )
    suffix = max(fits, key=len)
    readers = [entry for entry in known if entry.name == suffix]
    return _of_run(f"sample.infill {path}", readers, run).load()


def sample_options(run: Path | str) -> list[type]:
    """List the options of ``seqdiff sample`` that the domain of a run adds."""
    return [entry.load() for entry in _own(run, group="seqdiff.sample_options")]


def find_mutagenesis(run: Path | str) -> Mutagenesis | None:
    """Find the mutagenesis of a run's domain; ``None`` if it has none."""
    own = _own(run, group="seqdiff.mutagenesis")
    return own[0].load() if own else None


def _own(run: Path | str, *, group: str) -> list[Any]:
    """List the entry points of a group that are of the domain of a run."""
    from seqdiff.run import run_packages

    packages = run_packages(run)
    return [entry for entry in entry_points(group=group) if top_package(entry.value) in packages]


def _of_run(owner: str, fits: list[Any], run: Path | str) -> Any:
    """Choose among entry points of several domains that of the domain that a run belongs to.

    Raises:
        FileNotFoundError: If there is no such run.
        ValueError: If the run belongs to none of them.
    """
    if len(fits) == 1:
        return fits[0]
    from seqdiff.run import run_packages

    packages, of_run = {top_package(entry.value): entry for entry in fits}, run_packages(run)
    own = [entry for name, entry in packages.items() if name in of_run]
    if len(own) != 1:
        raise ValueError(
            f"{owner} must be a file for the domain of {run}, got a suffix of "
            f"{' and '.join(sorted(packages))}; choose another suffix"
        )
    return own[0]


def top_package(path: str) -> str:
    """Return the top-level package of ``package.module:name``."""
    return path.partition(":")[0].partition(".")[0]
