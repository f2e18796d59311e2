"""Suites: sets that a run is evaluated on in place of its own splits, beside published numbers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from seqdiff.data.datamodule import SequenceDataModule
from seqdiff.data.dataset import SequenceDataset


@dataclass(frozen=True)
class SuiteSet:
    """An available set, read as a run reads its own data.

    Attributes:
        name: Its name in reports.
        origin: Where it was found and what is special about it, for a line of a report.
        dataset: Its rows.
        num_documents: Documents that the rows are cut from.
        units_per_token: Units, see ``Suite``, of the whole set over its counted tokens; ``None`` if
            the rows leave something out.
        published: Perplexity a token of each of the suite's models.
    """

    name: str
    origin: str
    dataset: SequenceDataset
    num_documents: int
    units_per_token: float | None
    published: dict[str, float]


class UnfitSet(NamedTuple):
    """An available set that a run's tokenizer cannot encode.

    Attributes:
        name: Its name in reports.
        origin: Where it was found.
        reason: What cannot be encoded, and where.
        published: See ``SuiteSet``.
    """

    name: str
    origin: str
    reason: str
    published: dict[str, float]


class MissingSet(NamedTuple):
    """A set that is not available.

    Attributes:
        name: Its name in reports.
        place: The path where it is looked for.
        reason: Why no other source is available; empty if the path is the only one.
    """

    name: str
    place: str
    reason: str = ""


@runtime_checkable
class Suite(Protocol):
    """Finds the sets of a benchmark.

    Attributes:
        models: Models with published numbers, in the order of the columns.
        unit: Something countable that does not depend on a tokenizer, e.g. ``byte``.
    """

    models: tuple[str, ...]
    unit: str

    def find(
        self, data: SequenceDataModule, folder: Path | None
    ) -> tuple[list[SuiteSet | UnfitSet], list[MissingSet]]:
        """Open the available sets.

        Args:
            data: Data of the run, for its tokenizer and the length of its rows.
            folder: Folder with copies of the sets; ``None`` for the suite's default.

        Raises:
            ValueError: If the data is of another domain, or a set is damaged.
        """
        ...

    def notes(self, data: SequenceDataModule) -> tuple[str, ...]:
        """Explain how rows are cut, which positions count, and what is not comparable.

        Args:
            data: Data of the run.
        """
        ...


def suite_names() -> list[str]:
    """List the installed suites."""
    return sorted(entry.name for entry in entry_points(group="seqdiff.suites"))


def find_suite(name: str) -> Suite:
    """Load a suite.

    Raises:
        ValueError: If there is none of that name.
    """
    for entry in entry_points(group="seqdiff.suites"):
        if entry.name == name:
            return entry.load()
    raise ValueError(
        f"evaluate.suite must be one of {', '.join(suite_names()) or 'none, as none is installed'},"
        f" got {name!r}; choose one"
    )
