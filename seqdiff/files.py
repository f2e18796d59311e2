"""Files that are whole or absent: written under a temporary name, then renamed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that takes its place when the block succeeds.

    If the block fails, ``path`` is as it was and the temporary file is gone.

    Args:
        path: What to write; its suffixes are kept, so that writers may look at them.

    Raises:
        OSError: With the name of ``path`` if it cannot be written, for example on a full disk.
    """
    temporary = path.with_name(f".{os.getpid()}.{secrets.token_hex(4)}.{path.name}")
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            error.errno, f"{path} must be writable, got: {reason}; free some space or move it"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or nothing.

    Raises:
        OSError: If the file cannot be written.
    """
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def check_parent(owner: str, path: Path) -> None:
    """Refuse, before slow work, a file whose folder does not exist.

    Args:
        owner: Who was given the path, for the message.
        path: Where something will be written.

    Raises:
        FileNotFoundError: If the folder does not exist.
        IsADirectoryError: If the path is a folder itself.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(
            f"{owner} must lie in an existing folder, got {path}; run: mkdir -p {path.parent}"
        )
    if path.is_dir():
        raise IsADirectoryError(f"{owner} must be a file, got the folder {path}; name a file in it")
