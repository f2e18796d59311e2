"""Atomic writing of files, checks of files and paths before slow work, and the cache folder."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from glob import glob, has_magic
from pathlib import Path


def names_files(value: str) -> bool:
    """Whether a file or a folder of that name exists, or a glob matches one."""
    plain = Path(value).expanduser()
    return plain.exists() or (has_magic(value) and bool(glob(str(plain), recursive=True)))


def is_gzip(path: Path) -> bool:
    """Return whether the content is gzip or bgzip; the file name does not matter."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it if the block succeeds.

    If the block fails, ``path`` is not changed and the temporary file is removed. A link is kept,
    and its target is replaced.

    Args:
        path: The file to write; the temporary path has the same suffix.

    Raises:
        OSError: If the file cannot be written, for example on a full disk; names ``path``.
    """
    target = _behind_links(path)
    temporary = _beside(target, path.suffix)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(
            error.errno, f"{path} must be writable, got: {reason}; free some space or move it"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def _behind_links(path: Path) -> Path:
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


def _beside(path: Path, suffix: str) -> Path:
    """Return a unique short path in the same folder; a longer name than the file's may not fit."""
    return path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}{suffix}")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        OSError: If the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def alone(lock: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Run the block while no other process runs a block with the same lock.

    A process that dies releases the lock. On systems without file locks there is no waiting.

    Args:
        lock: The lock file, which is created and kept.
        waiting: Called if another process holds the lock.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is not None:
                waiting()
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def check_parent(owner: str, path: Path) -> None:
    """Check, before slow work, that a file can be written.

    Args:
        owner: Name of the argument, for the message.
        path: The file to write.

    Raises:
        FileNotFoundError: If the folder does not exist.
        IsADirectoryError: If the path is a folder itself.
        ValueError: If the path is a pipe, a device or a socket.
        OSError: If the name is invalid, or no file can be created in the folder.
    """
    target = _behind_links(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"{owner} must lie in an existing folder, got {path}; run: mkdir -p {target.parent}"
        )
    try:
        found = target.stat().st_mode
    except FileNotFoundError:
        found = stat.S_IFREG
    except OSError as error:
        raise OSError(
            error.errno, f"{owner} must be writable, got {path}: {error.strerror}; rename it"
        ) from error
    if stat.S_ISDIR(found):
        raise IsADirectoryError(f"{owner} must be a file, got the folder {path}; name a file in it")
    if not stat.S_ISREG(found):
        raise ValueError(
            f"{owner} must be a regular file, got the pipe or device {path}; "
            "name a file and read that"
        )
    _probe(owner, path, _beside(target, path.suffix))


def check_apart(owner: str, path: Path, others: Mapping[str, Path | None]) -> None:
    """Check, before slow work, that a file to write is none of the other files.

    Args:
        owner: Name of the argument, for the message.
        path: The file to write.
        others: The other files by their flags; ``None`` for flags that are not given.

    Raises:
        ValueError: If two paths lead to the same file, with or without links.
    """
    for flag, other in others.items():
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise ValueError(f"{owner} must be another file than {flag}, got {path}; rename one")


def check_folder(owner: str, path: Path) -> None:
    """Check, before slow work, that a folder can be created and written to.

    Args:
        owner: Name of the argument, for the message.
        path: The folder; neither it nor its parents need to exist.

    Raises:
        NotADirectoryError: If it or a parent is a file or a broken link.
        OSError: If no file can be created in the nearest existing folder.
    """
    places = (path, *path.absolute().parents)
    nearest = next(place for place in places if place.exists() or place.is_symlink())
    if not nearest.is_dir():
        kind = "file" if nearest.exists() else "link to nothing"
        raise NotADirectoryError(
            f"{owner} must be a folder, got {path}, where {nearest} is a {kind}; choose another"
        )
    _probe(owner, path, _beside(nearest / "a", ""))


def _probe(owner: str, path: Path, probe: Path) -> None:
    """Write and remove a file in the folder on which a path depends."""
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(
            error.errno, f"{owner} must be writable, got {path}: {reason}; choose another folder"
        ) from error


_SETTLED_NS = 2_000_000_000


def cache_folder() -> Path:
    """Return the folder for derived files: ``SEQDIFF_CACHE``, or the platform's cache folder."""
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
    """Hash a file's content, and keep the result until the file changes.

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
    # A very new file could change again without a new modification time.
    if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
        write_bytes(memo, "\n".join([*map(str, key), digest]).encode())
    return digest
