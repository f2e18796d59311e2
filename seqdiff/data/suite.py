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
    """A set that is at hand, read as a run reads its own data.

    Attributes:
        name: What reports call it.
        origin: Where it lies and what is peculiar about it, for a line of a report.
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
    """A set that is at hand and that a run's tokenizer cannot spell.

    Attributes:
        name: What reports call it.
        origin: Where it lies.
        reason: What cannot be spelled, and where.
        published: See ``SuiteSet``.
    """

    name: str
    origin: str
    reason: str
    published: dict[str, float]


class MissingSet(NamedTuple):
    """A set that is not at hand.

    Attributes:
        name: What reports call it.
        place: The path that would be used.
        reason: Why nothing else is at hand; empty if that is where it is looked for alone.
    """

    name: str
    place: str
    reason: str = ""


@runtime_checkable
class Suite(Protocol):
    """Finds the sets of a benchmark.

    Attributes:
        models: Whose published numbers there are, in the order of the columns.
        unit: Something countable that does not depend on a tokenizer, e.g. ``byte``.
    """

    models: tuple[str, ...]
    unit: str

    def find(
        self, data: SequenceDataModule, folder: Path | None
    ) -> tuple[list[SuiteSet | UnfitSet], list[MissingSet]]:
        """Open what is at hand.

        Args:
            data: Of the run: its tokenizer and the shape of its rows are used.
            folder: That holds copies of the sets; ``None`` leaves it to the suite where to look.

        Raises:
            ValueError: If the data is of another domain, or a set is not sound.
        """
        ...

    def notes(self, data: SequenceDataModule) -> tuple[str, ...]:
        """Say how rows are cut, which positions count, and what does not compare.

        Args:
            data: Of the run.
        """
        ...


def suite_names() -> list[str]:
    """List the installed suites."""
    return sorted(entry.name for entry in entry_points(group="seqdiff.suites"))


def find_suite(name: str) -> Suite:
    """Load a suite.

    Raises:
        ValueError: If there is none of that name; with those there are.
    """
    for entry in entry_points(group="seqdiff.suites"):
        if entry.name == name:
            return entry.load()
    raise ValueError(
        f"evaluate.suite must be one of {', '.join(suite_names()) or 'none, as none is installed'},"
        f" got {name!r}; choose one"
    )
