"""``seqdiff fetch``."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqdiff.files import check_folder

help = "download a published archive, checked and resumable"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.cli.commands.Command``."""
    parser.add_argument("name", help="hg38, genomic_benchmarks, or a URL of http or https")
    parser.add_argument(
        "--checksum",
        required=True,
        metavar="ALGORITHM:DIGEST",
        help="md5, sha1, sha256 or sha512, as published beside the archive",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where it goes")


def run(args: argparse.Namespace) -> None:
    """See ``seqdiff.cli.commands.Command``.

    Raises:
        OSError: If the folder cannot be written to, the file is not on the server, or the transfer
            breaks.
        ValueError: If the name or the checksum is none, or the file has another checksum.
    """
    from genomics.io import fetch

    check_folder("fetch.out", args.out)
    from seqdiff.cli.terminal import progress

    with progress() as bar:
        row = bar.add_task(args.name, total=None)
        path = fetch(
            args.name,
            args.checksum,
            args.out,
            progress=lambda done, total: bar.update(row, completed=done, total=total),
        )
    print(path)
