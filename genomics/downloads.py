"""Fetch published archives: checked against a checksum, gone on with after a broken transfer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO

from seqdiff.extras import require_extra

_ALGORITHMS = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
_CHUNK, _TIMEOUT = 1 << 16, 30

# Where they are published. Their checksums stand beside them (UCSC: md5sum.txt in the same folder),
# and are for the user to give: none is written down here that was not seen.
ARCHIVES = {
    "hg38": "https://hgdownload.soe.ucsc.edu/goldenPath/hg38/bigZips/hg38.fa.gz",
    "genomic_benchmarks": (
        "https://github.com/ML-Bioinfo-CEITEC/genomic_benchmarks/archive/refs/heads/main.zip"
    ),
}


def fetch(
    name: str,
    checksum: str,
    folder: Path,
    *,
    progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Fetch an archive, unless it is there and whole.

    What a broken transfer left is kept as ``NAME.part`` and gone on with next time. A file that is
    there with the right checksum is given at once, and the network is not touched.

    Args:
        name: One of ``ARCHIVES``, or a URL.
        checksum: ``algorithm:digest``, of md5, sha1, sha256 or sha512; published beside the
            archive.
        folder: Where it goes; made if it is not there.
        progress: Called with the bytes that are there and, if known, the bytes of the whole.

    Returns:
        The file.

    Raises:
        OSError: If the transfer breaks; the next call goes on with it.
        ValueError: If the checksum is no checksum, or not that of the file, which is then removed.
    """
    url = ARCHIVES.get(name, name)
    if "://" not in url:
        raise ValueError(
            f"fetch.name must be one of {', '.join(sorted(ARCHIVES))} or a URL, got {name}"
        )
    check_checksum(checksum)
    pooch = require_extra("pooch", "fetch", "genomics")
    file = folder / url.rsplit("/", 1)[1]
    if file.exists() and not pooch.hashes.hash_matches(str(file), checksum):
        raise ValueError(
            f"{file} must have the checksum {checksum}, got another; "
            "remove it to fetch it again, or correct the checksum"
        )
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{file.name}.part"
    pooch.utils.get_logger().setLevel("WARNING")
    try:
        return Path(
            pooch.retrieve(
                url,
                known_hash=checksum,
                fname=file.name,
                path=folder,
                downloader=_Resuming(part, progress),
            )
        )
    except ValueError as error:
        raise ValueError(
            f"{url} must have the checksum {checksum}, got another; it was removed: "
            "compare with the published checksum and fetch it again"
        ) from error


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


class _Resuming:
    """A downloader for pooch that goes on where the last one stopped."""

    def __init__(self, part: Path, progress: Callable[[int, int | None], None] | None) -> None:
        self.part = part
        self.progress = progress

    def __call__(self, url: str, output_file: str | IO[bytes], pooch: object) -> None:
        requests = require_extra("requests", "fetch", "genomics")
        there = self.part.stat().st_size if self.part.exists() else 0
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={there}-"} if there else {})
        try:
            with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT) as answer:
                if answer.status_code != 416:  # 416: nothing is left to send
                    answer.raise_for_status()
                    self._receive(answer, there if answer.status_code == 206 else 0)
        except requests.RequestException as error:
            have = self.part.stat().st_size if self.part.exists() else 0
            raise OSError(
                f"{url} must be sent whole, got {have:,} bytes ({type(error).__name__}: {error}); "
                "run it again to go on"
            ) from error
        # pooch checks what is here: wrong bytes must not be gone on with.
        with self.part.open("rb") as source:
            if isinstance(output_file, str | os.PathLike):
                with open(output_file, "wb") as target:
                    shutil.copyfileobj(source, target)
            else:
                shutil.copyfileobj(source, output_file)
        self.part.unlink()

    def _receive(self, answer, there: int) -> None:
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
