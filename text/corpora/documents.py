"""Documents streamed from .txt, .jsonl, .parquet and FASTA files, plain or gzip.

``TextReader`` and ``JSONLinesReader`` implement ``seqdiff score --text`` and ``--jsonl``.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, ClassVar, Literal, NamedTuple

from seqdiff.data import Record
from seqdiff.extras import require_extra
from seqdiff.files import is_gzip, parse_json

if TYPE_CHECKING:
    from seqdiff.data import Tokenizer

Unit = Literal["file", "line", "paragraph"]
Edges = Literal["kept", "trimmed", "line"]
UNITS: tuple[Unit, ...] = ("file", "line", "paragraph")
_FASTA = (".fa", ".fasta", ".faa", ".fna")
SUFFIXES = (".txt", ".jsonl", ".parquet", *_FASTA)

_BOM = b"\xef\xbb\xbf"
_ROWS = 1024


@dataclass(frozen=True)
class Reading:
    """How documents are read from files.

    Attributes:
        document: Unit of text in a .txt file: the file, a line, or a paragraph (paragraphs are
            separated by empty lines).
        field: The field of a .jsonl line, or the column of a .parquet file, that holds the text.
        edges: How to normalise white space at the start and end of a text, see ``mend_edges``.
    """

    document: Unit = "line"
    field: str = "text"
    edges: Edges = "kept"


class Document(NamedTuple):
    """A document of a file.

    Attributes:
        text: The text.
        name: The field ``name`` of a .jsonl line, or else ``id``, without line breaks; ``None`` if
            there is neither.
    """

    text: str
    name: str | None = None


def kind(path: Path) -> str:
    """Return the suffix that tells the format of a file, without ``.gz``.

    Raises:
        ValueError: If the format is unknown.
    """
    suffixes = [suffix for suffix in path.suffixes if suffix != ".gz"]
    if suffixes and suffixes[-1] in SUFFIXES:
        return suffixes[-1]
    raise ValueError(
        f"{path}: must end in one of {', '.join(SUFFIXES)}, optionally with .gz; rename the file"
    )


def read_documents(path: Path, reading: Reading) -> Iterator[str]:
    """Stream the documents of a file, except those without a visible character.

    Line breaks at the ends of lines are removed. A byte order mark at the start of a file is
    dropped.

    Args:
        path: An existing file.
        reading: How to read it.

    Raises:
        ValueError: If the file is damaged or not UTF-8, or a line or row has no text in the field;
            the message gives the position.
    """
    for document in read_named(path, reading):
        yield document.text


def read_named(path: Path, reading: Reading) -> Iterator[Document]:
    """Stream the documents of a file as ``read_documents`` does, with their names."""
    readers = {".txt": _read_txt, ".jsonl": _read_jsonl, ".parquet": _read_parquet}
    readers |= dict.fromkeys(_FASTA, _read_fasta)
    for document in readers[kind(path)](path, reading):
        if document.text.strip():
            yield document._replace(text=mend_edges(document.text, reading.edges))


def mend_edges(text: str, edges: Edges) -> str:
    """Normalise white space at the start and end of a text, so that all file formats agree.

    Args:
        text: A document with a visible character.
        edges: ``kept`` leaves the text unchanged, ``trimmed`` removes white space, and ``line``
            ends the text with one line feed and keeps the spaces before it.
    """
    if edges == "line":
        return text.rstrip("\r\n") + "\n"
    return text.strip() if edges == "trimmed" else text


def _read_txt(path: Path, reading: Reading) -> Iterator[Document]:
    lines = _lines(path)
    if reading.document == "line":
        for _, line in lines:
            yield Document(line.rstrip("\r\n"))
    elif reading.document == "file":
        yield Document("".join(line for _, line in lines))
    else:
        parts: list[str] = []
        for _, line in lines:
            if line.strip():
                parts.append(line)
            elif parts:
                yield Document("".join(parts).rstrip("\r\n"))
                parts = []
        yield Document("".join(parts).rstrip("\r\n"))


def _read_fasta(path: Path, reading: Reading) -> Iterator[Document]:
    """Read the sequence of each record, for tokenizers of DNA and proteins."""
    del reading
    name: str | None = None
    parts: list[str] = []
    for number, line in _lines(path):
        if line.startswith(">"):
            if name is not None:
                yield Document("".join(parts), name)
            name, parts = " ".join(line[1:].split()) or f"record_{number}", []
        elif line.strip() and name is None:
            raise ValueError(
                f"{path}:{number}: must be FASTA, whose first line starts with '>', got "
                f"{line.strip()[:20]!r}; correct the file"
            )
        else:
            parts.append(line.strip())
    if name is not None:
        yield Document("".join(parts), name)


def _read_jsonl(path: Path, reading: Reading) -> Iterator[Document]:
    for number, line in _lines(path):
        if not line.strip():
            continue
        where = f"{path}:{number}"
        try:
            record = parse_json(line)
        except ValueError as error:
            found = isinstance(error, json.JSONDecodeError)
            said = f"{error.msg} at column {error.colno}" if found else str(error)
            raise ValueError(
                f"{where}: must be a JSON object, got: {said}; correct the line"
            ) from error
        if not isinstance(record, dict):
            raise ValueError(
                f"{where}: must be a JSON object, got {type(record).__name__}; correct the line"
            )
        if not isinstance(record.get(reading.field), str):
            there = f"the fields {', '.join(map(repr, record))}" if record else "no fields"
            got = there if reading.field not in record else "a value that is not a string"
            raise ValueError(
                f"{where}: must have text in the field {reading.field!r}, got {got}; "
                "set the field, or correct the line"
            )
        yield Document(_checked(record[reading.field], where), _name(record, reading))


def _name(record: dict[str, object], reading: Reading) -> str | None:
    for key in ("name", "id"):
        value = record.get(key)
        if key != reading.field and isinstance(value, str | int) and not isinstance(value, bool):
            name = str(value).encode("utf-8", "replace").decode()
            if words := name.split():
                return " ".join(words)
    return None


def _checked(text: str, where: str) -> str:
    """Check that there is no unpaired surrogate, which UTF-8 cannot represent."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{where}: must not contain unpaired surrogates, got "
            f"\\u{ord(text[error.start]):04x}; correct the line"
        ) from error
    return text


