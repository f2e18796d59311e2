"""Atomic writing of files, checks of files and paths before slow work, and the cache folder."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import socket
import stat
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from glob import escape, glob, has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any

from seqdiff.cells import say

if TYPE_CHECKING:
    import numpy as np
    from numpy.lib.npyio import NpzFile

LOCK_NAME = ".lock"


def names_files(value: str) -> bool:
    """Whether a file or a folder of that name exists, or a glob matches one."""
    plain = Path(value).expanduser()
    return plain.exists() or (has_magic(value) and bool(glob(str(plain), recursive=True)))


def expand_files(owner: str, given: Sequence[Path], suffixes: Collection[str]) -> list[Path]:
    """List the files that an argument names: files, folders of files, and globs.

    Args:
        owner: Name of the argument, for messages.
        given: Paths. A folder stands for its files with one of the suffixes, and a glob for the
            files that it matches.
        suffixes: Suffixes of the files in folders, without dots; ``.gz`` and ``.bgz`` may follow
            them.

    Returns:
        The files, sorted by their paths.

    Raises:
        FileNotFoundError: If a path is no file, or a glob matches none.
        TypeError: If a single path is given.
        ValueError: If a folder has no such file, or a file is named twice.
    """
    if isinstance(given, Path):
        raise TypeError(f"{owner} must be a tuple of paths, got {given!r}; write (path,)")
    found: list[Path] = []
    for path in given:
        if path.is_dir():
            inside = [file for file in path.iterdir() if has_suffix(file, suffixes)]
            inside = [file for file in inside if file.is_file() and not file.name.startswith(".")]
            if not inside:
                raise ValueError(
                    f"{owner} must be a folder with files that end in "
                    f"{', '.join('.' + suffix for suffix in suffixes)}, got none in {path}; "
                    "name the files"
                )
            found += inside
        elif path.exists() or not has_magic(str(path)):
            if not path.is_file():
                raise FileNotFoundError(
                    f"{owner} must be an existing file, got {path}; check the path"
                )
            found.append(path)
        else:
            matched = [
                file for file in map(Path, glob(str(path), recursive=True)) if file.is_file()
            ]
            if not matched:
                raise FileNotFoundError(
                    f"{owner} must match existing files, got {path}, which matches none; check the "
                    "path"
                )
            found += matched
    real: dict[str, Path] = {}
    for path in sorted(found):
        first = real.setdefault(os.path.realpath(path), path)
        if first is not path:
            raise ValueError(
                f"{owner} must name each file once, got {first} and {path}, which are the same "
                "file; leave one out"
            )
    return list(real.values())


def name_files(files: Sequence[Path]) -> str:
    """Name files in a message."""
    return str(files[0]) if len(files) == 1 else f"{files[0]} to {files[-1]}"


def has_suffix(path: Path, suffixes: Collection[str]) -> bool:
    """Return whether a name ends in one of the suffixes, which are without dots, perhaps zipped."""
    plain = path.with_suffix("") if path.suffix in (".gz", ".bgz") else path
    return plain.suffix.removeprefix(".") in suffixes


def part_path(out: Path, number: int) -> Path:
    """Return the path of a part of an output in parts, whose name has a ``*`` for the number."""
    return out.with_name(out.name.replace("*", f"{number:05}"))


def is_gzip(path: Path) -> bool:
    """Return whether the content is gzip or bgzip; the file name does not matter."""
    with path.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


@contextmanager
def replacing(path: Path, size: int | None = None) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that replaces it if the block succeeds.

    If the block fails, ``path`` is not changed and the temporary file is removed. A link is kept,
    and its target is replaced. What killed processes left of earlier attempts is removed too.

    Args:
        path: The file to write; the temporary path has the same suffix.
        size: Number of bytes to write if it is known, for the message.

    Raises:
        OSError: If the file cannot be written, for example on a full disk; names ``path``.
    """
    target = _behind_links(path)
    remove_abandoned(target)
    temporary = _beside(target, path.suffix)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(target)
    except (ChildProcessError, ConnectionError):
        raise  # of the workers that compute the content
    except OSError as error:
        raise _unwritten(path, error, size) from error
    finally:
        temporary.unlink(missing_ok=True)


