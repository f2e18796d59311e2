"""Readers of files of sequences to score. Importing this module imports nothing slow."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from seqdiff.files import expand_files, has_suffix

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
        reversed: For each reading, whether it has the reverse order of the record in its file;
            empty if none has.
    """

    name: str
    readings: tuple[Integer[np.ndarray, " L"], ...]
    content: Integer[np.ndarray, " L"] | None = None
    mirrored: tuple[bool, ...] = ()
    reversed: tuple[bool, ...] = ()


@runtime_checkable
class Reader(Protocol):
    """Options of ``seqdiff score`` that read files of sequences: a keyword-only dataclass.

    The field with the name of the entry point takes a file, a folder or a glob; other fields are
    options of the format. ``read`` imports what is slow.

    Attributes:
        suffixes: Suffixes of the files, without dots; ``.gz`` may follow them.
    """

    suffixes: ClassVar[tuple[str, ...]]

    def read(self, files: Sequence[Path], tokenizer: Tokenizer) -> list[Record]:
        """Read whole files, at least one record, as if they were one file.

        Args:
            files: Existing files.
            tokenizer: Tokenizer of the run that will score the records.

        Raises:
            ValueError: If a file is not valid, or the tokenizer is not for such files.
        """
        ...


@runtime_checkable
class TrackWriter(Protocol):
    """A ``Reader`` whose domain has files for a value at each position of a sequence."""

    def check_tracks(self, path: Path, files: Sequence[Path]) -> None:
        """Check, before slow work, that ``write_tracks`` can write a file.

        Raises:
            OSError: If it cannot be written.
            ValueError: If the name has another ending, a library is not installed, or two sequences
                of the files would be in the same place.
        """
        ...

    def write_tracks(
        self, path: Path, files: Sequence[Path], values: Mapping[str, np.ndarray]
    ) -> None:
        """Write the values of each sequence of the files, by its name; NaN where there is none."""
        ...


def choose_reader(
    given: Sequence[Path], packages: Callable[[], Collection[str]]
) -> tuple[str, list[Path]]:
    """Find the files to score, and choose their reader by their suffix.

    Args:
        given: Files, folders and globs.
        packages: Names the packages whose readers are chosen; called if several are for such files.

    Returns:
        The option that takes such files, see ``find_readers``, and the files in order.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If no reader is for all of them; lists the suffixes.
    """
    kinds = find_readers()
    suffixes = list(dict.fromkeys(s for kind in kinds.values() for s in kind.suffixes))
    files = expand_files("score.file", given, suffixes)
    fits = [
        [name for name, kind in kinds.items() if has_suffix(file, kind.suffixes)] for file in files
    ]
    for file, names in zip(files, fits, strict=True):
        if not names:
            known = ", ".join("." + suffix for suffix in suffixes)
            raise ValueError(
                f"score.file must end in one of {known}, perhaps with .gz, got {file}; rename it"
            )
        if names != fits[0]:
            raise ValueError(
                f"score.file must be files of one format, got {files[0]} and {file}; score them "
                "separately"
            )
    if len(fits[0]) == 1:
        return fits[0][0], files
    wanted = packages()
    own = [name for name in fits[0] if kinds[name].__module__.partition(".")[0] in wanted]
    if len(own) != 1:
        flags = " or ".join(f"--{name.replace('_', '-')}" for name in fits[0])
        raise ValueError(
            f"score.file must be files for the domain of the run, got {files[0]}, which several "
            f"domains read; name it by {flags}"
        )
    return own[0], files


def find_readers() -> dict[str, type[Any]]:
    """Load the class of every installed ``Reader``, by the option that takes its files."""
    found = sorted(entry_points(group="seqdiff.readers"), key=lambda entry: entry.name)
    return {entry.name: entry.load() for entry in found}
