"""Fetch published archives: checked against a checksum, gone on with after a broken transfer."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from seqdiff.extras import require_extra

_ALGORITHMS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
_CHUNK, _TIMEOUT = 1 << 16, 30
_PASSING = (408, 425, 429)  # refusals that a later call may not meet, as all from 500 on

# Where they are published. Their checksums stand beside them (UCSC: md5sum.txt in the same folder),
# and are for the user to give: none is written down here that was not seen.
ARCHIVES = {
    "hg38": "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.fa.gz",
    "genomic_benchmarks": (
        "https://github.com/ML-Bioinfo-CEITEC/genomic_benchmarks/archive/refs/heads/main.zip"
    ),
}

Progress = Callable[[int, int | None], None]


def fetch(name: str, checksum: str, folder: Path, *, progress: Progress | None = None) -> Path:
    """Fetch an archive, unless it is there and whole.

    What a broken transfer left is kept as ``NAME.part`` and gone on with next time. A file that is
    there with the right checksum is given at once, and the network is not touched. Where a server
    does not say how long a file is, one that was cut short cannot be told from a damaged one: if
    the checksum is not right, the rest is asked for once, and then all of it is removed.

    Args:
        name: One of ``ARCHIVES``, or a URL.
        checksum: ``algorithm:digest``, of md5, sha1, sha256 or sha512; published beside the
            archive.
        folder: Where it goes; made if it is not there.
        progress: Called with the bytes that are there and, if known, the bytes of the whole.

    Returns:
        The file.

    Raises:
        OSError: If the file is not on the server, or the transfer breaks; after a break the next
            call goes on with it.
        ValueError: If the name is no URL of a file, or the checksum is no checksum, or not that of
            the file, which is then removed.
    """
    url, file_name = locate(name)
    check_checksum(checksum)
    pooch = require_extra("pooch", "fetch", "genomics")
    file = folder / file_name
    if file.exists():
        if pooch.hashes.hash_matches(str(file), checksum):
            return file
        raise ValueError(
            f"{file} must have the checksum {checksum}, got another; "
            "remove it to fetch it again, or correct the checksum"
        )
    transfer = _Transfer(folder / f"{file_name}.part", checksum, progress)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with _quiet(pooch):
            pooch.retrieve(url, checksum, file_name, folder, downloader=transfer)
    except ValueError as error:
        raise ValueError(
            f"{url} must have the checksum {checksum}, got another; it was removed: "
            "compare with the published checksum and fetch it again"
        ) from error
    return file


def locate(name: str) -> tuple[str, str]:
    """Say where an archive is, and what its file is called.

    Args:
        name: One of ``ARCHIVES``, or a URL.

    Returns:
        The URL, and the last part of its path.

    Raises:
        ValueError: If it is neither, or the URL names no file or is not one of http or https.
    """
    url = ARCHIVES.get(name, name)
    if "://" not in url:
        raise ValueError(
            f"fetch.name must be one of {', '.join(sorted(ARCHIVES))} or a URL, got {name}"
        )
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ValueError(f"fetch.name must be a URL, got {name} ({error}); correct it") from error
    if parts.scheme not in ("http", "https"):
        raise ValueError(
            f"fetch.name must be a URL of http or https, got {name}; many servers of ftp send the "
            "same path by https"
        )
    file_name = parts.path.rsplit("/", 1)[-1]
    if not parts.netloc or file_name in ("", ".", ".."):
        raise ValueError(f"fetch.name must be the URL of a file, got {name}; name the file in it")
    return url, file_name


def check_checksum(checksum: str) -> None:
    """Refuse what is no checksum.

    Args:
        checksum: ``algorithm:digest``.

    Raises:
        ValueError: If it is none; with where to find one.
    """
    algorithm, _, digest = checksum.partition(":")
    is_hex = all(letter in "0123456789abcdef" for letter in digest)
    if _ALGORITHMS.get(algorithm) != len(digest) or not is_hex:
        raise ValueError(
            f"fetch.checksum must be algorithm:digest with one of {', '.join(_ALGORITHMS)} and "
            f"lower-case hex digits, got {checksum!r}; copy it from where the archive is published"
        )


@contextmanager
def _quiet(pooch) -> Iterator[None]:
    """Keep pooch from telling of each file, for as long as one is fetched."""
    logger = pooch.utils.get_logger()
    logger.addFilter(_is_warning)
    try:
        yield
    finally:
        logger.removeFilter(_is_warning)


def _is_warning(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.WARNING


class _Transfer:
    """A downloader for pooch that goes on where the last one stopped."""

    def __init__(self, part: Path, checksum: str, progress: Progress | None) -> None:
        self.part = part
        self.checksum = checksum
        self.progress = progress

    def __call__(self, url: str, output_file: str, pooch: object) -> None:
        hashes = require_extra("pooch", "fetch", "genomics").hashes
        known = self._ask(url)
        if not known and not hashes.hash_matches(str(self.part), self.checksum):
            self._ask(url, only_rest=True)
        # pooch checks what is here: wrong bytes must not be gone on with.
        os.replace(self.part, output_file)

    def _ask(self, url: str, *, only_rest: bool = False) -> bool:
        """Ask for what is missing, and say whether its length was known."""
        requests = require_extra("requests", "fetch", "genomics")
        there = self._size()
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={there}-"} if there else {})
        try:
            with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
                if there and answer.status_code == 416:  # nothing is left to send
                    return True
                if only_rest and answer.status_code != 206:
                    return False
                answer.raise_for_status()
                return self._receive(answer, there if answer.status_code == 206 else 0)
        except requests.HTTPError as error:
            raise OSError(_refusal(url, error.response)) from error
        except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
            raise OSError(f"{url} must lead to a file, got {error}; check the address") from error
        except requests.RequestException as error:
            raise OSError(
                f"{url} must be sent whole, got {self._size():,} bytes ({type(error).__name__}: "
                f"{error}); run it again to go on"
            ) from error

    def _size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _receive(self, answer, there: int) -> bool:
        """Append what is sent, or begin again if the server sends the whole."""
        length = answer.headers.get("Content-Length")
        total = there + int(length) if length is not None else None
        with self.part.open("ab" if there else "wb") as file:
            for chunk in answer.iter_content(_CHUNK):
                there += file.write(chunk)
                if self.progress is not None:
                    self.progress(there, total)
        if total is not None and there != total:
            raise OSError(
                f"{answer.url} must be sent whole, got {there:,} of {total:,} bytes; "
                "run it again to go on"
            )
        return total is not None


def _refusal(url: str, answer) -> str:
    got = f"got {answer.status_code} {answer.reason}"
    if answer.status_code >= 500 or answer.status_code in _PASSING:
        return f"{url} must be sent, {got}; run it again later"
    return f"{url} must be there for everybody, {got}; check the address"
