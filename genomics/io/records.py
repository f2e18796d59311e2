"""The reader for ``seqdiff score --fasta``: records on one strand or on both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from seqdiff.data import CountingTokenizer, Record

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float64, UInt8

    from genomics.io.genome import Genome
    from genomics.sequence import Interval
    from seqdiff.data import Tokenizer


FASTA_SUFFIXES = ("fa", "fasta", "fna", "faa")
# Units of tokenizers whose strings are written in FASTA.
FASTA_UNITS = ("base", "residue")


@dataclass(frozen=True, kw_only=True)
class FastaReader:
    """A ``seqdiff.data.Reader`` of FASTA files.

    Attributes:
        fasta: FASTA file, plain, gzip or bgzip, or a folder or glob of them; N and IUPAC codes are
            context and not counted.
        bed: BED file of intervals of --fasta, which is then one genome: each interval is a record,
            read from its strand.
        rc: mean scores both strands and averages their nats.
    """

    fasta: Path | None = None
    bed: Path | None = None
    rc: Literal["none", "mean"] = "none"
    suffixes: ClassVar = FASTA_SUFFIXES

    def read(self, files: Sequence[Path], tokenizer: Tokenizer) -> list[Record]:
        """Read the records.

        Raises:
            ValueError: If the model is not one of DNA or proteins, both strands or intervals are
                wanted of a model of other tokens than bases, a file is not valid FASTA or BED, a
                name occurs in two files, or there is a BED file beside several FASTA files.
        """
        from genomics.io.fasta import read_records, read_strings
        from genomics.sequence import DNATokenizer

        if tokenizer.fingerprint != DNATokenizer().fingerprint:
            if not (isinstance(tokenizer, CountingTokenizer) and tokenizer.unit in FASTA_UNITS):
                raise ValueError(
                    f"score.fasta must be scored by a model of DNA or proteins, got a run whose "
                    f"tokenizer is {tokenizer.fingerprint}; choose another run"
                )
            if self.rc == "mean":
                raise ValueError(
                    "score.rc must be none for a model whose tokens are not single bases, got "
                    "mean; leave it out"
                )
            if self.bed is not None:
                raise ValueError(
                    f"score.bed must be left out for a model whose tokens are not single bases, "
                    f"got {self.bed}; write the intervals to a FASTA file"
                )
            read = read_strings(files)
            return [Record(name, (tokenizer.encode(text),)) for name, text in read]
        both = self.rc == "mean"
        if self.bed is not None:
            return [_record(name, ids, both=both) for name, ids in _regions(files, self.bed)]
        return [_record(name, ids, both=both) for _, name, ids in read_records(files)]

    def check_tracks(self, path: Path, files: Sequence[Path]) -> None:
        """Check the file, see ``check_track``, and that no two intervals overlap.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If its name has another ending, pybigtools is not installed, or two
                intervals overlap.
        """
        from genomics.io.tracks import check_track

        check_track("score.tracks", path)
        if self.bed is None:
            return
        for first, second in pairwise(_along(*_open_regions(files, self.bed))):
            if first.chrom == second.chrom and second.start < first.end:
                raise ValueError(
                    "score.bed must have intervals that do not overlap for --tracks, got "
                    f"{_name(first)} and {_name(second)} in {self.bed}; leave one of them out"
                )

    def write_tracks(
        self, path: Path, files: Sequence[Path], values: Mapping[str, Float64[np.ndarray, " L"]]
    ) -> None:
        """Write the values along the records, or of intervals along the genome."""
        from genomics.io.tracks import write_track, write_values

        if self.bed is None:
            write_track(path, values)
            return
        genome, intervals = _open_regions(files, self.bed)

        def rows() -> Iterator[tuple[str, int, int, float]]:
            for found in _along(genome, intervals):
                track = values.get(_name(found), ())  # none if no base is known
                for place, value in enumerate(reversed(track) if found.strand == "-" else track):
                    if not math.isnan(value):
                        start = found.start + place
                        yield found.chrom, start, start + 1, float(value)

        write_values(path, dict(zip(genome.names, genome.lengths.tolist(), strict=True)), rows())


def _name(found: Interval) -> str:
    """Name an interval as ``bedtools getfasta -s -name`` does."""
    strand = "" if found.strand == "." else f"({found.strand})"
    label = f"{found.name}::" if found.name else ""
    return f"{label}{found.chrom}:{found.start}-{found.end}{strand}"


def _open_regions(files: Sequence[Path], bed: Path) -> tuple[Genome, list[Interval]]:
    """Open a genome, and read its intervals in the order of the file."""
    from genomics.io.bed import read_intervals
    from genomics.io.genome import load_genome

    if len(files) != 1:
        raise ValueError(
            f"score.bed must go with one FASTA file, got {len(files):,}; name the genome"
        )
    genome = load_genome(files[0])
    return genome, read_intervals(bed, genome)


def _along(genome: Genome, intervals: Sequence[Interval]) -> list[Interval]:
    """Sort intervals by where they lie in the genome."""
    order = {name: number for number, name in enumerate(genome.names)}
    return sorted(intervals, key=lambda found: (order[found.chrom], found.start))


def _regions(files: Sequence[Path], bed: Path) -> Iterator[tuple[str, UInt8[np.ndarray, " L"]]]:
    """Read intervals of a genome, each from its strand, with their names."""
    from genomics.sequence import reverse_complement

    genome, intervals = _open_regions(files, bed)
    for found in intervals:
        ids = genome.record(found.chrom)[found.start : found.end]
        yield _name(found), reverse_complement(ids) if found.strand == "-" else ids


def _record(name: str, ids: UInt8[np.ndarray, " L"], *, both: bool) -> Record:
    """Build a record; its content is the strand that sorts first, so strands share their noise."""
    from genomics.sequence import reads_backwards, reverse_complement

    opposite, mirrored = reverse_complement(ids), reads_backwards(ids)
    content, other = (opposite, ids) if mirrored else (ids, opposite)
    if both:
        return Record(name, (content, other), content, (False, True), (mirrored, not mirrored))
    return Record(name, (ids,), content, (mirrored,))
