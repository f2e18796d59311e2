"""FASTA: a streaming reader that yields ids, and an atomic writer."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

from genomics.sequence import ENCODE_TABLE, UPPER_TABLE, check_encoded, encode
from seqdiff.files import replacing

_CHUNK = 1 << 22
_GZIP_MAGIC = b"\x1f\x8b"
# An empty BGZF block; SAM specification (samtools.github.io/hts-specs), section 4.1.2.
_BGZF_EOF = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def is_gzip(path: Path) -> bool:
    """Say whether a file starts as gzip or bgzip does, whatever its name."""
    with path.open("rb") as stream:
        return stream.read(2) == _GZIP_MAGIC


def is_bgzip(path: Path) -> bool:
    """Say whether a file starts with a BGZF block."""
    with path.open("rb") as stream:
        head = stream.read(18)
    return head[:2] == _GZIP_MAGIC and head[12:14] == b"BC"


def check_file(path: Path) -> None:
    """Check that a path names a readable file.

    Raises:
        FileNotFoundError: If there is nothing there.
        ValueError: If it is a directory.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; check the path")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory, not a file; name the file inside it")


def read_encoded(
    path: Path, on_progress: Callable[[int], object] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Stream a FASTA file, plain, gzip or bgzip, as pieces of encoded records.

    A record comes as one or more pieces of one byte a base, ids ``0..4``, under its name, which is
    the header up to the first blank.

    Args:
        path: The file.
        on_progress: Told how many bytes of the file have been read so far.

    Returns:
        Each piece's record and its next bases.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is truncated, empty, not FASTA, or holds a letter that is not DNA, a
            record without a name or without bases, or two records of one name.
    """
    return _read(path, ENCODE_TABLE, on_progress)


def read_templates(path: Path) -> list[tuple[str, str]]:
    """Read the records of a FASTA file with their IUPAC codes, as ``sample --infill`` does.

    Args:
        path: The file, plain, gzip or bgzip.

    Returns:
        Names and letters in upper case.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For what ``read_encoded`` refuses.
    """
    records: dict[str, list[bytes]] = {}
    for name, piece in _read(path, UPPER_TABLE):
        records.setdefault(name, []).append(piece)
    return [(name, b"".join(pieces).decode("ascii")) for name, pieces in records.items()]


def _read(
    path: Path, table: bytes, on_progress: Callable[[int], object] | None = None
) -> Iterator[tuple[str, bytes]]:
    """Stream the pieces of a file's records through a table that maps what is no DNA to 255."""
    parser = _Parser(path, table)
    for chunk in _chunks(path, on_progress):
        yield from parser.feed(chunk)
    parser.close()


def _chunks(path: Path, on_progress: Callable[[int], object] | None) -> Iterator[bytes]:
    check_file(path)
    with path.open("rb") as raw:
        stream: BinaryIO | gzip.GzipFile = raw
        if is_gzip(path):
            if is_bgzip(path):
                check_bgzf_end(path)
            stream = gzip.GzipFile(fileobj=raw)
        while True:
            try:
                chunk = stream.read(_CHUNK)
            except EOFError as error:
                raise ValueError(f"{path}: the gzip file is truncated; fetch it again") from error
            except (gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(
                    f"{path}: the gzip file is damaged ({error}); fetch it again"
                ) from error
            if not chunk:
                return
            yield chunk
            if on_progress is not None:
                on_progress(raw.tell())


def check_bgzf_end(path: Path) -> None:
    """Check that a bgzip file is whole.

    Raises:
        ValueError: If the empty block that ends every one is missing.
    """
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - len(_BGZF_EOF)))
        if stream.read() != _BGZF_EOF:
            raise ValueError(
                f"{path}: the bgzip file is truncated, its end-of-file block is missing; "
                "fetch it again"
            )