def _unwritten(path: Path, error: OSError, size: int | None) -> OSError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    needed = "some space" if size is None else f"{size:,} bytes"
    return OSError(
        error.errno,
        f"{path} must be writable, got: {reason}; free {needed} or use another disk",
    )


@contextmanager
def continuing(path: Path, partial: Path) -> Iterator[None]:
    """Replace ``path`` by a partial file if the block, which writes the partial file, succeeds.

    In contrast to ``replacing``, the partial file stays if the process is interrupted or killed, so
    that the next attempt can continue it. It is removed if the block raises an error. Hold a lock
    (see ``alone``), because all attempts write the same partial file.

    Raises:
        OSError: If the file cannot be written, for example on a full disk; names ``path``.
    """
    try:
        yield
        with partial.open("rb") as written:
            os.fsync(written.fileno())
        partial.replace(path)
    except Exception as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritten(path, error, None) from error
        raise


def append_text(path: Path, text: str) -> None:
    """Append to a file, which is created if there is none.

    Raises:
        OSError: If the file cannot be written, even if only in part; names it and the bytes needed.
    """
    content = text.encode()
    try:
        with path.open("ab") as file:
            file.write(content)
    except OSError as error:
        raise _unwritten(path, error, len(content)) from error


def _behind_links(path: Path) -> Path:
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


# A temporary file's name says for which file it is, on which machine, and by which process.
_TEMPORARY = re.compile(r"\.(?P<file>[0-9a-f]{8})-(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-")


def _beside(path: Path, suffix: str) -> Path:
    """Return a unique short path in the same folder; a longer name than the file's may not fit."""
    marks = f"{_file_mark(path)}-{_short_hash(socket.gethostname())}-{os.getpid()}"
    return path.with_name(f".{marks}-{secrets.token_hex(4)}{suffix}")


def _file_mark(path: Path) -> str:
    """Mark the temporary files of a file; those of a temporary file are for the same file."""
    nested = _TEMPORARY.match(path.name)
    return nested["file"] if nested else _short_hash(path.name)


def _short_hash(text: str) -> str:
    return hashlib.sha256(os.fsencode(text)).hexdigest()[:8]


def remove_abandoned(path: Path, *, owned: bool = False) -> None:
    """Remove the temporary files that killed processes left when they wrote a file.

    Args:
        path: The file that they wrote.
        owned: Whether no other process can be writing the file. By default the temporary files of
            living processes are kept, and those from other machines, whose processes are unknown.
    """
    for left in path.parent.glob(f".{_file_mark(path)}-*"):
        found = _TEMPORARY.match(left.name)
        if found and (owned or not _may_live(found["host"], int(found["pid"]))):
            left.unlink(missing_ok=True)


