"""Score the alleles of VCF files into a table with one row per alternative allele."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genomics.io import Genome, Variant, read_vcf
from genomics.variants.effects import (
    AlleleWindows,
    Refusal,
    allele_windows,
    likelihood_ratios,
    masked_marginals,
    refusal,
)
from seqdiff.cells import say
from seqdiff.files import name_files
from seqdiff.likelihood import Estimator
from seqdiff.run import Engine, Run, Shard
from seqdiff.tables import Cell, writing_table

_SCORES = ("llr", "standard_error", "low", "high", "marginal")
COLUMNS = {
    **{"chrom": str, "pos": int, "id": str, "ref": str, "alt": str, "line": int},
    **dict.fromkeys(_SCORES, float),
    "status": str,
}
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


def survey(
    files: Sequence[Path], genome: Genome, window: int, *, only_marginal: bool = False
) -> Survey:
    """Read whole VCF files and warn on standard error about alleles that cannot be scored.

    Args:
        files: The VCF files.
        genome: Genome of the variants.
        window: Bases of a window around a variant.
        only_marginal: Whether nothing but masked marginals is computed, which indels do not have.

    Raises:
        ValueError: If a file is not valid or names a chromosome that the genome lacks, or no file
            has an allele that can be scored.
    """
    found, reason = Survey(), "there is no variant"
    for allele in _read_alleles(files, genome, window, only_marginal):
        found.alleles += 1
        problem, place = allele.problem, f"{allele.path}:{allele.variant.line}"
        if problem is None:
            continue
        found.refused += 1
        found.mismatches += problem.mismatch
        reason = f"the last: {place}: {problem.reason}"
        if found.refused <= _LISTED:
            say(
                f"seqdiff: warning: {place}: not scored: {problem.reason}",
                error=True,
            )
    if found.refused > _LISTED:
        more = found.refused - _LISTED
        say(f"seqdiff: warning: {name_files(files)}: {more:,} more are not scored", error=True)
    if found.alleles == found.refused:
        raise ValueError(
            f"variants.vcf must hold a variant that can be scored, got {name_files(files)} with 0 "
            f"of {found.alleles:,} alleles ({reason}); check that it is of this genome"
        )
    return found


class _Allele(NamedTuple):
    """An allele of a file.

    Attributes:
        path: The file.
        variant: The allele, with its line in the file.
        line: Its line in the concatenation of the files, which has the header of the first.
        problem: The reason why it cannot be scored, if any.
    """

    path: Path
    variant: Variant
    line: int
    problem: Refusal | None


def _read_alleles(
    files: Iterable[Path], genome: Genome, window: int, only_marginal: bool
) -> Iterator[_Allele]:
    last = 0
    for path in files:
        before: int | None = None  # lines of the concatenation before the file, less its header
        for variant in read_vcf(path):
            if before is None:
                before = last + 1 - variant.line if last else 0
            last = before + variant.line
            try:
                problem = refusal(variant, genome, window)
            except ValueError as error:
                raise ValueError(f"{path}:{variant.line}: {error}") from error
            if problem is None and only_marginal and len(variant.ref) != len(variant.alt):
                problem = Refusal("an indel has no masked marginal")
            yield _Allele(path, variant, last, problem)
            genome.count_reads(1, window)


def write_table(
    out: Path,
    files: Sequence[Path],
    genome: Genome,
    run: Run,
    scoring: Scoring,
    *,
    total: int,
    engine: Engine | None = None,
) -> None:
    """Score VCF files with a progress bar and write the table atomically.

    Args:
        out: The table, see ``seqdiff.tables.writing_table``.
        files: The VCF files.
        genome: Genome of the variants.
        run: The model.
        scoring: Settings of the scores.
        total: Number of alleles in the files, from ``survey``.
        engine: Where to compute; by default in this process.

    Raises:
        OSError: If the table cannot be written.
    """
    # The alleles of the shards whose results have not come yet.
    waiting: deque[tuple[_Allele, ...]] = deque()

    def shards() -> Iterator[Shard]:
        alleles = _read_alleles(files, genome, scoring.window, scoring.estimator is None)
        while chunk := tuple(islice(alleles, _CHUNK)):
            waiting.append(chunk)
            windows = [
                allele_windows(allele.variant, genome, scoring.window)
                for allele in chunk
                if allele.problem is None
            ]
            yield Shard(len(chunk), windows)

    work = partial(_score, scoring=scoring)
    with writing_table(out, COLUMNS) as write:
        for part in (engine or Engine()).map("scoring variants", work, run, shards(), total):
            write(_rows(waiting.popleft(), part, scoring))


def _score(
    run: Run,
    windows: list[AlleleWindows],
    progress: Callable[[int], object],
    *,
    scoring: Scoring,
) -> dict[str, np.ndarray]:
    """Return the scores of some alleles, NaN where an allele has none."""
    found = {name: np.full(len(windows), np.nan) for name in _SCORES}
    if scoring.estimator is not None:
        ratios = likelihood_ratios(
            run.denoiser,
            windows,
            estimator=scoring.estimator,
            seed=scoring.seed,
            batch_size=scoring.batch_size,
        )
        for number, ratio in enumerate(ratios):
            for name, value in zip(_SCORES, ratio, strict=False):
                found[name][number] = value
    if scoring.marginal:
        marginals = masked_marginals(run.denoiser, windows, batch_size=scoring.batch_size)
        found["marginal"][:] = [np.nan if score is None else score for score in marginals]
    progress(len(windows))
    return found


def _rows(
    alleles: Iterable[_Allele], scores: dict[str, np.ndarray], scoring: Scoring
) -> Iterator[tuple[Cell, ...]]:
    scored = zip(*(scores[name].tolist() for name in _SCORES), strict=True)
    for _, variant, line, problem in alleles:
        site = (variant.chrom, variant.pos, variant.name, variant.ref, variant.alt, line)
        found = next(scored) if problem is None else (np.nan,) * len(_SCORES)
        numbers = [None if np.isnan(number) else number for number in found]
        status = "scored" if problem is None else problem.reason
        if problem is None and scoring.marginal and numbers[-1] is None:
            status = "scored by llr only: an indel has no masked marginal"
        yield (*site, *numbers, status)
