"""Tables of sequences with measured values, and arrays of them in the layout of d3-dna."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
from jaxtyping import Float32, Float64, Int64, Shaped, UInt8
from numpy.lib.npyio import NpzFile

from genomics.io.genome import describe_names
from genomics.sequence import BASES, MASK_ID, decode, encode, reads_backwards, reverse_complement
from seqdiff.data import SPLITS, Split
from seqdiff.extras import require_extra
from seqdiff.files import read_npz_array

_SEPARATORS = {".csv": ",", ".tsv": "\t", ".txt": "\t"}
_MISSING = ("", "NA", "N/A", "nan", "NaN")
_NO_SEQUENCE = tuple(text.upper() for text in _MISSING)  # NA would be an unknown base and A
_HDF5 = (".h5", ".hdf5")
_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class SequenceTable:
    """Sequences, and what a table says of each.

    Attributes:
        path: The file.
        names: Names of the sequences.
        sequences: The sequences, in upper case.
        values: Measured values, NaN where one is missing: one for each sequence, or one for each
            position if the file is one of arrays with such values.
        columns: Names of the values.
        split: Split of each sequence; ``None`` if the table does not say.
        groups: Group of each sequence, whose members must not be divided between splits; ``None``
            without groups.
        labels: Class of each sequence, empty where it has none; ``None`` without classes.
        rows: Row of the file that each sequence comes from; the first row after the header of a
            text file is row 2, as in a spreadsheet, and the first one of an array is row 0.
    """

    path: Path
    names: list[str]
    sequences: list[str]
    values: Float64[np.ndarray, "R S"] | Float32[np.ndarray, "R L S"]
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
    one, and otherwise the row numbers. Without ``split``, a column ``split`` is used if it holds
    train, valid and test.

    Files that end in .h5, .hdf5 or .npz hold arrays instead, in the layouts of d3-dna (Sarkar et
    al., pypi.org/project/d3-dna), for each of the splits train, valid and test:

    - ``onehot_train`` or ``X_train``, one-hot bases A, C, G, T of shape ``[R, L, 4]`` or
      ``[R, 4, L]``, and ``y_train`` or ``Y_train``, values of shape ``[R]``, ``[R, S]`` or
      ``[R, L, S]``;
    - ``train`` of shape ``[R, L, 4 + S]``: the bases and then values of each position, of which
      ``signals`` may leave out the last.

    Without a split in the names, ``X`` and ``y`` are one table. A position whose four numbers are
    all 0 or all 0.25 is an unknown base.

    Args:
        path: A file that ends in .csv, .tsv, .txt (tab-separated) or .parquet, in one of the first
            three followed by .gz, or in .h5, .hdf5 or .npz.
        sequence: Column of the sequences: DNA, with N and other IUPAC codes for unknown bases.
        signals: Columns of the values. Empty cells and ``NA`` are missing values; each row needs
            at least one value. Arrays have no names, so this names their values in their order.
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
    if path.suffix in (*_HDF5, ".npz"):
        columns = {"name": name, "split": split, "group": group, "label": label}
        for what, column in columns.items():
            if column is not None:
                raise ValueError(
                    f"{path}: arrays have no columns, got the column {column!r} of the {what}; "
                    "leave it out, or write a .parquet file"
                )
        return _read_arrays(path, signals)
    found = _read_file(path)
    given = {"sequence": sequence, "name": name, "split": split, "group": group, "label": label}
    asked = [column for column in (*given.values(), *signals) if column is not None]
    for column in asked:
        if column not in found.columns:
            raise ValueError(
                f"{path}: must have a column {column!r}, got the columns "
                f"{', '.join(map(str, found.columns)) or 'none'}; name another one"
            )
    _check_signals(signals)
    rows = found.index.to_numpy() + (1 if path.suffix == ".parquet" else 2)
    if not len(found):
        raise ValueError(f"{path}: must hold at least one sequence, got none; add rows")
    sequences = [text.strip().upper() for text in _texts(found, sequence)]
    _check_sequences(path, sequences, rows)
    values = np.empty((len(found), len(signals)))
    for place, column in enumerate(signals):
        values[:, place] = _numbers(path, found, column, rows)
    _check_values(path, values, signals, [f"row {row}" for row in rows])
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
            "of the first three, or in .h5, .hdf5 or .npz; rename it"
        )
    if path.suffix == ".parquet":
        return _read_parquet(path)
    try:
        found = pd.read_csv(
            path,
            sep=_SEPARATORS[plain.suffix],
            dtype=str,
            keep_default_na=False,
            skip_blank_lines=False,  # so that the numbers of rows stay right
            encoding="utf-8",
        )
    except pd.errors.EmptyDataError:
        raise ValueError(f"{path}: must hold a table, got an empty file; add a header") from None
    except (OSError, EOFError, ValueError) as error:
        raise _no_table(path, error) from error
    if not isinstance(found.index, pd.RangeIndex):
        raise ValueError(f"{path}: row 2 must not have more cells than the header; correct it")
    return found.loc[(found != "").any(axis=1)]


def _read_parquet(path: Path) -> pd.DataFrame:
    parquet = require_extra("pyarrow.parquet", "genomics.io.tables", "parquet")
    arrow = require_extra("pyarrow", "genomics.io.tables", "parquet")
    try:
        # Metadata of pandas may be damaged; without them an index is a column like any other.
        return parquet.read_table(path).to_pandas(ignore_metadata=True)
    except (OSError, ValueError, arrow.ArrowException) as error:
        raise _no_table(path, error) from error


def _no_table(path: Path, error: Exception) -> ValueError:
    said = " ".join(str(error).split())
    return ValueError(f"{path}: must be a table, got: {said}; write it again")


def _check_signals(signals: Sequence[str]) -> None:
    repeated = {column for column in signals if signals.count(column) > 1}
    if repeated:
        raise ValueError(
            f"data.signals must name each column once, got {sorted(repeated)[0]!r} twice; drop one"
        )


def _texts(found: pd.DataFrame, column: str) -> list[str]:
    return [
        "" if text is None or text is pd.NA or text != text else str(text) for text in found[column]
    ]


def _check_sequences(path: Path, sequences: list[str], rows: Int64[np.ndarray, " R"]) -> None:
    for row, text in zip(rows, sequences, strict=True):
        if text in _NO_SEQUENCE:
            raise ValueError(f"{path}: row {row} must have a sequence, got none; remove the row")
        try:
            known = (encode(text) != MASK_ID).any()
        except ValueError as error:
            raise ValueError(f"{path}: row {row}: {error}") from error
        if not known:
            raise ValueError(
                f"{path}: row {row} must have a known base, got {len(text)} unknown ones; remove "
                "the row"
            )


def _numbers(
    path: Path, found: pd.DataFrame, column: str, rows: Int64[np.ndarray, " R"]
) -> Float64[np.ndarray, " R"]:
    """Read a column of numbers.

    Raises:
        ValueError: If a cell is no number or infinite.
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
    return numbers


