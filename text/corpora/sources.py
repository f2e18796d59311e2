"""Sources of documents in a configuration: files or a published corpus."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from glob import glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from seqdiff.data import Split
from seqdiff.files import content_digest
from text.corpora.detokenizers import DETOKENIZERS
from text.corpora.documents import SUFFIXES, Reading, kind, read_documents
from text.corpora.published import PUBLISHED, hub_documents, load_from_hub, local_copy

if TYPE_CHECKING:
    from datasets import Dataset


class Source(ABC):
    """Documents in a fixed order."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Name of the source in messages and the progress bar."""

    @abstractmethod
    def documents(self) -> Iterator[str]:
        """Stream the documents."""

    @abstractmethod
    def identity(self, folder: Path) -> list[str]:
        """Return strings that change when the content changes.

        Args:
            folder: Folder in which digests of files are cached.
        """


@dataclass(frozen=True)
class Files(Source):
    """Files of one or more kinds.

    Attributes:
        paths: Paths, in the order in which they are read.
        reading: How documents are read from them.
    """

    paths: tuple[Path, ...]
    reading: Reading

    @property
    def name(self) -> str:
        """The first file, and the number of others."""
        first, *others = self.paths
        return f"{first} and {len(others)} more" if others else str(first)

    @override
    def documents(self) -> Iterator[str]:
        for path in self.paths:
            yield from read_documents(path, self.reading)

    @override
    def identity(self, folder: Path) -> list[str]:
        options: list[str] = []
        for path in self.paths:
            txt = kind(path) == ".txt"
            options += [kind(path), self.reading.document if txt else self.reading.field]
            options.append(self.reading.edges)
            options.append(content_digest(path, folder))
        return ["files", *options]


@dataclass(frozen=True)
class Hub(Source):
    """A split of a published corpus, loaded by ``datasets``.

    Attributes:
        corpus: Its name in ``PUBLISHED``.
        split: One of its ``splits``.
    """

    corpus: str
    split: Split

    @property
    def name(self) -> str:
        """Corpus and split."""
        return f"{self.corpus}, {self.split}"

    @cached_property
    def _opened(self) -> Dataset:
        return load_from_hub(self.corpus, self.split)

    @override
    def documents(self) -> Iterator[str]:
        facts = PUBLISHED[self.corpus]
        return hub_documents(self._opened, facts.column, facts.edges)

    def identity(self, folder: Path) -> list[str]:
        """Return strings that include the fingerprint of ``datasets``."""
        del folder
        facts, opened = PUBLISHED[self.corpus], self._opened
        options = [facts.hub, facts.config, facts.column, facts.edges]
        return ["hub", *options, str(len(opened)), opened._fingerprint]


@dataclass(frozen=True)
class Part:
    """A slice of the documents of a source, with their detokenizer.

    Attributes:
        source: The source.
        detokenizer: A key of ``DETOKENIZERS``.
        first: Start of the slice, as in Python.
        last: End of the slice, exclusive; ``None`` is the end of the source.
    """

    source: Source
    detokenizer: str = "none"
    first: int | None = None
    last: int | None = None


def find_part(
    split: Split, given: str | Sequence[str], reading: Reading, detokenizer: str | None
) -> Part:
    """Find the documents of a split in a configuration.

    Args:
        split: The split.
        given: A key of ``PUBLISHED``, or one or more files or globs.
        reading: How documents are read from files.
        detokenizer: A key of ``DETOKENIZERS``; ``None`` means the detokenizer of the published
            corpus, or none for other files.

    Raises:
        FileNotFoundError: If a file does not exist or a glob matches no file.
        ValueError: If the format of a file is unknown, or the corpus has no such split.
    """
    if detokenizer is not None and detokenizer not in DETOKENIZERS:
        raise ValueError(
            f"data.detokenizer must be one of {', '.join(DETOKENIZERS)}, got {detokenizer!r}; "
            "choose one of these, or null for the detokenizer of the published corpus"
        )
    if isinstance(given, str) and given in PUBLISHED and not Path(given).exists():
        part = published_part(split, given, reading)
        return part if detokenizer is None else replace(part, detokenizer=detokenizer)
    paths = _match(split, [given] if isinstance(given, str) else given)
    return Part(Files(paths, reading), detokenizer or "none")


def published_split(given: object, split: Split) -> str | None:
    """Return ``given`` if it names a published corpus that has the split, else ``None``."""
    if isinstance(given, str) and given in PUBLISHED and not Path(given).exists():
        return given if PUBLISHED[given].slice(split) is not None else None
    return None


def published_part(split: Split, name: str, reading: Reading) -> Part:
    """Find a split of a published corpus, in the cache folder or else on the hub.

    Args:
        split: The split.
        name: A key of ``PUBLISHED``.
        reading: How documents are read from a copy; the field is that of the corpus.

    Raises:
        ValueError: If the corpus has no such split.
    """
    facts = PUBLISHED[name]
    wanted = facts.slice(split)
    if wanted is None:
        there = [s for s in ("train", "valid", "test") if facts.slice(s) is not None]
        raise ValueError(
            f"data.{split} must be a corpus with a {split} split, got {name!r}, which only has "
            f"{', '.join(there)}; remove data.{split}, or set it to files"
        )
    found = sorted(
        path
        for path in local_copy(name).glob(f"{wanted.split}*")
        if path.is_file() and set(path.suffixes) & set(SUFFIXES)
    )
    source = Hub(name, wanted.split)
    if found:
        source = Files(tuple(found), replace(reading, field=facts.column, edges=facts.edges))
    return Part(source, facts.detokenizer, wanted.first, wanted.last)


def _match(split: Split, patterns: Sequence[str]) -> tuple[Path, ...]:
    """List the files that patterns match, each once, in the order of the patterns."""
    found: dict[Path, None] = {}
    for pattern in patterns:
        plain = Path(pattern).expanduser()
        if plain.is_dir():
            raise ValueError(
                f"data.{split} must be files, got the folder {pattern}; give a glob such as "
                f"{plain / '*.txt'}"
            )
        matched = [plain] if plain.is_file() else []
        if not matched and has_magic(pattern):
            candidates = sorted(glob(str(plain), recursive=True))
            matched = [Path(path) for path in candidates if Path(path).is_file()]
        if not matched:
            raise FileNotFoundError(
                f"data.{split} must be a file, a glob that matches files, or one of "
                f"{', '.join(PUBLISHED)}, got {pattern!r}, which matches nothing; check the path"
            )
        found |= dict.fromkeys(matched)
    if not found:
        raise ValueError(f"data.{split} must be at least one file, got none; add a file")
    for path in found:
        kind(path)
    return tuple(found)
