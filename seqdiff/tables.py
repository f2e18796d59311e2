"""Tables of results, as tab-separated text or Parquet, in one file or in parts.

Importing this module imports nothing slow.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from seqdiff.cells import write_cell
from seqdiff.extras import require_extra
from seqdiff.files import check_parent, part_path, replacing

Cell = str | int | float | None

# Rows of a part, of a table or of samples.
ROWS_PER_PART = 100_000
# Rows that are held in memory; a row group of Parquet.
_ROWS_PER_GROUP = 20_000
# R and pandas read this as a missing value.
_MISSING = "NA"


def check_table(owner: str, out: Path) -> None:
    """Check, before slow work, that a table can be written.

    Args:
        owner: Name of the argument, for the message.
        out: See ``writing_table``.

    Raises:
        OSError: See ``check_parent``.
        ValueError: Also if the name has another ending, or the file is Parquet and pyarrow is not
            installed.
    """
    if out.suffix not in (".tsv", ".txt", ".parquet"):
        raise ValueError(f"{owner} must end in .tsv or .parquet, got {out}; rename it")
    check_parent(owner, out, parts=True)
    if out.suffix == ".parquet":
        require_extra("pyarrow.parquet", f"{owner} {out}", "parquet")


@contextmanager
def writing_table(
    out: Path, columns: Mapping[str, type]
) -> Iterator[Callable[[Iterable[Sequence[Cell]]], None]]:
    """Yield a function that writes rows to a table, which is there if the block succeeds.

    Text is as ``format_rows`` writes it. Parquet has typed columns, in which text is as it is and a
    missing value is null.

    Args:
        out: The table, Parquet if its name ends in ``.parquet``. If the name has a ``*``, the table
            is written in parts of ``ROWS_PER_PART`` rows, see ``part_path``.
        columns: The type of each column, ``str``, ``int`` or ``float``, by its name.

    Raises:
        OSError: If a file cannot be written.
    """
    with ExitStack() as stack:
        table = _Table(out, columns, stack)
        yield table.write
        table.flush()


class _Table:
    """A table that is written in groups of rows; its files are in place when the stack ends."""

    def __init__(self, out: Path, columns: Mapping[str, type], stack: ExitStack) -> None:
        self._out, self._columns, self._stack = out, columns, stack
        self._pending: list[Sequence[Cell]] = []
        self._parts = self._rows = 0
        self._file = self._open()

    def write(self, rows: Iterable[Sequence[Cell]]) -> None:
        """Write rows."""
        for row in rows:
            self._pending.append(row)
            if len(self._pending) == _ROWS_PER_GROUP:
                self.flush()

    def flush(self) -> None:
        """Write the rows that are held in memory."""
        if not self._pending:
            return
        if self._rows == ROWS_PER_PART and "*" in self._out.name:
            self._file = self._open()
        self._file.write(self._pending)
        self._rows += len(self._pending)
        self._pending = []

    def _open(self) -> _Text | _Parquet:
        if self._parts:
            self._file.close()
        path = self._stack.enter_context(replacing(part_path(self._out, self._parts)))
        kind = _Parquet if path.suffix == ".parquet" else _Text
        file = kind(path, self._columns)
        self._stack.callback(file.close)
        self._parts, self._rows = self._parts + 1, 0
        return file


class _Text:
    """Tab-separated text with a header."""

    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        self._file = path.open("w", encoding="utf-8", newline="")
        self.write([tuple(columns)])

    def write(self, rows: Iterable[Sequence[Cell]]) -> None:
        self._file.write(format_rows(rows))

    def close(self) -> None:
        self._file.close()


class _Parquet:
    """A Parquet file; each call writes a row group."""

    def __init__(self, path: Path, columns: Mapping[str, type]) -> None:
        arrow: Any = require_extra("pyarrow", "a .parquet file", "parquet")
        parquet: Any = require_extra("pyarrow.parquet", "a .parquet file", "parquet")
        kinds = {str: arrow.string(), int: arrow.int64(), float: arrow.float64()}
        self._schema = arrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
        self._build = arrow.table
        self._file = parquet.ParquetWriter(path, self._schema)

    def write(self, rows: Sequence[Sequence[Cell]]) -> None:
        columns = map(list, zip(*rows, strict=True))
        self._file.write_table(
            self._build(dict(zip(self._schema.names, columns, strict=True)), schema=self._schema)
        )

    def close(self) -> None:
        self._file.close()


def format_rows(rows: Iterable[Sequence[Cell]]) -> str:
    """Format rows as tab-separated text, which is safe to open in a spreadsheet or a terminal.

    Args:
        rows: The cells of each row.
    """
    text = io.StringIO()
    table = csv.writer(text, delimiter="\t", lineterminator="\n")
    table.writerows(map(spell, row) for row in rows)
    return text.getvalue()


def spell(cell: Cell, decimals: int = 6) -> str:
    """Write a cell for a table, text by ``write_cell``; a missing value is NA."""
    if cell is None:
        return _MISSING
    if isinstance(cell, str):
        return write_cell(cell)
    return f"{cell:.{decimals}f}" if isinstance(cell, float) else str(cell)
