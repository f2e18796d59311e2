"""Classes of FASTA records, from a table of two columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from genomics.io.fasta import check_file
from genomics.io.genome import describe_names
from seqdiff.types import NO_LABEL


@dataclass(frozen=True)
class LabelTable:
    """Which class each record belongs to, as ``FastaDataModule`` describes it.

    Attributes:
        names: The classes, in the order of their numbers.
        file: Tab-separated lines ``record label``.
    """

    names: tuple[str, ...]
    file: Path

    @classmethod
    def from_keys(cls, labels: Sequence[str] | None, file: str | Path | None) -> LabelTable | None:
        """Check what can be checked without reading the file.

        Raises:
            ValueError: If only one of both is given, or the names are none, empty or repeated.
        """
        if labels is None and file is None:
            return None
        if labels is None or file is None:
            missing, given = ("labels", "label_file")[:: 1 if labels is None else -1]
            raise ValueError(
                f"FastaDataModule.{missing} must be given with {given}, got none; "
                "data.label_file says which record is what, data.labels lists what there is"
            )
        if not labels or len(set(labels)) < len(labels) or not all(map(str.strip, labels)):
            raise ValueError(
                f"FastaDataModule.labels must be different names, at least one, got {list(labels)};"
                " list each once"
            )
        return cls(tuple(labels), Path(file))

    def of_records(self, records: Sequence[str]) -> Int64[np.ndarray, " R"]:
        """Number the classes of records; ``NO_LABEL`` for those that are not in the file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If a line has not two columns, a name that is not a class, or a record of
                another line. The message starts with file and line.
        """
        found = self._read()
        return np.array([found.get(record, NO_LABEL) for record in records], dtype=np.int64)

    def _read(self) -> dict[str, int]:
        check_file(self.file)
        number = {name: place for place, name in enumerate(self.names)}
        found: dict[str, int] = {}
        for line, text in enumerate(self._lines(), start=1):
            if not text.strip() or text.startswith("#"):
                continue
            record, *rest = (column.strip() for column in text.split("\t"))
            if len(rest) != 1:
                raise ValueError(
                    f"{self.file}:{line}: a line needs a record and its label, got "
                    f"{1 + len(rest)} columns; separate the two by one tab"
                )
            if rest[0] not in number:
                raise ValueError(
                    f"{self.file}:{line}: label must be one of {describe_names(self.names)}, got "
                    f"{rest[0]!r}; correct it, or add it to data.labels"
                )
            if record in found:
                raise ValueError(
                    f"{self.file}:{line}: record {record!r} has a label already; keep one line"
                )
            found[record] = number[rest[0]]
        return found

    def _lines(self) -> list[str]:
        try:
            return self.file.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{self.file}: must be a text file ({error}); give an uncompressed table"
            ) from error
