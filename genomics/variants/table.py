"""Score the alleles of a VCF file into a table with one line per alternative allele."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genomics.io import Genome, Variant, read_vcf
from genomics.variants.effects import (
    AlleleWindows,
    LikelihoodRatio,
    Refusal,
    allele_windows,
    likelihood_ratios,
    masked_marginals,
    refusal,
)
from seqdiff.cells import printable, write_cell
from seqdiff.files import replacing
from seqdiff.likelihood import Estimator
from seqdiff.run import MISSING, Engine, Run, Shard

COLUMNS = (
    *("chrom", "pos", "id", "ref", "alt", "line"),
    *("llr", "standard_error", "low", "high", "marginal", "status"),
)
_CHUNK = 256
_LISTED = 10


@dataclass
class Survey:
    """Counts of the alleles of a VCF file.

    Attributes:
        alleles: Alternative alleles.
        refused: Alleles that cannot be scored.
        mismatches: Refused alleles whose REF differs from the genome.
    """

    alleles: int = 0
    refused: int = 0
    mismatches: int = 0

    def __str__(self) -> str:
        """Summarise the counts."""
        text = f"{self.alleles - self.refused:,} of {self.alleles:,} alleles scored"
        if not self.refused:
            return text
        return f"{text}, {self.refused:,} not ({self.mismatches:,} REF mismatches; see status)"


@dataclass(frozen=True)
class Scoring:
    """Settings of the scores.

    Attributes:
        window: Bases of a window around a variant.
        estimator: Likelihood estimator; ``None`` skips likelihood ratios.
        marginal: Whether to compute masked-marginal scores.
        seed: Random seed.
        batch_size: Maximum number of rows per network call.
    """

    window: int
    estimator: Estimator | None
    marginal: bool
    seed: int
    batch_size: int


def survey(vcf: Path, genome: Genome, window: int, *, only_marginal: bool = False) -> Survey:
    """Read a whole VCF file and warn on standard error about alleles that cannot be scored.

    Args:
        vcf: The VCF file.
        genome: Genome of the variants.
        window: Bases of a window around a variant.
        only_marginal: Whether nothing but masked marginals is computed, which indels do not have.

    Raises:
        ValueError: If the file is not valid, names a chromosome that the genome lacks, or has no
            allele that can be scored.
    """
    found, reason = Survey(), "the file holds no variant"
    for variant, problem in _checked(vcf, genome, window, only_marginal):
        found.alleles += 1
        if problem is None:
            continue
        found.refused += 1
        found.mismatches += problem.mismatch
        reason = f"the last: line {variant.line}: {problem.reason}"
        if found.refused <= _LISTED:
            print(
                f"seqdiff: warning: {vcf}:{variant.line}: not scored: {printable(problem.reason)}",
                file=sys.stderr,
            )
    if found.refused > _LISTED:
        more = found.refused - _LISTED
        print(f"seqdiff: warning: {vcf}: {more:,} more are not scored", file=sys.stderr)
    if found.alleles == found.refused:
        raise ValueError(
            f"variants.vcf must hold a variant that can be scored, got {vcf} with 0 of "
            f"{found.alleles:,} alleles ({reason}); check that it is of this genome"
        )
    return found


def _checked(
    vcf: Path, genome: Genome, window: int, only_marginal: bool
) -> Iterator[tuple[Variant, Refusal | None]]:
    """Yield every allele with the reason why it cannot be scored, if any."""
    for variant in read_vcf(vcf):
        try:
            problem = refusal(variant, genome, window)
        except ValueError as error:
            raise ValueError(f"{vcf}:{variant.line}: {error}") from error
        if problem is None and only_marginal and len(variant.ref) != len(variant.alt):
            problem = Refusal("an indel has no masked marginal")
        yield variant, problem
        genome.count_reads(1, window)


class _Chunk(NamedTuple):
    """Some alleles, with the reasons why some are not scored, and the windows of the others."""

    alleles: tuple[tuple[Variant, Refusal | None], ...]
    windows: list[AlleleWindows]


def write_table(
    out: Path,
    vcf: Path,
    genome: Genome,
    run: Run,
    scoring: Scoring,
    *,
    total: int,
    engine: Engine | None = None,
) -> None:
    """Score a VCF file with a progress bar and write the table atomically.

    Args:
        out: Tab-separated output file with a header line.
        vcf: The VCF file.
        genome: Genome of the variants.
        run: The model.
        scoring: Settings of the scores.
        total: Number of alleles in the file, from ``survey``.
        engine: Where to compute; by default in this process.

    Raises:
        OSError: If the table cannot be written.
    """
    work, chunks = partial(_score, scoring=scoring), _chunks(vcf, genome, scoring)
    with replacing(out) as temporary, temporary.open("wb") as file:
        file.write(("\t".join(COLUMNS) + "\n").encode())
        for part in (engine or Engine()).map("scoring variants", work, run, chunks, total):
            file.write(part["lines"].tobytes())


def _chunks(vcf: Path, genome: Genome, scoring: Scoring) -> Iterator[Shard]:
    alleles = _checked(vcf, genome, scoring.window, scoring.estimator is None)
    while chunk := tuple(islice(alleles, _CHUNK)):
        windows = [
            allele_windows(variant, genome, scoring.window)
            for variant, problem in chunk
            if problem is None
        ]
        yield Shard(len(chunk), _Chunk(chunk, windows))


def _score(
    run: Run, chunk: _Chunk, progress: Callable[[int], object], *, scoring: Scoring
) -> dict[str, np.ndarray]:
    """Return the lines of the table as bytes."""
    windows = chunk.windows
    ratios: list[LikelihoodRatio | None] = [None] * len(windows)
    marginals: list[float | None] = [None] * len(windows)
    if scoring.estimator is not None:
        ratios[:] = likelihood_ratios(
            run.denoiser,
            windows,
            estimator=scoring.estimator,
            seed=scoring.seed,
            batch_size=scoring.batch_size,
        )
    if scoring.marginal:
        marginals = masked_marginals(run.denoiser, windows, batch_size=scoring.batch_size)
    progress(len(chunk.alleles))
    lines = "".join("\t".join(line) + "\n" for line in _lines(chunk, scoring, ratios, marginals))
    return {"lines": np.frombuffer(lines.encode(), np.uint8)}


def _lines(
    chunk: _Chunk,
    scoring: Scoring,
    ratios: list[LikelihoodRatio | None],
    marginals: list[float | None],
) -> Iterator[list[str]]:
    scores = zip(ratios, marginals, strict=True)
    for variant, problem in chunk.alleles:
        site = (variant.chrom, variant.pos, variant.name, variant.ref, variant.alt, variant.line)
        ratio, marginal = next(scores) if problem is None else (None, None)
        numbers = (*(ratio or (None,) * 4), marginal)
        spelled = (MISSING if number is None else f"{number:.6f}" for number in numbers)
        status = "scored" if problem is None else problem.reason
        if problem is None and scoring.marginal and marginal is None:
            status = "scored by llr only: an indel has no masked marginal"
        yield [*(write_cell(str(cell)) for cell in site), *spelled, write_cell(status)]
