"""FASTA files of proteins: samples out, templates and sequences to score in."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from seqdiff.data import Record, Tokenizer
from seqdiff.files import is_gzip

SUFFIXES = ("fa", "faa", "fasta")
_WIDTH = 60


def read_fasta(path: Path) -> list[tuple[str, str]]:
    """Read the names and sequences of a FASTA file, plain or gzip; a final ``*`` is dropped.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not FASTA, has no record, or a record has no name, no sequence or the
            name of another.
    """
    from Bio.SeqIO.FastaIO import SimpleFastaParser

    if not path.is_file():
        raise FileNotFoundError(f"{path}: must be an existing FASTA file; check the path")
    opened = gzip.open if is_gzip(path) else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            text = file.read()
    except (EOFError, gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: must be plain or gzip text ({error}); fetch it again") from error
    lines = text.lstrip().splitlines()
    if not lines or not lines[0].startswith(">"):
        got = repr(lines[0][:20]) if lines else "an empty file"
        raise ValueError(f"{path}: must begin with a > and a name, got {got}; give a FASTA file")
    records: dict[str, str] = {}
    for number, (title, sequence) in enumerate(SimpleFastaParser(iter(lines)), start=1):
        name = (title.split() or [""])[0]
        if not name or name in records:
            got = f"{name!r} twice" if name else "none"
            raise ValueError(
                f"{path}: record {number} must have a name of its own, got {got}; rename it"
            )
        records[name] = sequence.removesuffix("*")
        if not records[name]:
            raise ValueError(f"{path}: record {name!r} must have residues, got none; remove it")
    return list(records.items())


def write_samples(path: Path, sequences: Iterable[str], names: Iterable[str]) -> None:
    """Write generated proteins for ``seqdiff sample``, each when it is drawn.

    Raises:
        ValueError: If a sequence is not a protein.
    """
    from seqdiff_proteins.alphabet import ProteinTokenizer

    known = ProteinTokenizer(gaps=True)
    with path.open("w", encoding="utf-8") as file:
        for name, sequence in zip(names, sequences, strict=True):
            known.encode(sequence)
            lines = [sequence[i : i + _WIDTH] for i in range(0, len(sequence), _WIDTH)]
            file.write("\n".join([f">{name}", *lines, ""]))


def read_templates(path: Path) -> list[tuple[str, str]]:
    """Read templates for ``seqdiff sample --infill``: X, B, Z and J are filled.

    Raises:
        ValueError: See ``read_fasta``.
    """
    return read_fasta(path)


@dataclass(frozen=True, kw_only=True)
class ProteinReader:
    """Reads proteins for ``seqdiff score``.

    Attributes:
        protein_fasta: FASTA file of proteins, plain or gzip, or a folder or glob of them; X, B, Z
            and J are context and not counted.
    """

    protein_fasta: Path | None = None
    suffixes: ClassVar = SUFFIXES

    def read(self, files: Sequence[Path], tokenizer: Tokenizer) -> list[Record]:
        """Read the records.

        Raises:
            ValueError: If the run is not on proteins, a file or a sequence is not valid, or a name
                occurs in two files.
        """
        from seqdiff_proteins.alphabet import check_proteins

        check_proteins("score.protein_fasta", tokenizer)
        records: dict[str, Record] = {}
        for path in files:
            for name, sequence in read_fasta(path):
                if name in records:
                    raise ValueError(f"{path}: record {name!r} is in another file too; rename it")
                try:
                    records[name] = Record(name, (tokenizer.encode(sequence),))
                except ValueError as error:
                    raise ValueError(f"{path}: record {name!r}: {error}") from None
        return list(records.values())
