"""Read labelled sequences: tables, folders of classes, intervals cut from a genome."""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from .alphabet import encode
from .bed import Interval
from .fasta import check_file
from .indexed import IndexedFasta
from .labelled import Row

TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
INTERVAL_COLUMNS = ("id", "region", "start", "end", "strand")
_SEQUENCE_NAMES = ("sequence", "seq", "text", "dna")
_LABEL_NAMES = ("label", "class", "target", "y")


def is_table(path: Path) -> bool:
    """Say whether a file is a table by its name.

    Args:
        path: The file.
    """
    return path.name.endswith(TABLES)


def read_table(
    path: Path, *, sequence_column: str | None = None, label_column: str | None = None
) -> list[Row]:
    """Read a table with a header, separated by commas or tabs as its name says.

    Args:
        path: A .csv or .tsv file, perhaps gzipped.
        sequence_column: Name of the column of sequences; found among the usual names if not given.
        label_column: Name of the column of classes; found alike.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column is missing, a row has another number of columns or no label, or a
            letter is not DNA; the message begins with file and line.
    """
    lines = _records(path)
    header = _header(path, lines)
    sequence = _column(path, header, "sequence", sequence_column, _SEQUENCE_NAMES)
    label = _column(path, header, "label", label_column, _LABEL_NAMES)
    rows = []
    for number, cells in lines:
        where = f"{path}:{number}"
        _check_width(where, cells, header)
        letters, name = cells[sequence].strip(), cells[label].strip()
        if not letters or not name:
            missing = "sequence" if not letters else "label"
            raise ValueError(f"{where}: {missing} must not be empty, got ''; remove the line")
        rows.append(Row(encode(letters, where=where), name))
    return _some(path, rows)


def read_intervals(path: Path, label: str, fasta: IndexedFasta) -> list[Row]:
    """Cut the intervals of one class out of a genome.

    Args:
        path: Table with the header ``id,region,start,end,strand``; positions are 0-based and
            half-open, '-' is the reverse complement, an empty strand is '+'.
        label: The class.
        fasta: The genome.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the header is another one, or a line names no interval inside a record of
            the genome; the message begins with file and line.
    """
    lines = _records(path)
    header = _header(path, lines)
    if tuple(header) != INTERVAL_COLUMNS:
        raise ValueError(
            f"{path}:1: header must be {','.join(INTERVAL_COLUMNS)}, got {','.join(header)[:80]}; "
            "give the interval form of a benchmark"
        )
    rows = []
    for number, cells in lines:
        where = f"{path}:{number}"
        _check_width(where, cells, header)
        _, region, start, end, strand = (cell.strip() for cell in cells)
        try:
            interval = Interval(region, int(start), int(end), label, strand or "+")
            rows.append(Row(encode(fasta.fetch(interval)), label, interval))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
    return _some(path, rows)


def read_class_folder(path: Path, label: str) -> list[Row]:
    """Read the files of one class, one sequence a file, in the order of their names.

    Args:
        path: Folder of .txt files.
        label: The class.

    Raises:
        ValueError: If there is none, or a file is empty or holds a letter that is not DNA.
    """
    rows = []
    for file in sorted(path.glob("*.txt"), key=lambda file: (len(file.name), file.name)):
        letters = file.read_bytes().strip()
        if not letters:
            raise ValueError(f"{file}:1: sequence must not be empty, got ''; remove the file")
        rows.append(Row(encode(letters, where=f"{file}:1"), label))
    if not rows:
        raise ValueError(f"{path}: a class must hold .txt files, got none; check the folder")
    return rows


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Lines of a table that are not blank, with their numbers."""
    check_file(path)
    delimiter = "\t" if ".tsv" in path.suffixes else ","
    opened = gzip.open if path.suffix == ".gz" else open
    number = 0
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter)
            for cells in reader:
                number = reader.line_num
                if cells:
                    yield number, cells
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{number + 1}: must be UTF-8 ({error}); convert it") from error
    except (gzip.BadGzipFile, EOFError, zlib.error, csv.Error) as error:
        raise ValueError(f"{path}:{number + 1}: must be whole ({error}); copy it again") from error


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
