"""From a VCF file to a table with a line for each alternative allele."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from genomics.io import Genome, Variant, read_vcf
from genomics.variants.effects import LikelihoodRatio, likelihood_ratios, masked_marginals
from genomics.variants.windows import Refusal, allele_windows, refusal
from seqdiff.files import replacing
from seqdiff.likelihood import Estimator
from seqdiff.progress import progress
from seqdiff.run import MISSING, Run

COLUMNS = (
    *("chrom", "pos", "id", "ref", "alt", "line"),
    *("llr", "standard_error", "low", "high", "marginal", "status"),
)
_CHUNK = 256
_LISTED = 10


@dataclass
class Survey:
    """What a VCF file holds.

    Attributes:
        alleles: How many alternative alleles.
        refused: How many cannot be scored, for whatever reason.
        mismatches: How many of these because REF is not what the genome holds.
    """

    alleles: int = 0
    refused: int = 0
    mismatches: int = 0

    def __str__(self) -> str:
        """Count in words."""
        text = f"{self.alleles - self.refused:,} of {self.alleles:,} alleles scored"
        if not self.refused:
            return text
        return f"{text}, {self.refused:,} not (status says why; {self.mismatches:,} REF mismatches)"


@dataclass(frozen=True)
class Scoring:
    """How to score.

    Attributes:
        run: The model.
        window: Bases around a variant.
        estimator: Of likelihoods; ``None`` leaves them out.
        marginal: Whether to give masked-marginal scores.
        seed: Of the draws.
        batch_size: Rows of a network call.
    """

    run: Run
    window: int
    estimator: Estimator | None
    marginal: bool
    seed: int
    batch_size: int


def survey(vcf: Path, genome: Genome, window: int) -> Survey:
    """Read a whole VCF file and list on standard error what cannot be scored, before slow work.

    Args:
        vcf: The file.
        genome: What REF is compared with.
        window: Bases around a variant.

    Raises:
        ValueError: If the file is not sound, names a chromosome that the genome lacks, or holds no
            allele that can be scored.
    """
    found, reason = Survey(), "it holds no variant"
    for variant, problem in _checked(vcf, genome, window):
        found.alleles += 1
        if problem is None:
            continue
        found.refused += 1
        found.mismatches += problem.mismatch
        reason = f"the last: line {variant.line}: {problem.reason}"
        if found.refused <= _LISTED:
            print(
                f"seqdiff: warning: {vcf}:{variant.line}: not scored: {problem.reason}",
                file=sys.stderr,
            )
    if found.refused > _LISTED:
        more = found.refused - _LISTED
        print(f"seqdiff: warning: {vcf}: {more:,} more are not scored", file=sys.stderr)
    if found.alleles == found.refused:
        raise ValueError(
            f"variants.vcf must hold a variant that can be scored, got {vcf} with "
            f"{found.alleles:,} alleles and none ({reason}); check that it is of this genome"
        )
    return found


def _checked(vcf: Path, genome: Genome, window: int) -> Iterator[tuple[Variant, Refusal | None]]:
    """Every allele with what is against it."""
    for variant in read_vcf(vcf):
        try:
            problem = refusal(variant, genome, window)
        except ValueError as error:
            raise ValueError(f"{vcf}:{variant.line}: {error}") from error
        yield variant, problem


def write_table(out: Path, vcf: Path, genome: Genome, scoring: Scoring, *, total: int) -> None:
    """Score a VCF file under a progress bar; the table appears only when it is complete.

    Args:
        out: The table, tab-separated, with a line of headings.
        vcf: The file.
        genome: Where the variants lie.
        scoring: How to score them.
        total: Alleles of the file.

    Raises:
        OSError: If the table cannot be written.
    """
    with (
        progress() as bar,
        replacing(out) as temporary,
        temporary.open("w", encoding="utf-8") as file,
    ):
        task = bar.add_task("scoring", total=total)
        file.write("\t".join(COLUMNS) + "\n")
        alleles = _checked(vcf, genome, scoring.window)
        while chunk := tuple(islice(alleles, _CHUNK)):
            for line in _score(chunk, genome, scoring):
                file.write("\t".join(line) + "\n")
            bar.advance(task, len(chunk))


def _score(
    chunk: tuple[tuple[Variant, Refusal | None], ...], genome: Genome, scoring: Scoring
) -> Iterator[list[str]]:
    """The lines of some alleles."""
    windows = [
        allele_windows(variant, genome, scoring.window)
        for variant, problem in chunk
        if problem is None
    ]
    model = scoring.run.denoiser
    ratios: list[LikelihoodRatio | None] = [None] * len(windows)
    marginals: list[float | None] = [None] * len(windows)
    if scoring.estimator is not None:
        ratios[:] = likelihood_ratios(
            model,
            windows,
            estimator=scoring.estimator,
            seed=scoring.seed,
            batch_size=scoring.batch_size,
        )
    if scoring.marginal:
        marginals = masked_marginals(model, windows, batch_size=scoring.batch_size)
    scores = zip(ratios, marginals, strict=True)
    for variant, problem in chunk:
        site = (variant.chrom, variant.pos, variant.name, variant.ref, variant.alt, variant.line)
        ratio, marginal = next(scores) if problem is None else (None, None)
        numbers = (*(ratio or (None,) * 4), marginal)
        spelled = (MISSING if number is None else f"{number:.6f}" for number in numbers)
        yield [*map(str, site), *spelled, "scored" if problem is None else problem.reason]