def _read_parquet(path: Path, reading: Reading) -> Iterator[Document]:
    parquet = require_extra("pyarrow.parquet", "text.corpora.documents", "text")
    arrow = require_extra("pyarrow", "text.corpora.documents", "text")
    try:
        file = parquet.ParquetFile(path)
        if reading.field not in file.schema_arrow.names:
            raise ValueError(
                f"{path}: must have the column {reading.field!r}, got "
                f"{', '.join(map(repr, file.schema_arrow.names))}; set the field"
            )
        row = 0
        for batch in file.iter_batches(batch_size=_ROWS, columns=[reading.field]):
            for text in batch.column(0).to_pylist():
                if not isinstance(text, str):
                    raise ValueError(
                        f"{path}: must hold text in column {reading.field!r}, got "
                        f"{type(text).__name__} in row {row}; drop the row, or set the field"
                    )
                yield Document(text)
                row += 1
    except (arrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}: the parquet file is damaged ({error}); download it again"
        ) from error


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Decode lines and number them; line breaks are kept."""
    offset = 0
    for number, line in enumerate(_raw_lines(path), start=1):
        skipped = len(_BOM) if number == 1 and line.startswith(_BOM) else 0
        try:
            yield number, line[skipped:].decode("utf-8")
        except UnicodeDecodeError as error:
            place = offset + skipped + error.start
            unpacked = " of the uncompressed text" if is_gzip(path) else ""
            raise ValueError(
                f"{path}: must be UTF-8, got byte 0x{line[skipped + error.start]:02x} at offset "
                f"{place}{unpacked} (line {number}); convert it, for example with "
                "iconv -f LATIN1 -t UTF-8"
            ) from error
        offset += len(line)


def _raw_lines(path: Path) -> Iterator[bytes]:
    packed = is_gzip(path)
    with path.open("rb") as raw:
        stream: BinaryIO | gzip.GzipFile = gzip.GzipFile(fileobj=raw) if packed else raw
        try:
            yield from stream
        except EOFError as error:
            raise ValueError(f"{path}: the gzip file is truncated; download it again") from error
        except (gzip.BadGzipFile, zlib.error) as error:
            raise ValueError(
                f"{path}: the gzip file is damaged ({error}); download it again"
            ) from error


@dataclass(frozen=True, kw_only=True)
class TextReader:
    """A ``seqdiff.data.Reader`` of .txt files.

    Attributes:
        text: .txt file, plain or gzip, or a folder or glob of them.
        document: Unit of a .txt file that is scored as one sequence.
    """

    text: Path | None = None
    document: Literal["file", "line", "paragraph"] = "line"
    suffixes: ClassVar = ("txt",)

    def read(self, files: Sequence[Path], tokenizer: Tokenizer) -> list[Record]:
        """Read the documents; those without a name are numbered through all files.

        Raises:
            ValueError: If the model is not one of text, or a file is invalid or holds no text.
        """
        return _read_records("text", ".txt", files, Reading(document=self.document), tokenizer)


@dataclass(frozen=True, kw_only=True)
class JSONLinesReader:
    """A ``seqdiff.data.Reader`` of .jsonl files.

    Attributes:
        jsonl: .jsonl file, plain or gzip, or a folder or glob of them.
        field: Field of a .jsonl line that holds the text.
    """

    jsonl: Path | None = None
    field: str = "text"
    suffixes: ClassVar = ("jsonl",)

    def read(self, files: Sequence[Path], tokenizer: Tokenizer) -> list[Record]:
        """Read the documents; those without a name are numbered through all files.

        Raises:
            ValueError: If the model is not one of text, or a file is invalid or holds no text.
        """
        return _read_records("jsonl", ".jsonl", files, Reading(field=self.field), tokenizer)


def _read_records(
    flag: str, suffix: str, files: Sequence[Path], reading: Reading, tokenizer: Tokenizer
) -> list[Record]:
    import numpy as np

    from seqdiff.data import StringTokenizer

    if not isinstance(tokenizer, StringTokenizer):
        raise ValueError(
            f"score.{flag} requires a run on text, got a run whose tokenizer is "
            f"{type(tokenizer).__name__}; choose another run"
        )
    for path in files:
        if kind(path) != suffix:
            raise ValueError(
                f"score.{flag} must end in {suffix}, optionally with .gz, got {path}; rename the "
                "file"
            )
    records: list[Record] = []
    for path in files:
        before = len(records)
        for document in read_named(path, reading):
            ids = tokenizer.encode(document.text)
            if tokenizer.frame is not None:
                ids = np.concatenate([[tokenizer.frame[0]], ids, [tokenizer.frame[1]]])
            records.append(Record(document.name or f"document_{len(records) + 1}", (ids,)))
        if len(records) == before:
            raise ValueError(f"{path}: must hold a document with text, got none; check the file")
    return records