def _check_values(
    path: Path,
    values: Float64[np.ndarray, "R S"] | Float32[np.ndarray, "R L S"],
    signals: Sequence[str],
    places: Sequence[str],
) -> None:
    """Check that each signal varies, and that each row has a value.

    Args:
        path: The file.
        values: The values, without infinite ones.
        signals: Their names.
        places: Where each row is in the file.
    """
    for number, column in enumerate(signals):
        known = values[..., number]
        known = known[~np.isnan(known)]
        if not len(known) or known.min() == known.max():
            got = f"{known[0]:g} in every row" if len(known) else "no value"
            raise ValueError(
                f"{path}: {column} must vary between sequences to be learned, got {got}; drop it "
                "from data.signals"
            )
    empty = np.isnan(values).all(axis=tuple(range(1, values.ndim)))
    if signals and empty.any():
        raise ValueError(
            f"{path}: {places[int(empty.argmax())]} must have a value of {' or '.join(signals)}, "
            f"got none, as in {int(empty.sum()):,} rows; remove these rows"
        )


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
        # A column of other meaning is not used, but one misspelt split must not undo the others.
        if "split" not in found.columns or set(_texts(found, "split")).isdisjoint(SPLITS):
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


def _read_arrays(path: Path, signals: Sequence[str]) -> SequenceTable:
    """Read a file of arrays, see ``read_table``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or its arrays do not fit the layout or each other.
    """
    _check_signals(signals)
    sequences: list[str] = []
    places: list[str] = []
    parts: list[tuple[str, np.ndarray]] = []
    splits: list[str] = []
    rows: list[int] = []
    with _open_arrays(path) as arrays:
        for split, bases, measured in _layout(path, arrays):
            ids, more = _bases(path, bases, _array(path, arrays, bases), joint=measured == bases)
            sequences += [decode(row) for row in ids]
            places += [f"{bases}[{row}]" for row in range(len(ids))]
            splits += [split] * len(ids)
            rows += range(len(ids))
            if more is None and signals:
                if measured is None:
                    raise ValueError(
                        f"{path}: must hold the values of {bases}, got only {', '.join(arrays)}; "
                        f"add {bases.replace('onehot', 'y').replace('X', 'y')}"
                    )
                more = np.asarray(_array(path, arrays, measured))
            if more is not None and signals and measured is not None:
                shape = (*ids.shape, len(signals))
                parts.append((measured, _values(path, measured, more, signals, shape)))
    for place, sequence in zip(places, sequences, strict=True):
        if not sequence.strip("N"):
            raise ValueError(f"{path}: {place} must have a known base, got none; remove the row")
    kinds = {part.shape[1:]: key for key, part in parts}
    if len(kinds) > 1:
        shapes = " and ".join(f"{[*shape]} in {key}" for shape, key in kinds.items())
        raise ValueError(f"{path}: rows must have values of one shape, got {shapes}; cut them")
    values = np.concatenate([part for _, part in parts]) if parts else np.empty((len(rows), 0))
    if signals:
        _check_values(path, values, signals, places)
    named = bool(splits and splits[0])
    names = [
        f"{split}_{row}" if named else str(row) for split, row in zip(splits, rows, strict=True)
    ]
    return SequenceTable(
        path,
        names,
        sequences,
        values,
        tuple(signals),
        splits if named else None,
        None,
        None,
        np.array(rows),
    )


