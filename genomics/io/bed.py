"""Read BED files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genomics.io.fasta import read_text
from genomics.io.genome import Genome, describe_names
from genomics.sequence import Interval


def read_bed(
    path: str | Path,
    chrom_lengths: Mapping[str, int] | None = None,
    *,
    name_column: int = 4,
    strand_column: int = 6,
) -> list[Interval]:
    """Read a BED file, plain or compressed; comments, ``track`` and ``browser`` lines are skipped.

    Args:
        path: The file.
        chrom_lengths: Lengths of the chromosomes; if given, every interval must lie inside one.
        name_column: 1-based column of the label, which a row may lack.
        strand_column: 1-based column of the strand, which a row may lack.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is truncated or has no interval, or if a row is not valid. Messages
            start with file and line.
    """
    source = Path(path)
    intervals: list[Interval] = []
    for number, line in enumerate(read_text(source, "BED").splitlines(), start=1):
        if not line.strip() or line.startswith("#") or line.split()[0] in {"track", "browser"}:
            continue
        try:
            interval = _parse(line, name_column, strand_column)
            if chrom_lengths is not None:
                _check_inside(interval, chrom_lengths)
        except ValueError as error:
            raise ValueError(f"{source}:{number}: {error}") from error
        intervals.append(interval)
    if not intervals:
        raise ValueError(f"{source}: no intervals in the BED file; it needs at least one row")
    return intervals


def read_intervals(path: str | Path, genome: Genome) -> list[Interval]:
    """Read a BED file whose intervals must lie in a genome, see ``read_bed``."""
    return read_bed(path, dict(zip(genome.names, genome.lengths.tolist(), strict=True)))


def _parse(line: str, name_column: int, strand_column: int) -> Interval:
    # Blanks separate columns only in lines without a tab: names may contain blanks.
    columns = line.rstrip().split("\t") if "\t" in line else line.split()
    if len(columns) < 3:
        raise ValueError(
            f"a BED row needs chrom, start and end, got {len(columns)} columns; "
            "separate them by tabs"
        )
    try:
        start, end = int(columns[1]), int(columns[2])
    except ValueError as error:
        raise ValueError(
            f"start and end must be whole numbers, got {columns[1]!r} and {columns[2]!r}; "
            "remove a header line or put '#' before it"
        ) from error
    name = columns[name_column - 1].strip() if len(columns) >= name_column else ""
    strand = columns[strand_column - 1].strip() if len(columns) >= strand_column else "."
    return Interval(columns[0], start, end, name, strand)


def _check_inside(interval: Interval, chrom_lengths: Mapping[str, int]) -> None:
    length = chrom_lengths.get(interval.chrom)
    if length is None:
        raise ValueError(
            f"chromosome {interval.chrom!r} is not in the FASTA file, which has "
            f"{describe_names(tuple(chrom_lengths))}; use matching names or remove the row"
        )
    if interval.end > length:
        raise ValueError(
            f"end {interval.end} is outside {interval.chrom}, which has {length} bases; "
            "use the genome build the BED file was made for"
        )
