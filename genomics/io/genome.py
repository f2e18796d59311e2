"""A genome as one memory-mapped array of ids, cached under a hash of the FASTA file's content.

A cache file consists of a 64-byte header (magic, bytes of ids, bytes of index, CRC-32 of the
index), the ids ``0..4`` of all records in file order, and a JSON index with names and lengths.
"""

from __future__ import annotations

import json
import shutil
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Int64, UInt8
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from genomics.io.fasta import check_file, read_encoded
from seqdiff.files import content_digest, make_cache_folder, replacing
from seqdiff.progress import Bar

_HEADER = struct.Struct("<8sQQI36x")
_MAGIC = b"SEQDNA01"
_BAR_FROM_BYTES = 16 << 20


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
        mapped = np.memmap(cached, np.uint8, "r", offset=_HEADER.size, shape=(int(lengths.sum()),))
        self._cached: Path | None = cached
        self._set(names, lengths, np.asarray(mapped), digest)

    def _set(
        self, names: tuple[str, ...], lengths: np.ndarray, ids: np.ndarray, digest: str
    ) -> None:
        self.names, self.lengths, self.ids, self.digest = names, lengths, ids, digest
        self.offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]])

    @classmethod
    def from_records(cls, records: Mapping[str, UInt8[np.ndarray, " L"]]) -> Genome:
        """Create a genome in memory from ids ``0..4`` by name, at least one record."""
        genome = cls.__new__(cls)
        genome._cached = None
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

    Raises:
        FileNotFoundError: If the file does not exist.
        OSError: If the cache cannot be written.
        ValueError: If the file is not valid FASTA of DNA, see ``genomics.io.fasta.read_encoded``.
    """
    source = Path(fasta)
    check_file(source)
    folder = make_cache_folder()
    digest = content_digest(source, folder)
    cached = folder / f"{digest}.dna"
    if cached.exists():
        try:
            return Genome(cached, digest)
        except ValueError:
            pass  # a truncated cache file is written again
    _encode(source, cached)
    return Genome(cached, digest)


def _encode(source: Path, cached: Path) -> None:
    size, free = source.stat().st_size, shutil.disk_usage(cached.parent).free
    if free < size:
        raise OSError(
            f"{cached.parent}: needs at least {size:,} bytes for the encoded {source.name}, "
            f"has {free:,}; free some space or set SEQDIFF_CACHE to another folder"
        )
    bar = Bar(
        TextColumn("encoding {task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        disable=size < _BAR_FROM_BYTES,
    )
    with bar, replacing(cached) as temporary, temporary.open("wb") as stream:
        task = bar.add_task(source.name, total=size)
        _write(source, stream, lambda done: bar.update(task, completed=done))


def _write(source: Path, stream: BinaryIO, on_progress: Callable[[int], object]) -> None:
    lengths: dict[str, int] = {}
    stream.write(bytes(_HEADER.size))
    for name, ids in read_encoded(source, on_progress):
        stream.write(ids)
        lengths[name] = lengths.get(name, 0) + len(ids)
    index = json.dumps({"names": list(lengths), "lengths": list(lengths.values())}).encode()
    stream.write(index)
    stream.seek(0)
    crc = zlib.crc32(index)
    stream.write(_HEADER.pack(_MAGIC, sum(lengths.values()), len(index), crc))


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
    parsed = json.loads(index)
    return tuple(parsed["names"]), np.array(parsed["lengths"], dtype=np.int64)
