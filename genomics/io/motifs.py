"""Motifs of a JASPAR or MEME file, and how often they stand in sequences."""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt8

from genomics.io.fasta import check_file, is_gzip
from genomics.sequence import BASES, MASK_ID, join
from seqdiff.files import write_bytes

if TYPE_CHECKING:
    from Bio.motifs import Motif

# A hit scores at least this share of the best score there is: `matchPWM(min.score = "80%")` of
# Bioconductor's Biostrings.
HIT_SHARE = 0.8
_PSEUDO_SHARE = 0.01  # of equally frequent bases, mixed in so that no score is infinite
_ROUNDING = 1e-9  # of sums of scores, in bits


_BLOCK = 1 << 14


@dataclass(frozen=True, eq=False)
class MotifScores:
    """A motif as log-odds against equally frequent bases.

    Attributes:
        name: Matrix id and name of the factor.
        scores: Bits of each base at each position.
    """

    name: str
    scores: Float64[np.ndarray, "w 4"]

    @property
    def threshold(self) -> float:
        """Bits that a hit has at least."""
        return HIT_SHARE * float(self.scores.max(axis=1).sum())


def read_motifs(path: Path) -> list[MotifScores]:
    """Read a motif file in JASPAR's or MEME's text format, plain or gzip.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no such file, with the line that is not sound where there is one.
    """
    check_file(path)
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if is_gzip(path) else raw).decode("utf-8")
    except (UnicodeDecodeError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path}: must be a text file of motifs, got: {error}") from error
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
    """Tell Biopython's name of the format: a row for each base, or one for each position.

    Raises:
        ValueError: At the first line that is no row of counts, as all are of a FASTA file.
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
    """Look at the headers, and at the rows of each matrix.

    Raises:
        ValueError: At the first header without one matrix, or the first row that is not four
            probabilities, missing or one too many.
    """
    left, header = 0, None
    for number, line in enumerate([*lines, "end of file"], start=1):
        width = re.match(r"letter-probability matrix:.*\bw= *(\d+)", line)
        row = re.fullmatch(r"\s*([\d.]+(e-?\d+)?\s+){4}", line + " ", re.IGNORECASE)
        if width and not left:
            if header is None:
                raise ValueError(
                    f"{path}:{number}: a matrix must follow a line MOTIF of its own, got none; "
                    "name each motif"
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
    except Exception as error:  # Biopython's parsers raise what they happen to meet
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"{path}: must be a motif file, got one that cannot be read ({reason}); check it"
        ) from error
    if not found or len(found) != len(headers):
        raise ValueError(
            f"{path}: must hold whole motifs, got {len(headers)} headers {start!r} and "
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
    probs = (counts / total + _PSEUDO_SHARE / 4) / (1 + _PSEUDO_SHARE)
    return MotifScores(name, np.log2(4 * probs))


def count_hits(
    motifs: Sequence[MotifScores], rows: Sequence[UInt8[np.ndarray, " _"]]
) -> Int64[np.ndarray, " motifs"]:
    """Count where each motif scores at least its threshold, both strands together.

    Args:
        motifs: The motifs.
        rows: Ids ``0..4``; nothing that touches an N is a hit.
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
            letters = torch.nn.functional.one_hot(block, MASK_ID + 1).T.double()
            scores = torch.nn.functional.conv1d(letters[None, :MASK_ID], kernels)[0]
            gone = torch.nn.functional.conv1d(
                letters[None, MASK_ID:], torch.ones(1, 1, int(width), dtype=torch.float64)
            )[0]
            hits = ((scores >= least) & (gone == 0)).sum(dim=1).numpy()
            counts[chosen] += hits[: len(chosen)] + hits[len(chosen) :]
    return counts


def write_motifs(
    path: Path, names: Sequence[str], matrices: Sequence[Float64[np.ndarray, "_ 4"]]
) -> None:
    """Write motifs in JASPAR's format, as counts of a thousand.

    Args:
        path: Where to.
        names: Without blanks.
        matrices: Base probabilities of each position.

    Raises:
        OSError: If the file cannot be written.
    """
    lines = []
    for name, matrix in zip(names, matrices, strict=True):
        lines.append(f">{name}")
        for base, row in zip(BASES, 1000 * matrix.T, strict=True):
            lines.append(f"{base} [ {' '.join(f'{count:.3f}' for count in row)} ]")
    write_bytes(path, ("\n".join(lines) + "\n").encode())


def consensus(matrix: Float64[np.ndarray, "w 4"]) -> str:
    """Spell the base that each position holds more often than not, N where there is none."""
    return "".join(BASES[row.argmax()] if row.max() > 0.5 else "N" for row in matrix)