@contextmanager
def _open_arrays(path: Path) -> Iterator[Mapping[str, Any]]:
    """Open the arrays of a file by name."""
    if not path.is_file():
        raise FileNotFoundError(f"data.table must be an existing file, got {path}; check the path")
    try:
        if path.suffix in _HDF5:
            h5py = require_extra("h5py", "data.table", "genomics")
            with h5py.File(path, "r") as file:
                yield {name: part for name, part in file.items() if isinstance(part, h5py.Dataset)}
        else:
            if not zipfile.is_zipfile(path):
                raise zipfile.BadZipFile("no .npz file")
            with np.load(path, allow_pickle=False) as file:
                yield file
    except (OSError, EOFError, KeyError, zlib.error, zipfile.BadZipFile) as error:
        said = " ".join(str(error).split())
        raise ValueError(f"{path}: must hold arrays, got: {said}; write it again") from error


def _array(path: Path, arrays: Mapping[str, Any], key: str) -> Any:
    """Return an array; one of Python objects is an error, since it would have to be unpickled."""
    try:
        return read_npz_array(arrays, key) if isinstance(arrays, NpzFile) else arrays[key]
    except ValueError as error:
        raise ValueError(f"{path}: {key} must hold numbers, got: {error}; convert it") from error


def _layout(path: Path, names: Mapping[str, object]) -> list[tuple[str, str, str | None]]:
    """Find the split of each array of bases, its name and that of its values."""

    def pair(suffix: str) -> tuple[str, str | None] | None:
        bases, values = (
            next((key for key in (f"{one}{suffix}", f"{other}{suffix}") if key in names), None)
            for one, other in (("onehot", "X"), ("y", "Y"))
        )
        return None if bases is None else (bases, values)

    found: list[tuple[str, str, str | None]] = []
    for split in SPLITS:
        keys = (split, split) if split in names else pair(f"_{split}")
        if keys is not None:
            found.append((split, keys[0], keys[1]))
    if not found and (keys := pair("")) is not None:
        found.append(("", keys[0], keys[1]))
    if not found:
        raise ValueError(
            f"{path}: must hold arrays onehot_train and y_train, X_train and y_train, train, or X "
            f"and y, got {describe_names(tuple(names)) or 'none'}; rename them"
        )
    return found


