"""Readers of files of sequences to score. Importing this module imports nothing slow."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Integer

    from seqdiff.data.tokenizer import Tokenizer


class Record(NamedTuple):
    """A sequence to score.

    Attributes:
        name: Without tabs and line breaks.
        readings: Ids in ``0..K`` of each way to read it, all equally long; their likelihoods are
            averaged. One for most; a DNA record may be read on both strands.
        content: Ids that seed the noise of the record; ``None`` takes the first reading. Two
            records of the same molecule, such as both strands, share ``content`` so that the same
            tokens are masked in both.
        mirrored: For each reading, whether it has the reverse order of ``content``, so that its
            noise is reversed; empty if none has.
    """

    name: str
    readings: tuple[Integer[np.ndarray, " L"], ...]
    content: Integer[np.ndarray, " L"] | None = None
    mirrored: tuple[bool, ...] = ()


@runtime_checkable
class Reader(Protocol):
    """Options of ``seqdiff score`` that read a file of sequences: a keyword-only dataclass.

    The field with the name of the entry point takes the file; other fields are options of the
    format. ``read`` imports what is slow.

    Attributes:
        suffixes: Suffixes of the files, without dots; ``.gz`` may follow them.
    """

    suffixes: ClassVar[tuple[str, ...]]

    def read(self, path: Path, tokenizer: Tokenizer) -> list[Record]:
        """Read the whole file, at least one record.

        Args:
            path: An existing file.
            tokenizer: Tokenizer of the run that will score the records.

        Raises:
            ValueError: If the file is not valid, or the tokenizer is not for such files.
        """
        ...


def choose_reader(file: Path) -> str:
    """Choose the reader of a file by its suffix.

    Returns:
        The option that takes such files, see ``find_readers``.

    Raises:
        ValueError: If there is none; lists the suffixes.
    """
    kinds = find_readers()
    plain = file.with_suffix("") if file.suffix in (".gz", ".bgz") else file
    fits = [name for name, kind in kinds.items() if plain.suffix.lstrip(".") in kind.suffixes]
    if not fits:
        known = ", ".join("." + s for kind in kinds.values() for s in kind.suffixes)
        raise ValueError(
            f"score.file must end in one of {known}, perhaps with .gz, got {file}; rename it"
        )
    return fits[0]


def find_readers() -> dict[str, type[Any]]:
    """Load the class of every installed ``Reader``, by the option that takes its file."""
    found = sorted(entry_points(group="seqdiff.readers"), key=lambda entry: entry.name)
    return {entry.name: entry.load() for entry in found}
