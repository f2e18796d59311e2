"""Tables of sequences with measured values."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd
from jaxtyping import Float64, Int64

from genomics.io.genome import describe_names
from genomics.sequence import decode, encode, reads_backwards, reverse_complement
from seqdiff.data import SPLITS, Split

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_MISSING = ("", "NA", "N/A", "nan", "NaN")


@dataclass(frozen=True)
class SequenceTable:
    """Sequences, and what a table says of each.

    Attributes:
        path: The file.
        names: Names of the sequences.
        sequences: The sequences, in upper case.
        values: Measured values, NaN where one is missing.
        columns: Names of the values.
        split: Split of each sequence; ``None`` if the table does not say.
        groups: Group of each sequence, whose members must not be divided between splits; ``None``
            without groups.
        labels: Class of each sequence, empty where it has none; ``None`` without classes.
        rows: Row of the file that each sequence comes from; the first row after the header of a
            text file is row 2, as in a spreadsheet.
    """

    path: Path
    names: list[str]
    sequences: list[str]
    values: Float64[np.ndarray, "R S"]
    columns: tuple[str, ...]
    split: list[str] | None
    groups: list[str] | None
    labels: list[str] | None
    rows: Int64[np.ndarray, " R"]

    def __len__(self) -> int:
        """Count the sequences."""
        return len(self.sequences)

    def select(self, chosen: Int64[np.ndarray, " r"]) -> SequenceTable:
        """Return some of the sequences, in the given order."""

        def part(values: list[str] | None) -> list[str] | None:
            return None if values is None else [values[i] for i in chosen]

        return SequenceTable(
            self.path,
            [self.names[i] for i in chosen],
            [self.sequences[i] for i in chosen],
            self.values[chosen],
            self.columns,
            part(self.split),
            part(self.groups),
            part(self.labels),
            self.rows[chosen],
        )


def read_table(
    path: str | Path,
    *,
    sequence: str = "sequence",
    signals: Sequence[str] = (),
    name: str | None = None,
    split: str | None = None,
    group: str | None = None,
    label: str | None = None,
) -> SequenceTable:
    """Read a table of sequences.

    pandas reads the file. Without ``name``, the names are those of a column ``name`` if there is
    one, and otherwise the row numbers. Without ``split``, a column ``split`` is used if all of its
    values are train, valid or test.

    Args:
        path: A file that ends in .csv, .tsv, .txt (tab-separated) or .parquet, or in one of the
            first three followed by .gz.
        sequence: Column of the sequences: DNA, with N and other IUPAC codes for unknown bases.
        signals: Columns of the values. Empty cells and ``NA`` are missing values.
        name: Column of the names.
        split: Column of the splits: train, valid or test.
        group: Column of the groups.
        label: Column of the classes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no table, lacks a column, or holds an invalid cell; the message
            names the row.
    """
    path = Path(path)
    found = _read_file(path)
    given = {"sequence": sequence, "name": name, "split": split, "group": group, "label": label}
    asked = [column for column in (*given.values(), *signals) if column is not None]
    for column in asked:
        if column not in found.columns:
            raise ValueError(
                f"{path}: must have a column {column!r}, got the columns "
                f"{', '.join(map(str, found.columns)) or 'none'}; name another one"
            )
    repeated = {column for column in signals if signals.count(column) > 1}
    if repeated:
        raise ValueError(
            f"data.signals must name each column once, got {sorted(repeated)[0]!r} twice; drop one"
        )
    if not len(found):
        raise ValueError(f"{path}: must hold at least one sequence, got none; add rows")
    rows = np.arange(len(found)) + (1 if path.suffix == ".parquet" else 2)
    sequences = [text.strip().upper() for text in _texts(found, sequence)]
    _check_sequences(path, sequences, rows)
    values = np.empty((len(found), len(signals)))
    for place, column in enumerate(signals):
        values[:, place] = _numbers(path, found, column, rows)
    if signals and (empty := np.isnan(values).all(axis=1)).any():
        first = int(empty.argmax())
        raise ValueError(
            f"{path}: row {rows[first]} must have a value of {' or '.join(signals)}, got none, as "
            f"in {int(empty.sum()):,} rows; remove these rows"
        )
    if name is None and "name" in found.columns:
        name = "name"
    splits = _splits(path, found, split, rows)
    return SequenceTable(
        path,
        [str(row) for row in rows] if name is None else _texts(found, name),
        sequences,
        values,
        tuple(signals),
        splits,
        None if group is None else _texts(found, group),
        None if label is None else _texts(found, label),
        rows,
    )


def _read_file(path: Path) -> pd.DataFrame:
    """Read a file with pandas; cells of text files stay text.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not a table.
    """
    if not path.is_file():
        raise FileNotFoundError(f"data.table must be an existing file, got {path}; check the path")
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    if path.suffix != ".parquet" and plain.suffix not in _SEPARATORS:
        raise ValueError(
            f"{path}: the file name must end in .csv, .tsv, .txt or .parquet, or in .gz after one "
            "of the first three; rename it"
        )
    try:
        if path.suffix == ".parquet":
            return pd.read_parquet(path)
        found = pd.read_csv(
            path, sep=_SEPARATORS[plain.suffix], dtype=str, keep_default_na=False, encoding="utf-8"
        )
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path}: must hold a table, got an empty file; add a header") from None
    except (OSError, EOFError, ValueError, ImportError) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path}: must be a table, got: {said}; write it again") from error
    return found


def _texts(found: pd.DataFrame, column: str) -> list[str]:
    return [
        "" if text is None or text is pd.NA or text != text else str(text) for text in found[column]
    ]


def _check_sequences(path: Path, sequences: list[str], rows: Int64[np.ndarray, " R"]) -> None:
    for row, text in zip(rows, sequences, strict=True):
        if not text:
            raise ValueError(f"{path}: row {row} must have a sequence, got none; remove the row")
        try:
            encode(text)
        except ValueError as error:
            raise ValueError(f"{path}: row {row}: {error}") from error


def _numbers(
    path: Path, found: pd.DataFrame, column: str, rows: Int64[np.ndarray, " R"]
) -> Float64[np.ndarray, " R"]:
    """Read a column of numbers.

    Raises:
        ValueError: If a cell is no number or infinite, no cell has one, or all are equal.
    """
    cells = found[column].to_list()
    numbers = np.array([_number(cell) for cell in cells], dtype=np.float64)
    bad = np.isinf(numbers)
    if bad.any():
        first = int(bad.argmax())
        raise ValueError(
            f"{path}: row {rows[first]}: {column} must be a finite number, got "
            f"{str(cells[first])!r}; correct it, or leave it empty if it is unknown"
        )
    known = numbers[~np.isnan(numbers)]
    if not len(known) or known.min() == known.max():
        got = f"{known[0]:g} in every row" if len(known) else "no value"
        raise ValueError(
            f"{path}: {column} must vary between sequences to be learned, got {got}; drop it from "
            "data.signals"
        )
    return numbers


def _number(cell: object) -> float:
    """Return the number of a cell, NaN if it is missing, and infinity if it is no number."""
    text = "" if cell is None or cell is pd.NA else str(cell).strip()
    if text in _MISSING:
        return np.nan
    try:
        return float(text)
    except ValueError:
        return np.inf


def _splits(
    path: Path, found: pd.DataFrame, column: str | None, rows: Int64[np.ndarray, " R"]
) -> list[str] | None:
    """Read the column of splits, or the column ``split`` if it is one."""
    if column is None:
        if "split" not in found.columns or not set(_texts(found, "split")) <= set(SPLITS):
            return None
        column = "split"
    splits = _texts(found, column)
    for row, split in zip(rows, splits, strict=True):
        if split not in SPLITS:
            raise ValueError(
                f"{path}: row {row}: {column} must be train, valid or test, got {split!r}; correct "
                "it, or name another column by data.split_column"
            )
    return splits


def canonical(sequence: str) -> str:
    """Return the strand of a sequence that sorts first, as a name for both strands."""
    ids = encode(sequence)
    return decode(reverse_complement(ids) if reads_backwards(ids) else ids)


def hashed_fraction(text: str, seed: int) -> float:
    """Return a number in [0, 1) that depends on a text and a seed, and is the same everywhere."""
    digest = hashlib.blake2b(f"{seed}:{text}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def split_rows(
    table: SequenceTable,
    fractions: tuple[float, float, float] = (0.8, 0.1, 0.1),
    seed: int = 0,
) -> dict[Split, Int64[np.ndarray, " r"]]:
    """Assign the rows of a table to splits.

    The column of splits decides if there is one. Otherwise a hash of each row's group decides, or
    of its sequence if there are no groups. The hash is the same for both strands, and rows that are
    added later do not move others. Splits without a row are left out.

    Args:
        table: The table.
        fractions: Fractions of train, valid and test; they add up to 1.
        seed: Changes the hash.

    Raises:
        ValueError: If a sequence or its reverse complement lies in two splits, a split with a
            positive fraction gets no row, or the training split is empty.
    """
    names = [canonical(sequence) for sequence in table.sequences]
    if table.split is not None:
        numbers = np.array([SPLITS.index(cast(Split, split)) for split in table.split])
    else:
        keys = names if table.groups is None else table.groups
        edges = np.cumsum(fractions)[:2]
        draws = [hashed_fraction(key, seed) for key in keys]
        numbers = np.searchsorted(edges, draws, side="right")
    _check_copies(table, names, numbers)
    found: dict[Split, Int64[np.ndarray, " r"]] = {
        split: np.flatnonzero(numbers == number)
        for number, split in enumerate(SPLITS)
        if (numbers == number).any()
    }
    wanted: tuple[Split, ...] = ("train",)
    if table.split is None:
        wanted = tuple(s for s, f in zip(SPLITS, fractions, strict=True) if f > 0)
    missing = [split for split in wanted if split not in found]
    if missing:
        raise ValueError(
            f"{table.path}: the {missing[0]} split must hold a row, got none of {len(table):,}; "
            "change data.split, or add a column split with train, valid and test"
        )
    return found


def _check_copies(table: SequenceTable, names: list[str], numbers: Int64[np.ndarray, " R"]) -> None:
    """Check that no sequence lies in two splits, on either strand."""
    first: dict[str, int] = {}
    copies = [
        (place, first[name])
        for place, name in enumerate(names)
        if numbers[first.setdefault(name, place)] != numbers[place]
    ]
    if copies:
        here, there = copies[0]
        shown = describe_names(tuple(str(table.rows[place]) for place, _ in copies))
        raise ValueError(
            f"{table.path}: a sequence must lie in one split, on either strand, got row "
            f"{table.rows[there]} again in row {table.rows[here]} of another split, and "
            f"{len(copies)} such rows in all ({shown}); give copies the same split or group"
        )