def _bases(
    path: Path, key: str, array: Any, *, joint: bool
) -> tuple[UInt8[np.ndarray, "R L"], Shaped[np.ndarray, "R L S"] | None]:
    """Decode one-hot bases, a few rows at a time.

    Args:
        path: The file.
        key: Name of the array.
        array: The array, in memory or in the file.
        joint: Whether further channels hold values of the positions.

    Returns:
        The ids, and the further channels if there are any.
    """
    _check_numbers(path, key, array)
    shape = tuple(array.shape)
    last = len(shape) == 3 and (shape[2] == len(BASES) or (joint and shape[2] > len(BASES)))
    if not last and (joint or len(shape) != 3 or shape[1] != len(BASES)):
        wanted = "[R, L, 4 + S]" if joint else "[R, L, 4] or [R, 4, L]"
        raise ValueError(f"{path}: {key} must have shape {wanted}, got {[*shape]}; convert it")
    if 0 in shape:
        raise ValueError(f"{path}: {key} must hold a sequence, got shape {[*shape]}; drop it")
    ids: list[np.ndarray] = []
    more: list[np.ndarray] = []
    for first in range(0, shape[0], _BLOCK_ROWS):
        block = np.asarray(array[first : first + _BLOCK_ROWS])
        block = block if last else block.swapaxes(1, 2)
        block, rest = block[..., : len(BASES)], block[..., len(BASES) :]
        known = ((block == 1).sum(axis=-1) == 1) & ((block == 0).sum(axis=-1) == len(BASES) - 1)
        unknown = (block == block[..., :1]).all(axis=-1) & np.isin(block[..., 0], (0, 0.25))
        if not (known | unknown).all():
            row, place = (int(i) for i in np.argwhere(~(known | unknown))[0])
            raise ValueError(
                f"{path}: {key}[{first + row}] must be one-hot, got {block[row, place].tolist()} "
                f"at position {place}; write 1 for the base, in the order {', '.join(BASES)}, and "
                "0 for the others"
            )
        ids.append(np.where(known, block.argmax(axis=-1), MASK_ID).astype(np.uint8))
        more.append(rest)
    return np.concatenate(ids), np.concatenate(more) if joint else None


def _check_numbers(path: Path, key: str, array: Any) -> None:
    if array.dtype.kind not in "fiub":
        raise ValueError(f"{path}: {key} must hold numbers, got {array.dtype}; convert it")


def _values(
    path: Path,
    key: str,
    found: np.ndarray,
    signals: Sequence[str],
    shape: tuple[int, int, int],
) -> Float64[np.ndarray, "R S"] | Float32[np.ndarray, "R L S"]:
    """Check the shape and the numbers of an array of values.

    Args:
        path: The file.
        key: Name of the array.
        found: The array.
        signals: Names of the values.
        shape: Numbers of rows, positions and signals.
    """
    rows, length, width = shape
    joint = key in SPLITS
    values = found[:, None] if found.ndim == 1 else found
    values = values[..., :width] if joint else values
    if values.shape not in ((rows, width), (rows, length, width)):
        got = f"{found.shape[-1]} channels after the bases" if joint else f"shape {[*found.shape]}"
        raise ValueError(
            f"{path}: {key} must have shape [{rows}, {width}] or [{rows}, {length}, {width}] for "
            f"the signals {', '.join(signals)}, got {got}; name as many signals as it has"
        )
    _check_numbers(path, key, values)
    if np.isinf(values).any():
        row = int(np.argwhere(np.isinf(values))[0, 0])
        raise ValueError(
            f"{path}: {key}[{row}] must be finite, got infinity; write NaN for unknown values"
        )
    return values.astype(np.float64 if values.ndim == 2 else np.float32)


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
    of its sequence if it has no group. The hash is the same for both strands, and rows that are
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
        groups = table.groups or [""] * len(names)
        keys = [group or name for group, name in zip(groups, names, strict=True)]
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
