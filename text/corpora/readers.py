"""``seqdiff score --text`` and ``--jsonl``: the documents of a file, framed as in training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from seqdiff.data import Record

if TYPE_CHECKING:
    from seqdiff.data import Tokenizer
    from text.corpora.documents import Reading


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """A ``seqdiff.data.Reader`` of .txt files.

    Attributes:
        text: .txt file, plain or gzip.
        document: What is scored as one sequence of a .txt file.
    """

    text: Path | None = None
    document: Literal["file", "line", "paragraph"] = "line"
    suffixes: ClassVar = ("txt",)

    def read(self, path: Path, tokenizer: Tokenizer) -> list[Record]:
        """Read the documents.

        Raises:
            ValueError: If the model is not one of text, the file is not sound, or it holds no text.
        """
        from text.corpora.documents import Reading

        return _read("text", ".txt", path, Reading(document=self.document), tokenizer)


@dataclass(frozen=True, kw_only=True)
class JSONLinesReader:
    """A ``seqdiff.data.Reader`` of .jsonl files.

    Attributes:
        jsonl: .jsonl file, plain or gzip.
        field: Field of a .jsonl line that holds the text.
    """

    jsonl: Path | None = None
    field: str = "text"
    suffixes: ClassVar = ("jsonl",)

    def read(self, path: Path, tokenizer: Tokenizer) -> list[Record]:
        """Read the documents.

        Raises:
            ValueError: If the model is not one of text, the file is not sound, or it holds no text.
        """
        from text.corpora.documents import Reading

        return _read("jsonl", ".jsonl", path, Reading(field=self.field), tokenizer)


def _read(
    flag: str, suffix: str, path: Path, reading: Reading, tokenizer: Tokenizer
) -> list[Record]:
    import numpy as np

    from text.corpora.documents import kind, read_named
    from text.tokenizers import TextTokenizer

    if not isinstance(tokenizer, TextTokenizer):
        raise ValueError(
            f"score.{flag} must be scored by a model of text, got a run whose tokenizer "
            f"is {type(tokenizer).__name__}; choose another run"
        )
    if kind(path) != suffix:
        raise ValueError(
            f"score.{flag} must end in {suffix}, perhaps with .gz, got {path}; rename it"
        )
    records = []
    for number, document in enumerate(read_named(path, reading), start=1):
        ids = tokenizer.encode(document.text)
        if tokenizer.frame is not None:
            ids = np.concatenate([[tokenizer.frame[0]], ids, [tokenizer.frame[1]]])
        records.append(Record(document.name or f"document_{number}", (ids,)))
    if not records:
        raise ValueError(f"{path}: must hold a document with text, got none; check the file")
    return records