def _may_live(host: str, pid: int) -> bool:
    """Whether a process may be alive; one of another machine may."""
    if host != _short_hash(socket.gethostname()) or os.name != "posix":
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically.

    Raises:
        OSError: If the file cannot be written; names it, and the bytes needed.
    """
    with replacing(path, len(content)) as temporary:
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


@contextmanager
def owning(owner: str, folder: Path) -> Iterator[None]:
    """Keep other processes that do the same out of a folder while the block runs.

    The lock ends with the process, even if it is killed. It is a record lock, because ``flock``,
    which filelock uses too, would last as long as a worker that the process has forked. On a file
    system without locks a warning asks the user to take care.

    Args:
        owner: Name of the argument, for the message.
        folder: An existing folder; the lock is its file ``.lock``, which is kept.

    Raises:
        BlockingIOError: If another process has the lock; names its number, machine and start.
        OSError: If the folder is not writable.
    """
    lock = folder / LOCK_NAME
    try:
        stream = lock.open("ab+", buffering=0)
    except OSError as error:
        raise _not_writable(owner, folder, error) from error
    with stream:
        try:
            import fcntl

            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (ImportError, OSError) as error:
            if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EAGAIN):
                stream.seek(0)
                raise BlockingIOError(
                    error.errno,
                    f"{owner} must not be in use, got {folder}: {stream.read().decode()} writes to "
                    "it; wait until that ends, or choose another folder",
                ) from error
            say(
                f"seqdiff: warning: {lock} cannot be locked ({error}); make sure that no other "
                f"process writes to {folder}",
                error=True,
            )
        else:
            now = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
            holder = f"process {os.getpid()} on {socket.gethostname()}, started {now},"
            try:
                stream.truncate(0)
                stream.write(holder.encode())
            except OSError as error:
                raise _not_writable(owner, folder, error) from error
        yield


def check_parent(owner: str, path: Path, *, parts: bool = False) -> None:
    """Check, before slow work, that a file can be written.

    Args:
        owner: Name of the argument, for the message.
        path: The file to write.
        parts: Whether a ``*`` in its name stands for the numbers of parts, see ``part_path``.

    Raises:
        FileNotFoundError: If the folder does not exist.
        IsADirectoryError: If the path is a folder itself.
        ValueError: If the path is a pipe, a device or a socket, or has a ``*`` in its name where
            the output is one file, or more than one.
        FileExistsError: If there are parts already, since old ones could stay among new ones.
        OSError: If the name is invalid, or no file can be created in the folder.
    """
    if "*" in path.name:
        if not parts or path.name.count("*") > 1:
            most = "one *, for the numbers of the parts" if parts else "no *, since it is one file"
            raise ValueError(f"{owner} must have {most}, got {path}; rename it")
        names = path.parent.glob(escape(path.name).replace("[*]", "*"))
        old = sorted(file.name for file in names if not file.name.startswith("."))
        if old:
            raise FileExistsError(
                f"{owner} must be parts that do not exist yet, got {path}, which matches "
                f"{len(old):,} files, such as {old[0]}; choose another name, or remove them"
            )
        path = part_path(path, 0)
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


def check_apart(owner: str, path: Path, others: Mapping[str, Path | Sequence[Path] | None]) -> None:
    """Check, before slow work, that a file to write is none of the other files.

    Args:
        owner: Name of the argument, for the message.
        path: The file to write.
        others: The other files by their flags, which may have several; ``None`` for flags that are
            not given.

    Raises:
        ValueError: If two paths lead to the same file, with or without links.
    """
    for flag, found in others.items():
        files = [found] if isinstance(found, Path) else found or ()
        if os.path.realpath(path) in map(os.path.realpath, files):
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
        raise _not_writable(owner, path, error) from error


def _not_writable(owner: str, path: Path, error: OSError) -> OSError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    return OSError(
        error.errno, f"{owner} must be writable, got {path}: {reason}; choose another folder"
    )


_SETTLED_NS = 2_000_000_000
_CHUNK = 1 << 20


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


def content_digest(
    path: Path, folder: Path, on_progress: Callable[[int], object] | None = None
) -> str:
    """Hash a file's content, and keep the result until the file changes.

    Args:
        path: The file.
        folder: Where the result is kept.
        on_progress: Called with the number of bytes read so far, unless the result is known.

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
    hashed, done = hashlib.blake2b(), 0
    buffer = memoryview(bytearray(_CHUNK))
    with path.open("rb", buffering=0) as stream:
        while size := stream.readinto(buffer):
            hashed.update(buffer[:size])
            done += size
            if on_progress is not None:
                on_progress(done)
    digest = hashed.hexdigest()[:40]
    # A very new file could change again without a new modification time.
    if time.time_ns() - status.st_mtime_ns > _SETTLED_NS:
        write_bytes(memo, "\n".join([*map(str, key), digest]).encode())
    return digest


def parse_json(text: str | bytes) -> Any:
    """Parse JSON of a file that may be damaged.

    Args:
        text: The JSON, in UTF-8 if these are bytes.

    Raises:
        ValueError: If it is no JSON, or nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets that are nested too deeply") from error


def read_npz_array(arrays: NpzFile, name: str) -> np.ndarray:
    """Read an array of an open npz file, which numpy does not check itself.

    Args:
        arrays: The file, opened without ``allow_pickle``.
        name: Name of the array.

    Raises:
        KeyError: If there is none of this name.
        ValueError: If it is damaged, or no array of numbers.
    """
    import tokenize

    import numpy as np

    try:
        array = arrays[name]
    except (tokenize.TokenError, SyntaxError, MemoryError) as error:  # from a damaged header
        raise ValueError(f"a damaged {name}") from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"{name} that is no array")
    return array
