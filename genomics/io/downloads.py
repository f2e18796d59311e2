"""Download published archives: verified by checksum, resumed after an interrupted transfer."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from seqdiff.cells import describe_error
from seqdiff.extras import require_extra

_DIGEST_LENGTHS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
_CHUNK, _TIMEOUT = 1 << 16, 30
_TEMPORARY = (408, 425, 429)  # status codes that may change on a later call, like 500 and above

# The user supplies the checksum, which is published beside the archive (UCSC: md5sum.txt in the
# same folder).
ARCHIVES = {
    "hg38": "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.fa.gz",
    "genomic_benchmarks": (
        "https://github.com/ML-Bioinfo-CEITEC/genomic_benchmarks/archive/refs/heads/main.zip"
    ),
}

Progress = Callable[[int, int | None], None]


def fetch(name: str, checksum: str, folder: Path, *, progress: Progress | None = None) -> Path:
    """Download an archive unless a file with the right checksum exists.

    An interrupted transfer is kept as ``NAME.part`` and resumed by the next call. If a server does
    not report the length of the file, a truncated transfer looks like a damaged one. If the
    checksum does not match then, the remaining bytes are requested once.

    Args:
        name: One of ``ARCHIVES``, or a URL.
        checksum: ``algorithm:digest`` with md5, sha1, sha256 or sha512.
        folder: Output folder, created if missing.
        progress: Called with the number of bytes received and, if known, the total.

    Returns:
        Path of the file.

    Raises:
        OSError: If the server does not have the file or the transfer is interrupted.
        ValueError: If the name is not a URL of a file, or the checksum is invalid or does not match
            the file. A download that does not match is removed.
    """
    url, file_name = _locate(name)
    _check_checksum(checksum)
    file, part = folder / file_name, folder / f"{file_name}.part"
    if file.exists():
        if _matches(file, checksum):
            return file
        raise ValueError(
            f"{file} must have the checksum {checksum}, got another; "
            "remove it to fetch it again, or correct the checksum"
        )
    folder.mkdir(parents=True, exist_ok=True)
    length_known = _request(url, part, progress)
    matches = _matches(part, checksum)
    if not matches and not length_known:
        _request(url, part, progress, only_rest=True)
        matches = _matches(part, checksum)
    if not matches:
        part.unlink()
        raise ValueError(
            f"{url} must have the checksum {checksum}, got another; the download was removed: "
            "compare with the published checksum and fetch it again"
        )
    os.replace(part, file)
    return file


def _locate(name: str) -> tuple[str, str]:
    """Return the URL of an archive and the name of its file."""
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
            f"fetch.name must be a URL of http or https, got {name}; many FTP servers offer the "
            "same path by https"
        )
    file_name = parts.path.rsplit("/", 1)[-1]
    if not parts.netloc or file_name in ("", ".", ".."):
        raise ValueError(f"fetch.name must be the URL of a file, got {name}; name the file in it")
    return url, file_name


def _check_checksum(checksum: str) -> None:
    algorithm, _, digest = checksum.partition(":")
    is_hex = all(digit in "0123456789abcdef" for digit in digest)
    if _DIGEST_LENGTHS.get(algorithm) != len(digest) or not is_hex:
        raise ValueError(
            f"fetch.checksum must be algorithm:digest with one of {', '.join(_DIGEST_LENGTHS)} and "
            f"lower-case hex digits, got {checksum!r}; copy it from where the archive is published"
        )


def _matches(file: Path, checksum: str) -> bool:
    algorithm, _, digest = checksum.partition(":")
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest() == digest


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


def _request(url: str, part: Path, progress: Progress | None, *, only_rest: bool = False) -> bool:
    """Request the bytes that are missing; return whether the server reported the length."""
    requests = require_extra("requests", "fetch", "genomics")
    size = _size(part)
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={size}-"} if size else {})
    try:
        with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as response:
            if size and response.status_code == 416:  # the part is complete
                return True
            if only_rest and response.status_code != 206:
                return False
            response.raise_for_status()
            return _receive(response, part, size if response.status_code == 206 else 0, progress)
    except requests.HTTPError as error:
        code = error.response.status_code
        got = f"{code} {error.response.reason}"
        if code >= 500 or code in _TEMPORARY:
            raise OSError(f"{url} must be available, got {got}; try again later") from error
        raise OSError(f"{url} must be publicly available, got {got}; check the address") from error
    except (requests.exceptions.InvalidURL, requests.exceptions.InvalidSchema) as error:
        raise OSError(f"{url} must lead to a file, got {error}; check the address") from error
    except requests.RequestException as error:
        raise OSError(
            f"{url} must be received whole, got {_size(part):,} bytes ({type(error).__name__}: "
            f"{describe_error(error)}); run the command again to resume"
        ) from error


def _receive(response, part: Path, received: int, progress: Progress | None) -> bool:
    """Append to the part, or overwrite it if the server sends the whole file."""
    length = response.headers.get("Content-Length")
    total = received + int(length) if length is not None else None
    with part.open("ab" if received else "wb") as file:
        for chunk in response.iter_content(_CHUNK):
            received += file.write(chunk)
            if progress is not None:
                progress(received, total)
    if total is not None and received != total:
        raise OSError(
            f"{response.url} must be received whole, got {received:,} of {total:,} bytes; "
            "run the command again to resume"
        )
    return total is not None
