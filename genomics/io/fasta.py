"""Read and write FASTA, and open the plain or compressed files of other formats."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from jaxtyping import UInt8

from genomics.sequence import ENCODE_TABLE, SEQUENCE_TABLE, UPPER_TABLE, check_encoded, encode
from seqdiff.files import is_gzip, replacing

_CHUNK = 1 << 22
# An empty BGZF block; SAM specification (samtools.github.io/hts-specs), section 4.1.2.
_BGZF_EOF = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def is_bgzip(path: Path) -> bool:
    """Return whether the file starts with a BGZF block."""
    with path.open("rb") as stream:
        head = stream.read(18)
    return head[:2] == b"\x1f\x8b" and head[12:14] == b"BC"


def check_file(path: Path, fix: str = "check the path") -> None:
    """Check that a path is an existing file.

    Args:
        path: The file.
        fix: What to do if there is none, for the message.

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If the path is a directory.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file; {fix}")
    if path.is_dir():
        raise ValueError(f"{path}: is a directory, not a file; name the file inside it")


def read_text(path: Path, kind: str) -> str:
    """Read a whole text file, plain or compressed.

    Args:
        path: The file.
        kind: Format for the error messages, for example ``BED``.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is truncated or is not text.
    """
    check_file(path)
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if is_gzip(path) else data).decode("utf-8")
    except EOFError as error:
        raise ValueError(f"{path}: the gzip file is truncated; fetch it again") from error
    except (gzip.BadGzipFile, zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable {kind} file ({error}); fetch it again") from error


@dataclass
class Place:
    """Where the reader of a FASTA file stands between two lines or within a line of bases.

    Attributes:
        offset: Bytes of the text, decompressed, that have been read.
        at_line_start: Whether a line starts there.
        bases: Bases of all records so far.
        records: For each record so far, the offset of its header and its number of bases so far.
    """

    offset: int = 0
    at_line_start: bool = True
    bases: int = 0
    records: dict[str, list[int]] = field(default_factory=dict)


def read_encoded(
    path: Path,
    on_progress: Callable[[int], object] | None = None,
    place: Place | None = None,
) -> Iterator[tuple[str, bytes]]:
    """Stream a FASTA file, plain, gzip or bgzip, as pieces of encoded records.

    A record comes as one or more pieces of one byte per base, ids ``0..4``. Its name is the header
    up to the first blank.

    Args:
        path: The file.
        on_progress: Called with the number of bytes of the file read so far, when ``place`` is
            after all bases returned so far.
        place: Where to begin; it moves with the reader. The default is the start of the file.

    Returns:
        Pairs of the record's name and its next bases.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is truncated, empty or not FASTA, contains a character that is not
            DNA, a record without a name or without bases, or two records with the same name.
    """
    return _read(path, ENCODE_TABLE, on_progress, place)


class FastaRecord(NamedTuple):
    """A record of a FASTA file.

    Attributes:
        path: The file.
        name: The header up to the first blank.
        ids: Ids ``0..4`` of the bases.
    """

    path: Path
    name: str
    ids: UInt8[np.ndarray, " L"]


def read_records(files: Iterable[Path]) -> Iterator[FastaRecord]:
    """Stream the records of FASTA files, one at a time, as if the files were one.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is not valid, see ``read_encoded``, or two files have a record of the
            same name.
    """
    for path, name, ids in _records(files, ENCODE_TABLE):
        yield FastaRecord(path, name, np.frombuffer(ids, np.uint8))


def read_strings(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Stream the names and sequences of FASTA files of DNA or proteins, in upper case.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file is not valid FASTA or has other characters than A to Z, ``*``, ``-``
            and ``.``, or two files have a record of the same name.
    """
    for _, name, text in _records(files, SEQUENCE_TABLE):
        yield name, text.decode("ascii")


def _records(files: Iterable[Path], table: bytes) -> Iterator[tuple[Path, str, bytes]]:
    """Stream whole records through a translation table."""
    found: dict[str, Path] = {}
    for path in files:
        for name, pieces in groupby(_read(path, table), key=itemgetter(0)):
            if name in found:
                raise ValueError(
                    f"{path}: record {name!r}: two files must not have records of the same name, "
                    f"got one in {found[name]} too; rename it, or leave out a file"
                )
            found[name] = path
            yield path, name, b"".join(piece for _, piece in pieces)


def read_templates(path: Path) -> list[tuple[str, str]]:
    """Read records with their IUPAC codes, for ``sample --infill``.

    Returns:
        Pairs of name and sequence in upper case.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not valid, see ``read_encoded``.
    """
    return [(name, text.decode("ascii")) for name, text in _join(_read(path, UPPER_TABLE)).items()]


def _join(pieces: Iterator[tuple[str, bytes]]) -> dict[str, bytes]:
    records: dict[str, list[bytes]] = {}
    for name, piece in pieces:
        records.setdefault(name, []).append(piece)
    return {name: b"".join(parts) for name, parts in records.items()}


def _read(
    path: Path,
    table: bytes,
    on_progress: Callable[[int], object] | None = None,
    place: Place | None = None,
) -> Iterator[tuple[str, bytes]]:
    """Stream records through a translation table that maps invalid characters to 255."""
    parser = _Parser(path, table, Place() if place is None else place)
    for chunk, done in _chunks(path, parser.place.offset):
        yield from parser.feed(chunk)
        if on_progress is not None and not parser.in_header:
            on_progress(done)
    parser.close()


def _chunks(path: Path, offset: int = 0) -> Iterator[tuple[bytes, int]]:
    """Read a text from an offset; each chunk comes with the bytes of the file read so far.

    Chunks are empty while compressed text before the offset is skipped.
    """
    check_file(path)
    with path.open("rb") as raw:
        stream: BinaryIO | gzip.GzipFile = raw
        if not is_gzip(path):
            raw.seek(offset)
            offset = 0
        else:
            if is_bgzip(path):
                check_bgzf_end(path)
                offset = _skip_blocks(raw, offset)
            stream = gzip.GzipFile(fileobj=raw)
        while True:
            try:
                chunk = stream.read(min(offset, _CHUNK) or _CHUNK)
            except EOFError as error:
                raise ValueError(f"{path}: the gzip file is truncated; fetch it again") from error
            except (gzip.BadGzipFile, zlib.error) as error:
                raise ValueError(
                    f"{path}: the gzip file is damaged ({error}); fetch it again"
                ) from error
            if not chunk:
                return
            yield b"" if offset else chunk, raw.tell()
            offset = max(0, offset - len(chunk))


def _skip_blocks(raw: BinaryIO, offset: int) -> int:
    """Move to the bgzip block that contains an offset of the text; return the offset within it."""
    while True:
        start = raw.tell()
        head = raw.read(18)
        if head[12:14] != b"BC":  # the end, or a block that only decompression can skip
            break
        raw.seek(start + int.from_bytes(head[16:18], "little") + 1 - 4)
        size = int.from_bytes(raw.read(4), "little")
        if offset < size:
            break
        offset -= size
    raw.seek(start)
    return offset


def check_bgzf_end(path: Path) -> None:
    """Check that a bgzip file is complete.

    Raises:
        ValueError: If the empty block at the end of every bgzip file is missing.
    """
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - len(_BGZF_EOF)))
        if stream.read() != _BGZF_EOF:
            raise ValueError(
                f"{path}: the bgzip file is truncated, its end-of-file block is missing; "
                "fetch it again"
            )


class _Parser:
    """Splits chunks at headers. A chunk may end anywhere; a record may be a single long line."""

    def __init__(self, path: Path, table: bytes, place: Place) -> None:
        self.place = place
        self._path = path
        self._table = table
        self._name = next(reversed(place.records), None)
        self._header: bytes | None = None  # start of a header that continues in the next chunk
        self._header_at = 0

    @property
    def in_header(self) -> bool:
        """Whether the chunks so far end within a header."""
        return self._header is not None

    def feed(self, chunk: bytes) -> Iterator[tuple[str, bytes]]:
        """Yield the pieces that a chunk contains."""
        at, first = 0, self.place.offset
        while at < len(chunk):
            if self._header is not None:
                end = chunk.find(b"\n", at)
                self._header += chunk[at:] if end < 0 else chunk[at:end]
                if end < 0:
                    break
                self._open(self._header)
                self._header, self.place.at_line_start, at = None, True, end + 1
            elif self.place.at_line_start and chunk[at] == ord(">"):
                self._end_record()
                self._header, self._header_at, at = b"", first + at, at + 1
            else:
                end = chunk.find(b"\n>", at)
                stop = len(chunk) if end < 0 else end + 1
                self.place.at_line_start = chunk[stop - 1] == ord("\n")
                piece = self._encode(chunk[at:stop], first + at)
                if piece and self._name is not None:
                    yield self._name, piece
                at = stop
        self.place.offset = first + len(chunk)

    def close(self) -> None:
        """Check the last record and that there is at least one."""
        if self._header is not None:
            self._open(self._header)
        self._end_record()
        if self._name is None:
            raise ValueError(f"{self._path}: the FASTA file is empty; it needs at least one record")

    def _line(self, offset: int) -> int:
        """Count lines up to an offset by reading the file again; only errors need line numbers."""
        line = 1
        for chunk, _ in _chunks(self._path):
            line += chunk.count(b"\n", 0, max(0, offset))
            offset -= len(chunk)
            if offset <= 0:
                break
        return line

    def _encode(self, text: bytes, offset: int) -> bytes:
        ids = text.translate(self._table, b"\r\n")
        if not ids:
            return ids
        if self._name is None:
            raise ValueError(
                f"{self._path}: not a FASTA file, its first line does not start with '>'"
            )
        record = self.place.records[self._name]
        if b"\xff" in ids:
            in_lines = text.replace(b"\n", b"N").replace(b"\r", b"N").translate(self._table)
            line = self._line(offset + in_lines.find(b"\xff"))
            where = f"{self._path}:{line}: record {self._name!r}"
            check_encoded(
                ids,
                text.translate(None, b"\r\n"),
                where=where,
                offset=record[1],
                residues=self._table is SEQUENCE_TABLE,
            )
        record[1] += len(ids)
        self.place.bases += len(ids)
        return ids

    def _open(self, header: bytes) -> None:
        records = self.place.records
        words = header.decode("utf-8", "replace").split(maxsplit=1)
        if not words or header[:1].isspace():
            raise ValueError(
                f"{self._path}:{self._line(self._header_at)}: record {len(records) + 1} has "
                "no name; write it right after '>'"
            )
        self._name = words[0]
        if self._name in records:
            raise ValueError(
                f"{self._path}:{self._line(self._header_at)}: two records are named "
                f"{self._name!r}, the first on line {self._line(records[self._name][0])}; "
                "give each its own name"
            )
        records[self._name] = [self._header_at, 0]

    def _end_record(self) -> None:
        if self._name is None:
            return
        header_at, bases = self.place.records[self._name]
        if bases == 0:
            raise ValueError(
                f"{self._path}:{self._line(header_at)}: record {self._name!r} has no bases; "
                "remove its header, or fetch the file again if it was cut short"
            )


def write_fasta(
    path: str | Path, names: Iterable[str], sequences: Iterable[str], *, width: int = 60
) -> None:
    """Write records one by one, with wrapped lines; the file appears only if all are valid.

    Args:
        path: Uncompressed output file.
        names: Headers without '>'. The name is the part before the first blank.
        sequences: One sequence per name, IUPAC codes in either case.
        width: Bases per line.

    Raises:
        OSError: If the file cannot be written.
        ValueError: If there are no records or not one name per sequence, if a name is empty,
            repeated or spans lines, if a sequence is empty or not DNA, if the width is below 1, or
            if the path has a suffix of compressed files.
    """
    target = Path(path)
    if target.suffix in {".gz", ".bgz"}:
        raise ValueError(
            f"write_fasta.path must be uncompressed, got {target}; "
            f"write {target.with_suffix('')} and run: bgzip {target.with_suffix('')}"
        )
    if width < 1:
        raise ValueError(f"write_fasta.width must be at least 1, got {width}; 60 is usual")
    seen: set[str] = set()
    with replacing(target) as temporary, temporary.open("wb") as stream:
        for name, sequence in zip_longest(names, sequences):
            if name is None or sequence is None:
                more, fewer = ("sequences", "names") if name is None else ("names", "sequences")
                raise ValueError(
                    f"write_fasta.names must match sequences in number, got more {more} than "
                    f"{fewer}; give each sequence one name"
                )
            seen.add(_check_record(name, sequence, seen))
            lines = [sequence[i : i + width] for i in range(0, len(sequence), width)]
            stream.write("\n".join((f">{name}", *lines, "")).encode())
        if not seen:
            raise ValueError(
                f"write_fasta.names must not be empty, got none for {target}; add a record"
            )


def write_samples(path: Path, sequences: Iterable[str], names: Iterable[str]) -> None:
    """Write generated sequences for ``sample --out``, see ``write_fasta``."""
    write_fasta(path, names, sequences)


def _check_record(name: str, sequence: str, seen: Container[str]) -> str:
    """Check a record, and return its name without the description."""
    words = name.split(maxsplit=1)
    if not words or name[0].isspace() or len(name.splitlines()) > 1 or words[0] in seen:
        raise ValueError(
            f"write_fasta.names must be unique, non-empty single lines, got {name!r}; rename it"
        )
    if not sequence:
        raise ValueError(
            f"write_fasta.sequences must not be empty, got '' for {name!r}; leave the record out"
        )
    encode(sequence, where=f"write_fasta.sequences[{name!r}]")
    return words[0]
