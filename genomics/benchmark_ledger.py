"""Results as JSON lines: what is there is not run again."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from seqdiff.files import alone, write_bytes

Key = Mapping[str, object]


class Ledger:
    """Finished cells of a grid, one line each, in a file that is whole after every one of them.

    A cell is known by its key: all that its result follows from. Processes may write to the same
    file: each adds its line to what is there by then, alone, under a lock file beside it. The file
    is replaced, not appended to, so that a kill at any moment leaves no torn line.
    """

    def __init__(self, path: Path) -> None:
        """Read what there is.

        Args:
            path: The file; it need not exist.

        Raises:
            ValueError: If a line is not a cell; the message begins with file and line.
        """
        self.path = path
        self._cells = self._read()

    def find(self, key: Key) -> dict[str, object] | None:
        """Give the result of a cell, if it is finished.

        Args:
            key: Of the cell.
        """
        return self._cells.get(_spell(key))

    def add(self, key: Key, result: Mapping[str, object]) -> None:
        """Write down a finished cell.

        Args:
            key: Of the cell.
            result: What came out, as JSON can hold it.

        Raises:
            OSError: If the file cannot be written.
            ValueError: If another process has left a line that is not a cell.
        """
        with alone(self.path.with_name(f"{self.path.name}.lock")):
            self._cells = {**self._read(), _spell(key): dict(result)}
            lines = (
                json.dumps({"key": json.loads(spelt), "result": found})
                for spelt, found in self._cells.items()
            )
            write_bytes(self.path, "".join(f"{line}\n" for line in lines).encode())

    def _read(self) -> dict[str, dict[str, object]]:
        return dict(self._lines()) if self.path.exists() else {}

    def _lines(self) -> Iterator[tuple[str, dict[str, object]]]:
        text = self.path.read_bytes().decode("utf-8", "replace")
        for number, line in enumerate(text.splitlines(), start=1):
            try:
                cell = json.loads(line)
                yield _spell(cell["key"]), dict(cell["result"])
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(
                    f"{self.path}:{number}: must be a finished cell as JSON, got {line[:40]!r}; "
                    "choose another --out, or remove the line"
                ) from error


def _spell(key: Key) -> str:
    return json.dumps(key, sort_keys=True)
