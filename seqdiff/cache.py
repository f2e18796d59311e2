"""The folder where domains keep what is slow to derive from files, keyed by the files' content."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from pathlib import Path

from seqdiff.files import write_bytes

_SETTLED_NS = 2_000_000_000


def cache_folder() -> Path:
    """Say where derived files go: ``SEQDIFF_CACHE``, or else the platform's cache folder."""
    chosen = os.environ.get("SEQDIFF_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "seqdiff"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "seqdiff"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seqdiff"


def make_cache_folder() -> Path:
    """Create the cache folder if needed.

    Raises:
        OSError: If it cannot be created.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"{folder}: cannot create the cache folder ({error.strerror}); "
            "set SEQDIFF_CACHE to a folder that can be written"
        ) from error
    return folder


def content_digest(path: Path, folder: Path) -> str:
    """Hash a file's content, remembering the result for as long as the file is not touched.

    Args:
        path: The file.
        folder: Where results are remembered, by path, size, inode and modification time.

    Raises:
        OSError: If the result cannot be written.
    """
    status = path.stat()
    key = [str(path.resolve()), status.st_size, status.st_ino, status.st_mtime_ns]
    memo = folder / f"{hashlib.sha256(key[0].encode()).hexdigest()[:32]}.digest"
    if memo.exists():
        *known, digest = memo.read_text().splitlines()
        if known == [str(part) for part in key]:
            return digest
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "blake2b").hexdigest()[:40]
    # A file younger than the clock's grain could change again without a new modification time.
    if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
        write_bytes(memo, "\n".join([*map(str, key), digest]).encode())
    return digest
