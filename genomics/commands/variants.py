"""``seqdiff variants``."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from seqdiff.cli.options import add_device, check_count, check_seed
from seqdiff.files import check_apart, check_parent

if TYPE_CHECKING:
    from seqdiff.likelihood import Estimator
    from seqdiff.run import Run

help = "score the variants of a VCF file: likelihood ratio and masked-marginal score, both strands"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.cli.commands.Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--vcf", type=Path, required=True, metavar="FILE", help="VCF file, plain, gzip or bgzip"
    )
    parser.add_argument(
        "--fasta",
        type=Path,
        required=True,
        metavar="FILE",
        help="genome that REF agrees with",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="tab-separated table to write"
    )
    parser.add_argument(
        "--score",
        choices=("both", "likelihood", "marginal"),
        help="marginal takes 2 network passes a site, likelihood 64 and 64 an ALT; default: both, "
        "but likelihood for a run whose noise is not masks alone",
    )
    parser.add_argument(
        "--window", type=int, metavar="L", help="bases around a variant; default: the run's rows"
    )
    parser.add_argument(
        "--evaluations",
        type=int,
        metavar="N",
        help="network passes for each window and strand; default: 32, and 1 where that is exact",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws; default: 0")
    parser.add_argument(
        "--batch_size",
        type=int,
        default=32,
        metavar="B",
        help="rows of a network call; default: 32",
    )
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``seqdiff.cli.commands.Command``.

    Raises:
        ValueError: If a file or the run cannot be used, or no variant can be scored.
    """
    check_count("variants.batch_size", args.batch_size)
    check_seed("variants.seed", args.seed)
    check_parent("variants.out", args.out)
    check_apart("variants.out", args.out, {"--vcf": args.vcf, "--fasta": args.fasta})
    if args.score == "marginal" and args.evaluations is not None:
        raise ValueError(
            f"variants.evaluations must be left out with --score marginal, got {args.evaluations}; "
            "a masked-marginal score has no draws"
        )
    from genomics.commands.opening import choose_window, load_dna_run
    from genomics.io import load_genome
    from genomics.sequence import can_mask
    from genomics.variants import Scoring, survey, write_table
    from seqdiff.cli.terminal import choose_device

    trained = load_dna_run("variants", args.directory, choose_device(args.device))
    score = args.score or ("both" if can_mask(trained.denoiser) else "likelihood")
    if score != "likelihood" and not can_mask(trained.denoiser):
        raise ValueError(
            f"variants.score must be likelihood for the {trained.denoiser.description}, from which "
            f"no base can be hidden, got {score}; leave out --score"
        )
    estimator = _choose_estimator(trained, args.evaluations)
    window = choose_window("variants", trained, args.window)
    genome = load_genome(args.fasta)
    found = survey(args.vcf, genome, window)
    scoring = Scoring(
        trained,
        window,
        estimator if score != "marginal" else None,
        marginal=score != "likelihood",
        seed=args.seed,
        batch_size=args.batch_size,
    )
    began = perf_counter()
    write_table(args.out, args.vcf, genome, scoring, total=found.alleles)
    rate = (found.alleles - found.refused) / (perf_counter() - began)
    print(f"{args.out}: {found}, {rate:,.1f}/s{_describe(score, estimator)}")


def _describe(score: str, estimator: Estimator) -> str:
    if score == "marginal":
        return ""
    return f"; llr: of {estimator.quantity}, by {estimator.name}"


def _choose_estimator(trained: Run, evaluations: int | None) -> Estimator:
    """Take the usual estimator of such a run, with as many evaluations as asked for.

    Raises:
        ValueError: If the run's likelihood takes one pass, and another number is asked for.
    """
    from seqdiff.likelihood import SmallK, TimeEstimator, fit, usual_contrast

    usual = usual_contrast(trained.denoiser)
    if evaluations is None:
        return usual
    if usual.exact:
        raise ValueError(
            f"variants.evaluations must be left out for {trained.directory}, whose likelihood is "
            f"exact in one pass, got {evaluations}"
        )
    if isinstance(usual, TimeEstimator):
        return replace(usual, evaluations=evaluations)
    return fit(SmallK(evaluations), trained.denoiser)
