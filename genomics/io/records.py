"""The reader for ``seqdiff score --fasta``: records on one strand or on both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from seqdiff.data import Record

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8

    from seqdiff.data import Tokenizer


FASTA_SUFFIXES = ("fa", "fasta", "fna")


@dataclass(frozen=True, kw_only=True)
class FastaReader:
    """A ``seqdiff.data.Reader`` of FASTA files.

    Attributes:
        fasta: FASTA file, plain, gzip or bgzip, or a folder or glob of them; N and IUPAC codes are
            context and not counted.
        rc: mean scores both strands and averages their nats.
    """

    fasta: Path | None = None
    rc: Literal["none", "mean"] = "none"
    suffixes: ClassVar = FASTA_SUFFIXES

    def read(self, files: Sequence[Path], tokenizer: Tokenizer) -> list[Record]:
        """Read the records.

        Raises:
            ValueError: If the model is not one of DNA, a file is not valid FASTA, or a name occurs
                in two files.
        """
        from genomics.io.fasta import read_records
        from genomics.sequence import DNATokenizer

        if tokenizer.fingerprint != DNATokenizer().fingerprint:
            raise ValueError(
                f"score.fasta must be scored by a model of DNA, got a run whose tokenizer is "
                f"{tokenizer.fingerprint}; choose another run"
            )
        both = self.rc == "mean"
        return [_record(name, ids, both=both) for _, name, ids in read_records(files)]


def _record(name: str, ids: UInt8[np.ndarray, " L"], *, both: bool) -> Record:
    """Build a record; its content is the strand that sorts first, so strands share their noise."""
    from genomics.sequence import reads_backwards, reverse_complement

    opposite, mirrored = reverse_complement(ids), reads_backwards(ids)
    content, other = (opposite, ids) if mirrored else (ids, opposite)
    if both:
        return Record(name, (content, other), content, (False, True))
    return Record(name, (ids,), content, (mirrored,))
