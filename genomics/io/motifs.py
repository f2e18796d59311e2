"""Read and write motif files (JASPAR, MEME) and count motif hits in sequences."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8

from genomics.io.fasta import read_text
from genomics.sequence import BASES, MASK_ID, join
from seqdiff.cells import describe_error
from seqdiff.files import write_bytes

if TYPE_CHECKING:
    from Bio.motifs import Motif

# A hit scores at least this fraction of the motif's best score, as `matchPWM(min.score = "80%")` of
# Bioconductor's Biostrings does.
HIT_FRACTION = 0.8
_PSEUDO_FRACTION = 0.01  # weight of the uniform distribution mixed in to keep scores finite
_ROUNDING = 1e-9  # tolerance for sums of scores, in bits
_BLOCK = 1 << 14


@dataclass(frozen=True, eq=False)
class MotifScores:
    """A motif as log-odds against equally frequent bases.

    Attributes:
        name: Matrix id and factor name.
        scores: Log-odds of each base at each position, in bits.
    """

    name: str
    scores: Float64[np.ndarray, "w 4"]

    @property
    def threshold(self) -> float:
        """Least score of a hit, in bits."""
        return HIT_FRACTION * float(self.scores.max(axis=1).sum())


def read_motifs(path: Path) -> list[MotifScores]:
    """Read a motif file in JASPAR's or MEME's text format, plain or gzip.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not valid. The message starts with the file and, if known, the
            line.
    """
    text = read_text(path, "motif")
    lines = [line if line[:1] != "#" else "" for line in text.splitlines()]
    place = next((i for i, line in enumerate(lines) if line.strip()), None)
    if place is None:
        raise ValueError(f"{path}: the motif file is empty; it needs at least one motif")
    if lines[place].startswith("MEME version"):
        _check_meme(path, lines)
        return _parse(path, lines, "minimal", "MOTIF")
    if lines[place].startswith(">"):
        return _parse(path, lines, _orientation(path, lines), ">")
    raise ValueError(
        f"{path}:{place + 1}: not a motif file: it starts with {lines[place][:40]!r}, neither "
        "with '>' (JASPAR) nor 'MEME version'; give one of these formats"
    )


def _orientation(path: Path, lines: list[str]) -> str:
    """Return Biopython's name of the format: ``jaspar`` has a row per base, the other per position.

    Raises:
        ValueError: If a line is not a row of counts, for example in a FASTA file.
    """
    shapes: list[list[int]] = []
    starts: list[int] = []
    for number, line in enumerate(lines, start=1):
        words = re.sub(r"^\s*[ACGT]?\s*\[?|\]\s*$", "", line).split()
        if line.startswith(">"):
            shapes.append([])
            starts.append(number)
        elif line.strip():
            if not words or not all(re.fullmatch(r"\d+(\.\d*)?(e-?\d+)?", word) for word in words):
                raise ValueError(
                    f"{path}:{number}: must be counts of a base, as in A [ 3 0 12 ], got "
                    f"{line.strip()[:40]!r}; is this a JASPAR file?"
                )
            shapes[-1].append(len(words))
    if all(len(shape) == 4 and len(set(shape)) == 1 for shape in shapes):
        return "jaspar"
    named = any(re.match(r"\s*[ACGT]", line) for line in lines)
    for number, shape in zip(starts, shapes, strict=True):
        if set(shape) != {4} or (named and len(shape) != 4):
            raise ValueError(
                f"{path}:{number}: a motif must have four rows of one length, for A, C, G and T, "
                f"or rows of four, got rows of {shape[:8]}; is this a JASPAR file?"
            )
    return "pfm-four-columns"


def _check_meme(path: Path, lines: list[str]) -> None:
    """Check that each motif has one matrix with the number of rows that its header states."""
    left, header = 0, None
    for number, line in enumerate([*lines, "end of file"], start=1):
        width = re.match(r"letter-probability matrix:.*\bw= *(\d+)", line)
        row = re.fullmatch(r"\s*([\d.]+(e-?\d+)?\s+){4}", line + " ", re.IGNORECASE)
        if width and not left:
            if header is None:
                raise ValueError(
                    f"{path}:{number}: a matrix must follow its own MOTIF line, got none; add a "
                    "MOTIF line with a name"
                )
            left, header = int(width[1]), None
        elif line.strip() and (row is None) == (left > 0):
            raise ValueError(
                f"{path}:{number}: must have {left} more rows of the matrix above, probabilities "
                f"of A, C, G and T, got {line.strip()[:40]!r}; check w= and the rows"
            )
        elif row:
            left -= 1
        elif line.startswith("MOTIF") or number > len(lines):
            if header is not None:
                raise ValueError(
                    f"{path}:{header}: a motif must have a letter-probability matrix, got "
                    f"{lines[header - 1][:40]!r} without one; remove it"
                )
            header = number


def _parse(path: Path, lines: list[str], kind: str, start: str) -> list[MotifScores]:
    from Bio import motifs

    headers = [number for number, line in enumerate(lines, start=1) if line.startswith(start)]
    try:
        found = list(motifs.parse(io.StringIO("\n".join(lines) + "\n"), kind))
    except Exception as error:  # Biopython's parsers raise many kinds of exceptions
        raise ValueError(
            f"{path}: must be a motif file, got an error ({describe_error(error)}); check the file"
        ) from error
    if not found or len(found) != len(headers):
        raise ValueError(
            f"{path}: must hold a matrix for each header, got {len(headers)} headers {start!r} and "
            f"{len(found)} matrices; check the file"
        )
    return [_scores(f"{path}:{line}", m) for line, m in zip(headers, found, strict=True)]


def _scores(place: str, motif: Motif) -> MotifScores:
    parts = (getattr(motif, "matrix_id", None), motif.name)
    name = " ".join(dict.fromkeys(str(part) for part in parts if part))
    assert motif.counts is not None
    counts = np.array([motif.counts[base] for base in BASES], dtype=np.float64).T
    total = counts.sum(axis=1, keepdims=True)
    if counts.size == 0 or not (total > 0).all():
        empty = "none" if counts.size == 0 else f"none at position {int(total.argmin()) + 1}"
        raise ValueError(
            f"{place}: motif {name} must have counts at each position, got {empty}; remove it"
        )
    probs = (counts / total + _PSEUDO_FRACTION / 4) / (1 + _PSEUDO_FRACTION)
    return MotifScores(name, np.log2(4 * probs))


def count_hits(
    motifs: Sequence[MotifScores], rows: Sequence[UInt8[np.ndarray, " _"]]
) -> Int64[np.ndarray, " motifs"]:
    """Count the positions on both strands at which each motif reaches its threshold.

    Args:
        motifs: The motifs.
        rows: Ids ``0..4``. Positions that overlap an N are not hits.
    """
    ids = torch.from_numpy(join(rows).astype(np.int64))
    counts = np.zeros(len(motifs), dtype=np.int64)
    widths = np.array([len(motif.scores) for motif in motifs])
    for width in np.unique(widths[widths <= len(ids)]):
        chosen = np.flatnonzero(widths == width)
        plus = np.stack([motifs[i].scores.T for i in chosen.tolist()])
        kernels = torch.from_numpy(np.concatenate([plus, plus[:, ::-1, ::-1]]))
        least = torch.tensor([motifs[i].threshold for i in chosen.tolist()], dtype=torch.float64)
        least = least.repeat(2)[:, None] - _ROUNDING
        for first in range(0, len(ids) - int(width) + 1, _BLOCK):
            block = ids[first : first + _BLOCK + int(width) - 1]
            one_hot = torch.nn.functional.one_hot(block, MASK_ID + 1).T.double()
            scores = torch.nn.functional.conv1d(one_hot[None, :MASK_ID], kernels)[0]
            unknown = torch.nn.functional.conv1d(
                one_hot[None, MASK_ID:], torch.ones(1, 1, int(width), dtype=torch.float64)
            )[0]
            hits = ((scores >= least) & (unknown == 0)).sum(dim=1).numpy()
            counts[chosen] += hits[: len(chosen)] + hits[len(chosen) :]
    return counts


def write_motifs(
    path: Path, names: Sequence[str], matrices: Sequence[Float64[np.ndarray, "_ 4"]]
) -> None:
    """Write motifs in JASPAR format with counts that sum to 1,000 per position.

    Args:
        path: Output file.
        names: Names without blanks.
        matrices: Base probabilities of each position.
    """
    lines = []
    for name, matrix in zip(names, matrices, strict=True):
        lines.append(f">{name}")
        for base, row in zip(BASES, 1000 * matrix.T, strict=True):
            lines.append(f"{base} [ {' '.join(f'{count:.3f}' for count in row)} ]")
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def consensus(matrix: Float64[np.ndarray, "w 4"]) -> str:
    """Spell the base with a probability above 1/2 at each position, or N."""
    return "".join(BASES[row.argmax()] if row.max() > 0.5 else "N" for row in matrix)
