"""``seqdiff score --fasta``: the records of a FASTA file, on one strand or on both."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.data import Record

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import UInt8

    from seqdiff.data import Tokenizer

help = "FASTA file, plain, gzip or bgzip; N and IUPAC codes are given, not counted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.data.Reader``."""
    parser.add_argument(
        "--rc",
        choices=("none", "mean"),
        default="none",
        help="mean: average the nats of both strands; default: none",
    )


def read(path: Path, args: argparse.Namespace, tokenizer: Tokenizer) -> list[Record]:
    """See ``seqdiff.data.Reader``.

    Raises:
        ValueError: If the model is not one of DNA, or for what ``read_encoded`` refuses.
    """
    from genomics.sequence import DNATokenizer

    if tokenizer.fingerprint != DNATokenizer().fingerprint:
        raise ValueError(
            f"score.fasta must be scored by a model of DNA, got a run whose tokenizer is "
            f"{tokenizer.fingerprint}; choose another run"
        )
    both = args.rc == "mean"
    return [_record(name, ids, both=both) for name, ids in read_ids(path).items()]


def read_ids(path: Path) -> dict[str, UInt8[np.ndarray, " L"]]:
    """Read the records of a FASTA file as ids ``0..4``, by name, in the order of the file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: For what ``read_encoded`` refuses.
    """
    import numpy as np

    from genomics.io.fasta import read_encoded

    pieces: dict[str, list[bytes]] = {}
    for name, piece in read_encoded(path):
        pieces.setdefault(name, []).append(piece)
    return {name: np.frombuffer(b"".join(parts), np.uint8) for name, parts in pieces.items()}


def require_known(owner: str, path: Path, records: dict[str, UInt8[np.ndarray, " L"]]) -> None:
    """Refuse records that hold nothing but N.

    Args:
        owner: Who has no use for them.
        path: The file.
        records: By name.

    Raises:
        ValueError: If there is one.
    """
    from genomics.sequence import MASK_ID

    for name, ids in records.items():
        if not (ids != MASK_ID).any():
            raise ValueError(
                f"{path}: record {name!r}: {owner} must have a known base, got {len(ids):,} "
                "unknown ones; remove the record"
            )


def _record(name: str, ids: UInt8[np.ndarray, " L"], *, both: bool) -> Record:
    """Take the strand whose ids come first as the content, whichever the file holds.

    So both strands of a sequence get the same noise, letter by letter.
    """
    from genomics.sequence import reads_backwards, reverse_complement

    opposite, mirrored = reverse_complement(ids), reads_backwards(ids)
    content, other = (opposite, ids) if mirrored else (ids, opposite)
    if both:
        return Record(name, (content, other), content, (False, True))
    return Record(name, (ids,), content, (mirrored,))