class _Parser:
    """Cuts chunks at headers; a chunk may end anywhere, a record may be one long line."""

    def __init__(self, path: Path, table: bytes) -> None:
        self._path = path
        self._table = table
        self._seen: dict[str, int] = {}  # the line of each name
        self._name: str | None = None
        self._length = 0
        self._header: bytes | None = None  # bytes of a header whose line has not ended yet
        self._at_line_start = True
        self._line = 0  # of the last header
        self._lines = 0  # before the place in the chunk that they are counted up to
        self._counted = 0

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the pieces that a chunk completes."""
        yield from self._cut(chunk)
        self._count_lines(chunk, len(chunk))
        self._counted = 0

    def _count_lines(self, chunk: bytes, place: int) -> None:
        """Count the lines of a chunk up to a place, each of them once."""
        self._lines += chunk.count(b"\n", self._counted, place)
        self._counted = place

    def _cut(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        place = 0
        while place < len(chunk):
            if self._header is not None:
                end = chunk.find(b"\n", place)
                self._header += chunk[place:] if end < 0 else chunk[place:end]
                if end < 0:
                    return
                self._open(self._header)
                self._header, self._at_line_start, place = None, True, end + 1
            elif self._at_line_start and chunk[place] == ord(">"):
                self._end_record()
                self._count_lines(chunk, place)
                self._line = self._lines + 1
                self._header, place = b"", place + 1
            else:
                end = chunk.find(b"\n>", place)
                stop = len(chunk) if end < 0 else end + 1
                self._at_line_start = chunk[stop - 1] == ord("\n")
                piece = self._encode(chunk, place, stop)
                if piece and self._name is not None:
                    yield self._name, piece
                place = stop

    def close(self) -> None:
        """Check the last record, and that there is one."""
        if self._header is not None:
            self._open(self._header)
        self._end_record()
        if self._name is None:
            raise ValueError(f"{self._path}: the FASTA file is empty; it needs at least one record")

    def _encode(self, chunk: bytes, place: int, stop: int) -> bytes:
        text = chunk[place:stop]
        ids = text.translate(self._table, b"\r\n")
        if ids and self._name is None:
            raise ValueError(
                f"{self._path}: not a FASTA file, its first line does not start with '>'"
            )
        if b"\xff" in ids:
            in_lines = text.replace(b"\n", b"N").replace(b"\r", b"N").translate(self._table)
            wrong = place + in_lines.find(b"\xff")
            line = 1 + self._lines + chunk.count(b"\n", self._counted, wrong)
            where = f"{self._path}:{line}: record {self._name!r}"
            check_encoded(ids, text.translate(None, b"\r\n"), where=where, offset=self._length)
        self._length += len(ids)
        return ids

    def _open(self, header: bytes) -> None:
        words = header.decode("utf-8", "replace").split(maxsplit=1)
        where = f"{self._path}:{self._line}"
        if not words or header[:1].isspace():
            raise ValueError(
                f"{where}: record {len(self._seen) + 1} has no name; write it right after '>'"
            )
        self._name, self._length = words[0], 0
        if self._name in self._seen:
            raise ValueError(
                f"{where}: two records are named {self._name!r}, the first on line "
                f"{self._seen[self._name]}; give each its own name"
            )
        self._seen[self._name] = self._line

    def _end_record(self) -> None:
        if self._name is not None and self._length == 0:
            raise ValueError(
                f"{self._path}:{self._line}: record {self._name!r} has no bases; "
                "remove its header, or fetch the file again if it was cut short"
            )


def write_fasta(
    path: str | Path, names: Sequence[str], sequences: Sequence[str], *, width: int = 60
) -> None:
    """Write records with wrapped lines; the file appears only when it is complete.

    Args:
        path: Where to, uncompressed.
        names: Header lines without '>'; the name is what precedes the first blank.
        sequences: One a name; IUPAC codes in either case.
        width: Bases a line.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If the two differ in number or are none, a name is empty, broken or repeated, a
            sequence is empty or not DNA, the width is below 1, or the path asks for compression.
    """
    target = Path(path)
    _check_records(target, names, sequences, width)
    with replacing(target) as temporary, temporary.open("wb") as stream:
        for name, sequence in zip(names, sequences, strict=True):
            lines = [sequence[i : i + width] for i in range(0, len(sequence), width)]
            stream.write("\n".join((f">{name}", *lines, "")).encode())


def write_samples(path: Path, sequences: list[str], names: list[str]) -> None:
    """Write generated sequences as FASTA; what ``sample --out NAME.fa`` calls.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If a record cannot stand in a FASTA file, see ``write_fasta``.
    """
    write_fasta(path, names, sequences)


def _check_records(path: Path, names: Sequence[str], sequences: Sequence[str], width: int) -> None:
    if path.suffix in {".gz", ".bgz"}:
        raise ValueError(
            f"write_fasta.path must be uncompressed, got {path}; "
            f"write {path.with_suffix('')} and run: bgzip {path.with_suffix('')}"
        )
    if len(names) != len(sequences):
        raise ValueError(
            f"write_fasta.names must match sequences in number, got {len(names)} names for "
            f"{len(sequences)} sequences; give each sequence one name"
        )
    if not names:
        raise ValueError(f"write_fasta.names must not be empty, got none for {path}; add a record")
    if width < 1:
        raise ValueError(f"write_fasta.width must be at least 1, got {width}; 60 is usual")
    seen: set[str] = set()
    for name, sequence in zip(names, sequences, strict=True):
        words = name.split(maxsplit=1)
        if not words or name[0].isspace() or len(name.splitlines()) > 1 or words[0] in seen:
            raise ValueError(
                f"write_fasta.names must be unique, non-empty single lines, got {name!r}; rename it"
            )
        seen.add(words[0])
        if not sequence:
            raise ValueError(
                f"write_fasta.sequences must not be empty, got '' for {name!r}; "
                "leave the record out"
            )
        encode(sequence, where=f"write_fasta.sequences[{name!r}]")
