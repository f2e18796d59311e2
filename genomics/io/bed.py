"""Read BED files."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Mapping
from pathlib import Path

from genomics.io.fasta import check_file, is_gzip
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
        chrom_lengths: Lengths of the chromosomes that intervals must lie in; not checked if None.
        name_column: 1-based column of the label; rows may be too short to have it.
        strand_column: 1-based column of the strand; rows may be too short to have it.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is truncated or holds no interval, or a row has fewer than three
            columns, a coordinate that is no number, an interval that is empty or negative, or one
            outside its chromosome. The message starts with file and line.
    """
    source = Path(path)
    intervals: list[Interval] = []
    for number, line in enumerate(_lines(source), start=1):
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
    """Read a BED file whose intervals must lie in a genome, see ``read_bed``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is not sound or an interval lies outside the genome.
    """
    return read_bed(path, dict(zip(genome.names, genome.lengths.tolist(), strict=True)))


def _lines(path: Path) -> list[str]:
    check_file(path)
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if is_gzip(path) else data).decode("utf-8").splitlines()
    except EOFError as error:
        raise ValueError(f"{path}: the gzip file is truncated; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable BED file ({error}); fetch it again") from error


def _parse(line: str, name_column: int, strand_column: int) -> Interval:
    # Blanks separate columns too, but only where no tab does: a name may hold blanks.
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
