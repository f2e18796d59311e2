"""A genome as one memory-mapped array of ids, cached under a hash of the FASTA file's content.

A cache file consists of a 64-byte header (magic, bytes of ids, bytes of index, CRC-32 of the
index), the ids ``0..4`` of all records in file order, and a JSON index with names and lengths.
While it is written, it is a partial file without header and index. A second file says up to where
the partial file is finished, so that an interrupted encoding can continue from there.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from genomics.io.fasta import Place, check_file, read_encoded
from seqdiff.files import (
    alone,
    content_digest,
    continuing,
    make_cache_folder,
    parse_json,
    write_bytes,
)
from seqdiff.progress import Bar

_HEADER = struct.Struct("<8sQQI36x")
_MAGIC = b"SEQDNA01"
_BAR_FROM_BYTES = 16 << 20
_CHUNK = 1 << 22
_PIECE = 1 << 28  # bytes of text after which the encoding could continue
_LONG_SECONDS = 30.0
_HELD_BYTES = 1 << 27
_MAPPED_AROUND = 1 << 21  # Linux maps up to 2 MiB around a base that is read


class Genome:
    """The encoded records of a genome in one array.

    Attributes:
        names: Record names in file order.
        lengths: Bases of each record.
        offsets: Start of each record in ``ids``.
        ids: All bases, ``0..4``; read-only and usually memory-mapped.
        digest: Hash of the FASTA file's content, empty for a genome made in memory.
    """

    names: tuple[str, ...]
    lengths: Int64[np.ndarray, " R"]
    offsets: Int64[np.ndarray, " R"]
    ids: UInt8[np.ndarray, " N"]
    digest: str

    def __init__(self, cached: Path, digest: str) -> None:
        """Map a cache file; use ``load_genome`` to open a FASTA file.

        Raises:
            ValueError: If the cache file is damaged.
        """
        names, lengths = _read_index(cached)
        with cached.open("rb") as stream:
            self._map: mmap.mmap | None = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
        ids = np.frombuffer(self._map, np.uint8, int(lengths.sum()), _HEADER.size)
        self._cached: Path | None = cached
        self._set(names, lengths, ids, digest)

    def _set(
        self, names: tuple[str, ...], lengths: np.ndarray, ids: np.ndarray, digest: str
    ) -> None:
        self.names, self.lengths, self.ids, self.digest = names, lengths, ids, digest
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]])
        self._held = 0

    @classmethod
    def from_records(cls, records: Mapping[str, UInt8[np.ndarray, " L"]]) -> Genome:
        """Create a genome in memory from ids ``0..4`` by name, at least one record."""
        genome = cls.__new__(cls)
        genome._cached = genome._map = None
        lengths = np.array([len(ids) for ids in records.values()], dtype=np.int64)
        genome._set(tuple(records), lengths, np.concatenate(list(records.values())), "")
        return genome

    def record(self, name: str) -> UInt8[np.ndarray, " L"]:
        """Return a view of one record's ids.

        Raises:
            ValueError: If there is no record of this name.
        """
        try:
            i = self.names.index(name)
        except ValueError:
            raise ValueError(
                f"Genome.record must be one of {describe_names(self.names)}, got {name!r}; "
                "check that both files use the same chromosome names"
            ) from None
        return self.ids[self.offsets[i] : self.offsets[i] + self.lengths[i]]

    def count_reads(self, number: int, length: int) -> None:
        """Bound the memory that reads from ``ids`` take; call it after reading.

        The system keeps every page of the file that was read in the memory of the process until it
        needs the memory. This function gives the pages back before they exceed about 128 MiB.

        Args:
            number: Number of separate places that were read.
            length: Bases read at each.
        """
        self._held += number * (length + _MAPPED_AROUND)
        if self._held >= _HELD_BYTES and self._map is not None:
            self._held = 0
            if hasattr(mmap, "MADV_DONTNEED"):
                self._map.madvise(mmap.MADV_DONTNEED)

    def __getstate__(self) -> tuple[Path | None, str, dict[str, np.ndarray]]:
        """Pickle the path of the cache file instead of the bases."""
        records = {} if self._cached is not None else {n: self.record(n) for n in self.names}
        return self._cached, self.digest, records

    def __setstate__(self, state: tuple[Path | None, str, dict[str, np.ndarray]]) -> None:
        """Map the file again."""
        cached, digest, records = state
        if cached is not None:
            self.__init__(cached, digest)
        else:
            self.__dict__.update(Genome.from_records(records).__dict__)


def describe_names(names: tuple[str, ...]) -> str:
    """List at most eight names for an error message."""
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


def load_genome(fasta: str | Path) -> Genome:
    """Open a FASTA file (plain, gzip or bgzip); the first call encodes it into the cache.

    If the encoding is interrupted, the next call continues it. One process at a time encodes a
    file. Other processes wait for it.

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If the cache cannot be written.
        ValueError: If the file is not valid FASTA of DNA, see ``genomics.io.fasta.read_encoded``.
    """
    source = Path(fasta)
    check_file(source)
    folder = make_cache_folder()
    with _bar("reading", source) as show:
        digest = content_digest(source, folder, show)
    cached = folder / f"{digest}.dna"
    genome = _open(cached, digest)
    if genome is not None:
        return genome
    say = f"seqdiff: waiting for another process that is encoding {source.name}"
    # Where file locks do not exist, two processes may write the same bytes to the same places.
    with alone(folder / f"{digest}.lock", lambda: print(say, file=sys.stderr, flush=True)):
        genome = _open(cached, digest)
        if genome is None:
            _encode(source, cached)
            genome = Genome(cached, digest)
    return genome


def _open(cached: Path, digest: str) -> Genome | None:
    """Open a cache file; ``None`` if there is none, or it was cut short."""
    try:
        return Genome(cached, digest)
    except (FileNotFoundError, ValueError):
        return None


@contextmanager
def _bar(verb: str, source: Path) -> Iterator[Callable[..., None]]:
    """Make a bar of the bytes read of a file, which appears when it is first updated."""
    size = source.stat().st_size
    bar = Bar(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TextColumn("{task.fields[metrics]}"),
        TimeRemainingColumn(),
        disable=size < _BAR_FROM_BYTES,
    )
    with ExitStack() as shown:

        def show(done: int, metrics: str = "") -> None:
            if not bar.tasks:
                shown.enter_context(bar)
                bar.add_task(f"{verb} {source.name}", total=size, metrics=metrics)
            bar.update(bar.tasks[0].id, completed=done, metrics=metrics)

        yield show


def _encode(source: Path, cached: Path) -> None:
    """Write the cache file, or the rest of one that an interrupted process has begun."""
    partial, finished = cached.with_suffix(".partial"), cached.with_suffix(".finished")
    free = shutil.disk_usage(cached.parent).free
    needed = source.stat().st_size - (partial.stat().st_size if partial.exists() else 0)
    if free < needed:
        raise OSError(
            f"{cached.parent}: needs at least {needed:,} bytes for the encoded {source.name}, "
            f"has {free:,}; free some space or set SEQDIFF_CACHE to another folder"
        )
    place, crc = _read_finished(finished, partial)
    before, began = place.bases, time.monotonic()

    def rate() -> str:
        seconds = max(time.monotonic() - began, 1e-9)
        return f"{(place.bases - before) / seconds / 1e6:.1f} M bases/s"

    try:
        with continuing(cached, partial), _bar("encoding", source) as show:
            _write(source, partial, finished, place, crc, lambda done: show(done, rate()))
    finally:
        if not partial.exists():
            finished.unlink(missing_ok=True)
    seconds = time.monotonic() - began
    if seconds >= _LONG_SECONDS:
        done = f"{place.bases - before:,} bases in {seconds:.0f} s, {rate()}"
        print(f"seqdiff: encoded {source.name}: {done}", file=sys.stderr, flush=True)


def _read_finished(finished: Path, partial: Path) -> tuple[Place, int]:
    """Return where to continue a partial file, and the CRC-32 of its ids up to there.

    This is the start if the files do not exist, are damaged, or do not fit each other.
    """
    try:
        saved = parse_json(finished.read_bytes())
        place, crc = Place(**saved["place"]), 0
        with partial.open("rb") as stream:
            stream.seek(_HEADER.size)
            left = place.bases
            while left and (chunk := stream.read(min(left, _CHUNK))):
                crc, left = zlib.crc32(chunk, crc), left - len(chunk)
        if left == 0 and saved["magic"] == _MAGIC.decode() and saved["crc"] == crc:
            return place, crc
    except (FileNotFoundError, KeyError, TypeError, ValueError):
        pass  # the encoding starts again
    return Place(), 0


def _write(
    source: Path,
    partial: Path,
    finished: Path,
    place: Place,
    crc: int,
    on_progress: Callable[[int], object],
) -> None:
    """Write ids from a place on, and the index; now and then note up to where they are written."""
    noted = place.offset
    with partial.open("r+b" if place.bases else "wb") as stream:
        stream.seek(_HEADER.size + place.bases)

        def after_chunk(done: int) -> None:
            nonlocal noted
            if place.offset - noted >= _PIECE:
                stream.flush()
                os.fsync(stream.fileno())
                state = {"magic": _MAGIC.decode(), "crc": crc, "place": asdict(place)}
                write_bytes(finished, json.dumps(state).encode())
                noted = place.offset
            on_progress(done)

        for _, ids in read_encoded(source, after_chunk, place):
            stream.write(ids)
            crc = zlib.crc32(ids, crc)
        lengths = [length for _, length in place.records.values()]
        index = json.dumps({"names": list(place.records), "lengths": lengths}).encode()
        stream.write(index)
        stream.truncate()
        stream.seek(0)
        stream.write(_HEADER.pack(_MAGIC, place.bases, len(index), zlib.crc32(index)))


def _read_index(cached: Path) -> tuple[tuple[str, ...], np.ndarray]:
    damaged = f"{cached}: the cache file is damaged or was cut short; delete it"
    with cached.open("rb") as stream:
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise ValueError(damaged)
        magic, bases, index_bytes, crc = _HEADER.unpack(head)
        if magic != _MAGIC or cached.stat().st_size != _HEADER.size + bases + index_bytes:
            raise ValueError(damaged)
        stream.seek(_HEADER.size + bases)
        index = stream.read()
    if zlib.crc32(index) != crc:
        raise ValueError(damaged)
    parsed = parse_json(index)
    return tuple(parsed["names"]), np.array(parsed["lengths"], dtype=np.int64)
