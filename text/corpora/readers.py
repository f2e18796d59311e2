"""``seqdiff score --text`` and ``--jsonl``: the documents of a file, framed as in training."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.data import Record
from text.corpora.documents import UNITS, Reading, kind, read_named

if TYPE_CHECKING:
    from seqdiff.data import Tokenizer


@dataclass(frozen=True)
class TextReader:
    """A ``seqdiff.data.Reader`` of one kind of file.

    Attributes:
        flag: That takes the file.
        suffix: That the file must have, ``.gz`` set aside.
        option: Key of ``Reading`` that a further flag sets.
        help: Of the flag.
    """

    flag: str
    suffix: str
    option: str
    help: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """See ``Reader``."""
        if self.option == "document":
            parser.add_argument(
                "--document",
                choices=UNITS,
                default="line",
                help="what of a --text file is scored as one; default: line",
            )
        else:
            parser.add_argument(
                "--field",
                default="text",
                metavar="NAME",
                help="field of a --jsonl line that holds the text; default: text",
            )

    def read(self, path: Path, args: argparse.Namespace, tokenizer: Tokenizer) -> list[Record]:
        """See ``Reader``.

        Raises:
            ValueError: If the model is not one of text, the file is not sound, see
                ``read_documents``, or it holds no text.
        """
        import numpy as np

        from text.tokenizers import TextTokenizer

        if not isinstance(tokenizer, TextTokenizer):
            raise ValueError(
                f"score.{self.flag} must be scored by a model of text, got a run whose tokenizer "
                f"is {type(tokenizer).__name__}; choose another run"
            )
        if kind(path) != self.suffix:
            raise ValueError(
                f"score.{self.flag} must end in {self.suffix}, perhaps with .gz, got {path}; "
                "rename it"
            )
        reading = Reading(**{self.option: getattr(args, self.option)})
        records = []
        for number, document in enumerate(read_named(path, reading), start=1):
            ids = tokenizer.encode(document.text)
            if tokenizer.frame is not None:
                ids = np.concatenate([[tokenizer.frame[0]], ids, [tokenizer.frame[1]]])
            records.append(Record(document.name or f"document_{number}", (ids,)))
        if not records:
            raise ValueError(f"{path}: must hold a document with text, got none; check the file")
        return records


text_reader = TextReader("text", ".txt", "document", ".txt file, plain or gzip")
jsonl_reader = TextReader("jsonl", ".jsonl", "field", ".jsonl file, plain or gzip")
