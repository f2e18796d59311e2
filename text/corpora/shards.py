"""Tokenized documents in memory-mapped files.

Layout of a shard: a 64-byte header (magic, documents, tokens, bytes of an id, CRC-32 of the rest),
the length of each document, a hash of each document's text, and the ids of all documents.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from jaxtyping import Int64, Integer, UInt64

from seqdiff.files import replacing

_HEADER = struct.Struct("<8sQQQI28x")
_MAGIC = b"SEQTXT01"
_CHUNK = 1 << 24
_OPEN = 256
_DTYPES = (np.uint8, np.uint16, np.uint32)


def id_dtype(vocab_size: int) -> type[np.unsignedinteger]:
    """Choose the smallest type that holds ids below ``vocab_size``."""
    return next(dtype for dtype in _DTYPES if vocab_size - 1 <= np.iinfo(dtype).max)


def write_shard(
    path: Path,
    documents: Sequence[Integer[np.ndarray, " _"]],
    hashes: Sequence[int],
    num_ids: int,
) -> None:
    """Write a shard atomically.

    Args:
        path: The file.
        documents: Ids of each document, below ``num_ids``.
        hashes: 64-bit hash of each document's text.
        num_ids: Determines the number of bytes of an id.

    Raises:
        OSError: If the file cannot be written.
    """
    dtype = np.dtype(id_dtype(num_ids)).newbyteorder("<")
    lengths = np.array([len(ids) for ids in documents], dtype="<i8")
    parts = [lengths.tobytes(), np.array(hashes, dtype="<u8").tobytes()]
    parts += [ids.astype(dtype).tobytes() for ids in documents]
    crc, total = _crc(parts), int(lengths.sum())
    with replacing(path) as temporary, temporary.open("wb") as stream:
        stream.write(_HEADER.pack(_MAGIC, len(lengths), total, dtype.itemsize, crc))
        stream.writelines(parts)


@dataclass(frozen=True)
class Shard:
    """An open shard.

    Attributes:
        path: The file.
        lengths: Number of ids of each document.
        hashes: Hash of each document's text.
        dtype: Data type of the ids.
    """

    path: Path
    lengths: Int64[np.ndarray, " D"]
    hashes: UInt64[np.ndarray, " D"]
    dtype: np.dtype[np.unsignedinteger]

    def map(self) -> Integer[np.ndarray, " N"]:
        """Map the concatenated ids of all documents into memory."""
        total = int(self.lengths.sum())
        if not total:
            return np.zeros(0, self.dtype)
        start = _HEADER.size + 16 * len(self.lengths)
        return np.asarray(np.memmap(self.path, self.dtype, "r", offset=start, shape=(total,)))


def open_shard(path: Path, *, check: bool) -> Shard:
    """Open a shard.

    Raises:
        ValueError: If the file is damaged or truncated.
    """
    damaged = ValueError(f"{path}: the cache file is damaged or truncated; delete it")
    with path.open("rb") as stream:
        head = stream.read(_HEADER.size)
        if len(head) < _HEADER.size:
            raise damaged
        magic, documents, tokens, itemsize, crc = _HEADER.unpack(head)
        if magic != _MAGIC or itemsize not in (1, 2, 4):
            raise damaged
        if path.stat().st_size != _HEADER.size + 16 * documents + itemsize * tokens:
            raise damaged
        if check and _crc(iter(lambda: stream.read(_CHUNK), b"")) != crc:
            raise damaged
    lengths = np.fromfile(path, "<i8", documents, offset=_HEADER.size)
    hashes = np.fromfile(path, "<u8", documents, offset=_HEADER.size + 8 * documents)
    return Shard(path, lengths, hashes, np.dtype(f"<u{itemsize}"))


def _crc(chunks: Iterable[bytes]) -> int:
    crc = 0
    for chunk in chunks:
        crc = zlib.crc32(chunk, crc)
    return crc


class TokenStore:
    """The documents of a corpus, as ids.

    Attributes:
        lengths: Number of ids of each document; empty documents are left out.
        hashes: Hash of each document's text: equal texts have equal hashes.
    """

    lengths: Int64[np.ndarray, " D"]
    hashes: UInt64[np.ndarray, " D"]

    def __init__(self, paths: Sequence[Path]) -> None:
        """Open shards that have been checked.

        Raises:
            ValueError: If one has been truncated since it was checked.
        """
        self._paths = list(paths)
        shards = [open_shard(path, check=False) for path in paths]
        # A memory map keeps its file open, and the number of open files is limited.
        self._map = lru_cache(_OPEN)(lambda number: shards[number].map())
        lengths = np.concatenate([np.zeros(0, np.int64), *(shard.lengths for shard in shards)])
        hashes = np.concatenate([np.zeros(0, np.uint64), *(shard.hashes for shard in shards)])
        self.lengths = lengths.astype(np.int64, copy=False)
        self.hashes = hashes.astype(np.uint64, copy=False)
        owner = np.repeat(np.arange(len(shards)), [len(shard.lengths) for shard in shards])
        before = np.cumsum([0, *(int(shard.lengths.sum()) for shard in shards)])[owner]
        self._shard = owner.astype(np.int32)
        self._start = np.cumsum(self.lengths) - self.lengths - before

    def __len__(self) -> int:
        """Number of documents."""
        return len(self.lengths)

    def read(self, document: int, first: int, last: int) -> Integer[np.ndarray, " _"]:
        """Read ids ``first..last-1`` of a document, without copying."""
        start = self._start[document]
        return self._map(int(self._shard[document]))[start + first : start + last]

    def __getstate__(self) -> list[Path]:
        """Pickle the paths instead of the ids."""
        return self._paths

    def __setstate__(self, paths: list[Path]) -> None:
        """Map the files again."""
        self.__init__(paths)
