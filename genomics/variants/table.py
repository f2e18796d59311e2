"""Score the alleles of VCF files into a table with one row per alternative allele.

The scores can also be written into the INFO column of a copy of the files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from genomics.io import Genome, InfoField, Variant, annotating_vcf, read_vcf
from genomics.sequence import DNATokenizer
from genomics.variants.effects import (
    AlleleWindows,
    Refusal,
    SharedWindow,
    allele_windows,
    likelihood_ratios,
    masked_marginals,
    refusal,
    share_windows,
    shared_marginals,
    token_marginals,
)
from seqdiff.cells import say
from seqdiff.files import name_files
from seqdiff.likelihood import Estimator
from seqdiff.run import Engine, Run, Shard
from seqdiff.tables import Cell, spell, writing_table

_SCORES = ("llr", "standard_error", "low", "high", "marginal")
COLUMNS = {
    **{"chrom": str, "pos": int, "id": str, "ref": str, "alt": str, "line": int},
    **dict.fromkeys(_SCORES, float),
    "status": str,
}
_DESCRIPTIONS = {
    "llr": "Log-likelihood ratio of the window with ALT to the window with REF, in nats",
    "standard_error": "Standard error of SEQDIFF_LLR",
    "low": "Lower end of the 95% interval of SEQDIFF_LLR",
    "high": "Upper end of the 95% interval of SEQDIFF_LLR",
    "marginal": "Sum of log p(ALT) - log p(REF) over the changed bases when masked, in nats",
}
# Fields of an annotated VCF file: a value for each ALT, and the reasons where there is none.
INFO_FIELDS = (
    *(InfoField(f"SEQDIFF_{k.upper()}", "A", "Float", text) for k, text in _DESCRIPTIONS.items()),
    InfoField("SEQDIFF_STATUS", ".", "String", "Whether each ALT was scored, or why it was not"),
)
_CHUNK = 256
# With shared windows a shard is larger, because only its own variants share them.
_SHARING_CHUNK, _SHARING_BASES = 4096, 1 << 24
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
        spacing: See ``share_windows``; for masked marginals alone. ``None`` masks each site in a
            window of its own.
    """

    window: int
    estimator: Estimator | None
    marginal: bool
    seed: int
    batch_size: int
    spacing: int | None = None

    @property
    def chunk(self) -> int:
        """Number of alleles of a shard."""
        if self.spacing is None:
            return _CHUNK
        return max(_CHUNK, min(_SHARING_CHUNK, _SHARING_BASES // self.window))


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
    vcf_out: Path | None = None,
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
        vcf_out: Copy of the VCF files with ``INFO_FIELDS``, see ``annotating_vcf``.
        engine: Where to compute; by default in this process.

    Raises:
        OSError: If the table cannot be written.
        ValueError: If the files cannot be copied into one.
    """
    # The alleles of the shards whose results have not come yet.
    waiting: deque[tuple[_Allele, ...]] = deque()

    def shards() -> Iterator[Shard]:
        alleles = _read_alleles(files, genome, scoring.window, scoring.estimator is None)
        while chunk := tuple(islice(alleles, scoring.chunk)):
            waiting.append(chunk)
            scored = [allele.variant for allele in chunk if allele.problem is None]
            if scoring.spacing is None:
                windows = [allele_windows(variant, genome, scoring.window) for variant in scored]
            else:
                windows = share_windows(scored, genome, scoring.window, scoring.spacing)
            yield Shard(len(chunk), windows)

    def scored() -> Iterator[tuple[_Allele, tuple[Cell, ...]]]:
        work = partial(_score if scoring.spacing is None else _score_shared, scoring=scoring)
        for part in (engine or Engine()).map("scoring variants", work, run, shards(), total):
            yield from _rows(waiting.popleft(), part, scoring)

    copying = nullcontext() if vcf_out is None else annotating_vcf(vcf_out, files, INFO_FIELDS)
    with writing_table(out, COLUMNS) as write, copying as annotate:
        for _, record in groupby(scored(), key=lambda pair: pair[0].line):
            rows = [row for _, row in record]
            write(rows)
            if annotate is not None:
                annotate(_info(rows))


def _info(rows: Sequence[tuple[Cell, ...]]) -> dict[str, list[str | None]]:
    """Return the values of the fields of a record, without those that no allele has."""
    columns = zip(*(row[-len(INFO_FIELDS) :] for row in rows), strict=True)
    return {
        field.name: [None if cell is None else _value(cell) for cell in column]
        for field, column in zip(INFO_FIELDS, columns, strict=True)
        if any(cell is not None for cell in column)
    }


def _value(cell: Cell) -> str:
    return cell if isinstance(cell, str) else spell(cell)


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
        if run.tokenizer.fingerprint == DNATokenizer().fingerprint:
            marginals = masked_marginals(run.denoiser, windows, batch_size=scoring.batch_size)
        else:
            marginals = token_marginals(run, windows, batch_size=scoring.batch_size)
        found["marginal"][:] = [np.nan if score is None else score for score in marginals]
    progress(len(windows))
    return found


def _score_shared(
    run: Run,
    windows: list[SharedWindow],
    progress: Callable[[float], object],
    *,
    scoring: Scoring,
) -> dict[str, np.ndarray]:
    """Return the masked marginals of the alleles of some shared windows."""
    number = sum(len(shared.variants) for shared in windows)
    marginals = shared_marginals(
        run.denoiser,
        windows,
        batch_size=scoring.batch_size,
        progress=lambda fraction: progress(fraction * number),
    )
    found = {name: np.full(number, np.nan) for name in _SCORES}
    return {**found, "marginal": np.array(marginals, dtype=np.float64)}


def _rows(
    alleles: Iterable[_Allele], scores: dict[str, np.ndarray], scoring: Scoring
) -> Iterator[tuple[_Allele, tuple[Cell, ...]]]:
    scored = zip(*(scores[name].tolist() for name in _SCORES), strict=True)
    for allele in alleles:
        variant, problem = allele.variant, allele.problem
        site = (variant.chrom, variant.pos, variant.name, variant.ref, variant.alt, allele.line)
        found = next(scored) if problem is None else (np.nan,) * len(_SCORES)
        numbers = [None if np.isnan(number) else number for number in found]
        status = "scored" if problem is None else problem.reason
        if problem is None and scoring.marginal and numbers[-1] is None:
            status = "scored by llr only: an indel has no masked marginal"
        yield allele, (*site, *numbers, status)
