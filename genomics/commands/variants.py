"""``seqdiff variants``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from seqdiff.cells import say
from seqdiff.checks import check_count, check_seed
from seqdiff.cli.options import FlatOptions, Several
from seqdiff.files import check_apart, check_parent, expand_files, has_suffix
from seqdiff.run import EngineOptions
from seqdiff.tables import check_table

if TYPE_CHECKING:
    from seqdiff.likelihood import Estimator
    from seqdiff.run import Run

_HERE = EngineOptions()


def variants(
    run: Path,
    /,
    *,
    vcf: Annotated[tuple[Path, ...], Several],
    fasta: Path,
    out: Path,
    vcf_out: Path | None = None,
    score: Literal["both", "likelihood", "marginal"] | None = None,
    window: int | None = None,
    spacing: int | None = None,
    evaluations: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    device: str | None = None,
    engine: Annotated[EngineOptions, FlatOptions] = _HERE,
) -> None:
    """Score the variants of VCF files on both strands: likelihood ratio and masked marginal.

    Args:
        run: Run directory, name of a packaged model, or hub folder of a masked language model of
            DNA, which has --score marginal only.
        vcf: VCF files, plain, gzip or bgzip, folders, or globs in quotes. They are read in the
            order of their paths, as if they were one file.
        fasta: Genome that the REF column agrees with.
        out: Table to write, tab-separated, or Parquet if it ends in .parquet; a * in the name, in
            quotes, writes parts of 100,000 rows.
        vcf_out: Copy of the VCF files to write, with the scores as INFO fields; plain .vcf, or
            bgzip if it ends in .vcf.gz.
        score: marginal takes 1 or 2 network passes per site; likelihood takes 64 per site and 64
            per ALT; default: both, or likelihood for a run with other noise than masks.
        window: Bases of the window around a variant; default: the length of a training row.
        spacing: Mask variants at least this many bases apart together in windows that they share,
            which is faster for dense variants and approximate; with --score marginal only;
            default: each site alone.
        evaluations: Network passes for each window and strand; default: 32, or 1 where one pass is
            exact.
        seed: Seed of the draws.
        batch_size: Rows per network call.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.
        engine: Where the command computes.

    Raises:
        ValueError: If a file or the run cannot be used, or no variant can be scored.
    """
    check_count("variants.batch_size", batch_size)
    check_seed("variants.seed", seed)
    check_table("variants.out", out)
    files = expand_files("variants.vcf", vcf, ("vcf",))
    check_apart("variants.out", out, {"--vcf": files, "--fasta": fasta})
    if vcf_out is not None:
        if not has_suffix(vcf_out, ("vcf",)):
            raise ValueError(
                f"variants.vcf_out must end in .vcf or .vcf.gz, got {vcf_out}; rename it"
            )
        check_parent("variants.vcf_out", vcf_out)
        others = {"--out": out, "--vcf": files, "--fasta": fasta}
        check_apart("variants.vcf_out", vcf_out, others)
    engine.check("variants", out)
    if score == "marginal" and evaluations is not None:
        raise ValueError(
            f"variants.evaluations must be left out with --score marginal, got {evaluations}; "
            "a masked-marginal score has no draws"
        )
    if spacing is not None:
        check_count("variants.spacing", spacing)
        if score != "marginal":
            raise ValueError(
                f"variants.spacing must go with --score marginal, got {spacing} without; add it, "
                "since likelihood ratios share no windows"
            )
    from genomics.commands.opening import choose_window, load_dna_run
    from genomics.io import annotated_header, load_genome
    from genomics.sequence import DNATokenizer, can_mask
    from genomics.variants import INFO_FIELDS, Scoring, survey, write_table

    trained = load_dna_run("variants", run, engine.place("variants", device), ("base",))
    if trained.tokenizer.fingerprint != DNATokenizer().fingerprint:
        if score not in (None, "marginal"):
            raise ValueError(
                f"variants.score must be marginal for a model whose tokens are not single bases, "
                f"got {score}; add --score marginal"
            )
        if spacing is not None:
            raise ValueError(
                "variants.spacing must be left out for a model whose tokens are not single bases, "
                f"got {spacing}; leave it out"
            )
        score = "marginal"
    score = score or ("both" if can_mask(trained.denoiser) else "likelihood")
    if score != "likelihood" and not can_mask(trained.denoiser):
        raise ValueError(
            f"variants.score must be likelihood for the {trained.denoiser.description}, which "
            f"cannot mask a base, got {score}; leave out --score"
        )
    estimator = _choose_estimator(trained, evaluations)
    window = choose_window("variants", trained, window)
    if spacing is not None and spacing > window // 2:
        raise ValueError(
            f"variants.spacing must be at most half of the window of {window:,} bases, got "
            f"{spacing:,}; lower it, or leave it out"
        )
    genome = load_genome(fasta)
    found = survey(files, genome, window, only_marginal=score == "marginal")
    scoring = Scoring(
        window,
        estimator if score != "marginal" else None,
        marginal=score != "likelihood",
        seed=seed,
        batch_size=batch_size,
        spacing=spacing,
    )
    if vcf_out is not None:
        annotated_header(files, INFO_FIELDS)
    inputs = {"vcf": files, "fasta": fasta}
    with engine.start("variants", trained, out, device, inputs, vars(scoring)) as computing:
        write_table(
            out,
            files,
            genome,
            trained,
            scoring,
            total=found.alleles,
            vcf_out=vcf_out,
            engine=computing,
        )
    say(f"{out}: {found}, {computing.rate:,.1f}/s{_describe(score, estimator)}")
    if vcf_out is not None:
        say(f"{vcf_out}: the records with their scores as INFO fields")


def _describe(score: str, estimator: Estimator) -> str:
    if score == "marginal":
        return ""
    return f"; llr from likelihoods ({estimator.quantity}) by {estimator.name}"


def _choose_estimator(trained: Run, evaluations: int | None) -> Estimator:
    """Return the usual estimator of a run, with the requested number of evaluations.

    Raises:
        ValueError: If a number is given although the run's likelihood is exact in one pass.
    """
    from seqdiff.likelihood import SmallK, TimeEstimator, fit, usual_contrast

    usual = usual_contrast(trained.denoiser)
    if evaluations is None:
        return usual
    if usual.exact:
        raise ValueError(
            f"variants.evaluations must be left out for {trained.directory}, whose likelihood is "
            f"exact in one pass, got {evaluations}; leave out --evaluations"
        )
    if isinstance(usual, TimeEstimator):
        return replace(usual, evaluations=evaluations)
    return fit(SmallK(evaluations), trained.denoiser)
