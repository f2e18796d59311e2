"""Files that are written whole or not at all, and the cache of what is derived from files."""

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
    """Whether there is a file or a folder of that name, or a glob matches some."""
    plain = Path(value).expanduser()
    return plain.exists() or (has_magic(value) and bool(glob(str(plain), recursive=True)))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its place when the block succeeds.

    If the block fails, ``path`` is as it was and the temporary file is gone. What a link points to
    is written, and the link stays.

    Args:
        path: What to write; the temporary path has its suffix, so that writers may look at it.

    Raises:
        OSError: With the name of ``path`` if it cannot be written, for example on a full disk.
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
    """A short name of its own: one made from a name as long as may be would be too long."""
    return path.with_name(f".{os.getpid()}-{secrets.token_hex(4)}{suffix}")


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing.

    Raises:
        OSError: If the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


@contextmanager
def alone(lock: Path, waiting: Callable[[], None] | None = None) -> Iterator[None]:
    """Wait until no other process is in a block of the same lock; one that dies lets go.

    Where the system has no locks, the block is entered at once.

    Args:
        lock: A file that is made, and stays.
        waiting: Called if another process has it.
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
    """Refuse, before slow work, a file that cannot be written.

    Args:
        owner: Who was given the path, for the message.
        path: Where something will be written.

    Raises:
        FileNotFoundError: If the folder does not exist.
        IsADirectoryError: If the path is a folder itself.
        ValueError: If the path is a pipe, a device or a socket.
        OSError: If there can be no file of that name, or the folder takes no new file.
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
    """Refuse, before slow work, a file that is also read, or written for something else.

    Args:
        owner: Who was given the path, for the message.
        path: Where something will be written.
        others: The other files by their flags, as far as they are given.

    Raises:
        ValueError: If two are one file, whatever links lead there.
    """
    for flag, other in others.items():
        if other is not None and os.path.realpath(path) == os.path.realpath(other):
            raise ValueError(f"{owner} must be another file than {flag}, got {path}; rename one")


def check_folder(owner: str, path: Path) -> None:
    """Refuse, before slow work, a folder that cannot be made or written to.

    Args:
        owner: Who was given the path, for the message.
        path: The folder; neither it nor those above need exist.

    Raises:
        NotADirectoryError: If it or something above is a file, or a link to nothing.
        OSError: If the nearest folder that exists takes no new file.
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
