"""``seqdiff fetch``."""

from __future__ import annotations

from pathlib import Path

from seqdiff.cells import say
from seqdiff.files import check_folder


def fetch(name: str, /, *, checksum: str, out: Path) -> None:
    """Download a published archive and verify its checksum; an interrupted transfer is resumed.

    Args:
        name: hg38, genomic_benchmarks, or a URL of http or https.
        checksum: ALGORITHM:DIGEST, with md5, sha1, sha256 or sha512, as published beside the
            archive.
        out: Folder to write to.

    Raises:
        OSError: If the folder cannot be written to, the file is not on the server, or the transfer
            breaks.
        ValueError: If the name or the checksum is invalid, or the file has another checksum.
    """
    from genomics.io import fetch as download
    from seqdiff.progress import progress

    check_folder("fetch.out", out)
    with progress() as bar:
        row = bar.add_task(name, total=None)
        path = download(
            name,
            checksum,
            out,
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    say(str(path))
