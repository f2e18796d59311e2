"""Read labelled sequences: tables, folders of classes, intervals cut from a genome."""

from __future__ import annotations

import csv
import gzip
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from genomics.finetune.labelled import Row
from genomics.finetune.labelled_genomes import ClassGenome
from genomics.io import check_file
from genomics.sequence import Interval, encode

TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
INTERVAL_COLUMNS = ("id", "region", "start", "end", "strand")
_SEQUENCE_NAMES = ("sequence", "seq", "text", "dna")
_LABEL_NAMES = ("label", "class", "target", "y")
_LONGEST = (1 << 31) - 1  # most characters of a cell


def table_stem(path: Path) -> str:
    """Return the name of a table without its suffix; "" if the path is no table."""
    return next((path.name.removesuffix(s) for s in TABLES if path.name.endswith(s)), "")


def check_link(path: Path) -> None:
    """Check that a path is not a broken symbolic link, which would be ignored otherwise.

    Raises:
        FileNotFoundError: If the path is a broken link.
    """
    if path.is_symlink() and not path.exists():
        raise FileNotFoundError(
            f"{path}: is a link to {os.readlink(path)}, which does not exist; correct "
            "or remove the link"
        )


def read_table(
    path: Path, *, sequence_column: str | None = None, label_column: str | None = None
) -> list[Row]:
    """Read a table with a header, separated by commas (.csv) or tabs (.tsv).

    Args:
        path: A .csv or .tsv file, plain or gzip.
        sequence_column: Name of the column of sequences; default: one of the usual names.
        label_column: Name of the column of classes; default: one of the usual names.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If a column is missing, a row has another number of columns or no label, or a
            symbol is not DNA; the message begins with file and line.
    """
    lines = _records(path)
    header = _header(path, lines)
    sequence = _column(path, header, "sequence", sequence_column, _SEQUENCE_NAMES)
    label = _column(path, header, "label", label_column, _LABEL_NAMES)
    rows = []
    for number, cells in lines:
        where = f"{path}:{number}"
        _check_width(where, cells, header)
        bases, name = cells[sequence].strip(), cells[label].strip()
        if not bases or not name:
            missing = "sequence" if not bases else "label"
            raise ValueError(f"{where}: {missing} must not be empty, got ''; remove the line")
        rows.append(Row(encode(bases, where=where), name, line=number))
    _check_discrete(f"{path}:1: column {header[label]!r}", [row.label for row in rows])
    return _some(path, rows)


def _check_discrete(where: str, labels: Sequence[str]) -> None:
    """Raise ``ValueError`` for measured values: numbers with fractions, mostly different."""
    classes = set(labels)
    if 2 * len(classes) <= len(labels):
        return
    try:
        fractions = [name for name in classes if not float(name).is_integer()]
    except (ValueError, OverflowError):
        return
    if fractions:
        raise ValueError(
            f"{where} must hold classes, got {len(classes):,} different numbers in "
            f"{len(labels):,} rows, such as {min(fractions)}; to predict values: --task regression"
        )


def read_intervals(path: Path, label: str, genome: ClassGenome) -> list[Row]:
    """Cut the intervals of one class out of a genome.

    Args:
        path: Table with the columns id, region, start, end and strand; positions are 0-based and
            half-open, '-' is the reverse complement, an empty strand is '+'.
        label: The class.
        genome: Genome of the intervals.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the header is wrong, or an interval is not inside a record of the genome;
            the message begins with file and line.
    """
    lines = _records(path)
    header = _header(path, lines)
    if tuple(header) != INTERVAL_COLUMNS:
        raise ValueError(
            f"{path}:1: header must be {','.join(INTERVAL_COLUMNS)}, got {','.join(header)[:80]}; "
            "use the interval format of Genomic Benchmarks"
        )
    rows = []
    for number, cells in lines:
        where = f"{path}:{number}"
        _check_width(where, cells, header)
        _, region, start, end, strand = (cell.strip() for cell in cells)
        try:
            interval = Interval(region, int(start), int(end), label, strand or "+")
            bases, place = genome.cut(interval)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        rows.append(Row(encode(bases), label, place, number))
    return _some(path, rows)


def read_class_folder(path: Path, label: str) -> list[Row]:
    """Read the files of one class, one sequence per file, sorted by name.

    Raises:
        FileNotFoundError: If a file is a broken link.
        ValueError: If there is no file, or a file is empty or holds a symbol that is not DNA.
    """
    rows = []
    for file in sorted(path.glob("*.txt"), key=lambda file: (len(file.name), file.name)):
        check_link(file)
        bases = file.read_bytes().strip()
        if not bases:
            raise ValueError(f"{file}:1: sequence must not be empty, got ''; remove the file")
        rows.append(Row(encode(bases, where=f"{file}:1"), label))
    if not rows:
        raise ValueError(f"{path}: a class must hold .txt files, got none; check the folder")
    return rows


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the records of a table that are not blank, with their first line numbers."""
    check_file(path)
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    opened = gzip.open if path.suffix == ".gz" else open
    number = 1
    try:
        # Latin-1 maps every byte to a character, so decoding errors are found line by line below.
        with opened(path, "rt", encoding="latin-1", newline="") as file:
            reader = csv.reader(_decoded(path, file), delimiter=delimiter, strict=True)
            while (cells := _next(reader)) is not None:
                if cells:
                    yield number, cells
                number = reader.line_num + 1
    except (gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
        raise ValueError(f"{path}:{number}: must be complete ({error}); copy it again") from error


def _decoded(path: Path, file: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(file, 1):
        try:
            text = line.encode("latin-1").decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}:{number}: must be UTF-8 ({error}); convert it") from error
        yield text.removeprefix("\ufeff") if number == 1 else text


def _next(reader: Iterator[list[str]]) -> list[str] | None:
    """Read a record with cells of any length, then restore the limit of the csv module."""
    limit = csv.field_size_limit(_LONGEST)
    try:
        return next(reader, None)
    finally:
        csv.field_size_limit(limit)


def _header(path: Path, lines: Iterator[tuple[int, list[str]]]) -> list[str]:
    _, header = next(lines, (0, []))
    if not header:
        raise ValueError(f"{path}:1: a table must begin with a header, got an empty file")
    return [name.strip() for name in header]


def _column(
    path: Path, header: list[str], what: str, name: str | None, usual: tuple[str, ...]
) -> int:
    wanted = usual if name is None else (name,)
    for choice in wanted:
        for place, found in enumerate(header):
            if found == choice or (name is None and found.lower() == choice):
                return place
    shown = " or ".join(wanted)
    raise ValueError(
        f"{path}:1: header must name a {what} column ({shown}), got {','.join(header)[:80]!r}; "
        f"give --{what}_column"
    )


def _check_width(where: str, cells: list[str], header: list[str]) -> None:
    if len(cells) != len(header):
        raise ValueError(
            f"{where}: a line must have {len(header)} columns as the header has, got {len(cells)}; "
            "correct it"
        )


def _some(path: Path, rows: list[Row]) -> list[Row]:
    if not rows:
        raise ValueError(f"{path}:2: a table must hold rows below its header, got none")
    return rows
