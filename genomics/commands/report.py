"""``seqdiff report``: samples of a run beside real sequence, on one page."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.options import add_device, check_seed
from seqdiff.files import check_apart, check_parent, replacing

if TYPE_CHECKING:
    import torch

    from genomics.io import Genome, MotifScores
    from genomics.report import Curves, Measured, Rows, Sets
    from seqdiff.data import Split
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler
    from seqdiff.trace import Trace

help = "compare samples of DNA with real, shuffled and Markov sequence, on one page"

DEFAULT_ORDER = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.cli.commands.Command``."""
    parser.add_argument(
        "directory", type=Path, metavar="RUN", help="run the samples are drawn from"
    )
    parser.add_argument(
        "--reference",
        type=Path,
        required=True,
        metavar="FASTA",
        help="real sequence; of the genome that the run was trained on, what it has not seen is "
        "used if there is enough",
    )
    parser.add_argument(
        "--samples", type=Path, required=True, metavar="FASTA", help="of seqdiff sample"
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE.html",
        help="the numbers go beside it, as FILE.json",
    )
    parser.add_argument(
        "--motifs", type=Path, metavar="FILE", help="motifs to count, in JASPAR's or MEME's format"
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.npz",
        help="of seqdiff sample --trace, whose first sequence is shown while it is drawn; "
        "default: one drawn now",
    )
    parser.add_argument(
        "--markov_order",
        type=int,
        default=DEFAULT_ORDER,
        metavar="K",
        help=f"of the chain that the samples should beat; default: {DEFAULT_ORDER}",
    )
    parser.add_argument("--seed", type=int, default=0, help="of all draws; default: 0")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``seqdiff.cli.commands.Command``.

    Raises:
        ValueError: If a file cannot be used, or the run is no run of DNA.
    """
    check_seed("report.seed", args.seed)
    if args.out.suffix != ".html":
        raise ValueError(f"report.out must end in .html, got {args.out}; rename it")
    given = {
        f"--{name}": getattr(args, name) for name in ("reference", "samples", "motifs", "trace")
    }
    for path in (args.out, args.out.with_suffix(".json")):
        check_parent("report.out", path)
        check_apart("report.out", path, given)
    from genomics.baselines import MAX_ORDER

    if not 0 <= args.markov_order <= MAX_ORDER:
        raise ValueError(
            f"report.markov_order must be in 0..{MAX_ORDER}, got {args.markov_order}; 5 is usual"
        )
    from genomics.io import load_genome, read_motifs
    from genomics.report import read_samples

    samples = read_samples(args.samples)
    motifs = None if args.motifs is None else read_motifs(args.motifs)
    trace = None if args.trace is None else read_dna_trace(args.trace)
    from seqdiff.cli.terminal import choose_device

    device = choose_device(args.device)
    report(args, samples, load_genome(args.reference), motifs, trace, device)
    print(f"{args.out}: {len(samples):,} samples; the numbers: {args.out.with_suffix('.json')}")


def report(
    args: argparse.Namespace,
    samples: Rows,
    reference: Genome,
    motifs: list[MotifScores] | None,
    trace: Trace | None,
    device: torch.device,
) -> None:
    """Measure, draw and write both files.

    Args:
        args: Of the command.
        samples: What was generated.
        reference: Real sequence.
        motifs: Motifs to count, if any.
        trace: Of the sequence to show, if there is one.
        device: Where the network goes.

    Raises:
        ValueError: If the run is no run of DNA, or the reference is too short.
    """
    from genomics.report import build_sets, measure, read_curves
    from seqdiff.cli.drawing import open_run
    from seqdiff.cli.terminal import progress

    trained, sampler = open_run(args.directory, None, [], device)
    check_dna(trained)
    data = trained.datamodule
    sets = build_sets(samples, reference, data, args.markov_order, args.seed, args.reference)
    with progress() as bar:
        task = bar.add_task("measuring", total=None)
        measured = measure(sets, motifs, args.seed, lambda: bar.advance(task))
        curves = read_curves(args.directory / "metrics.csv", data, _split(trained))
        bar.advance(task)
    drawn = f"First sequence of {args.trace}."
    if trace is None:
        length = min(len(samples[0]), data.context_length or len(samples[0]))
        trace = draw_trace(trained, sampler, length, args.seed)
        drawn = f"One sequence of {length:,} bases, drawn for this page by {trace.sampler}."
    from genomics.report import draw_all

    figures = draw_all(measured, trace, 0, curves)
    _write(args, sets, measured, curves, figures, drawn)


def check_dna(trained: Run) -> None:
    """Refuse a run on anything but DNA.

    Raises:
        ValueError: If that is what it is.
    """
    from genomics.sequence import DNATokenizer

    if trained.tokenizer.fingerprint != DNATokenizer().fingerprint:
        raise ValueError(
            f"report.directory must be a run on DNA, got {trained.directory}, whose tokenizer is "
            f"{trained.tokenizer.fingerprint}; choose another run"
        )


def read_dna_trace(path: Path) -> Trace:
    """Read a trace of DNA.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no trace, or one of something else.
    """
    from genomics.sequence import BASES
    from seqdiff.trace import read_trace

    trace = read_trace(path)
    if trace.symbols != (*BASES, "N"):
        raise ValueError(
            f"report.trace must be of DNA, got {path} with {len(trace.symbols)} symbols; "
            "give one that was drawn from this run"
        )
    return trace


def draw_trace(trained: Run, sampler: Sampler, length: int, seed: int) -> Trace:
    """Draw one sequence and keep every step."""
    from genomics.sequence import BASES
    from seqdiff.cli.drawing import draw, fit_sampler
    from seqdiff.data import Blanks
    from seqdiff.samplers import Recorder, sampler_name

    fitted = fit_sampler(sampler, trained, stop=None, extrapolate=False)
    recorder = Recorder()
    blanks = Blanks(1, length, trained.process.unknown_id)
    draw(trained, fitted, blanks, seed=seed, batch_size=1, recorder=recorder)
    name = sampler_name(type(fitted))
    return recorder.trace(sampler=name, names=blanks.names, symbols=[*BASES, "N"])


def _split(trained: Run) -> Split:
    """Name the split to score Markov chains on: test, or what a run without one has."""
    for split in ("test", "valid"):
        try:
            trained.datamodule.dataset(split)
        except ValueError:
            continue
        return split
    return "train"


def _write(
    args: argparse.Namespace,
    sets: Sets,
    measured: Measured,
    curves: Curves,
    figures: dict[str, str],
    drawn: str,
) -> None:
    """Write both files or neither, after everything has been made."""
    import json

    from genomics.report import About, numbers, write_page

    lengths = [len(row) for row in sets.real]
    span = (
        f"{min(lengths):,}" if len(set(lengths)) == 1 else f"{min(lengths):,} to {max(lengths):,}"
    )
    facts = {
        "run": str(args.directory),
        "samples": f"{args.samples}: {len(lengths):,} of {span} bases",
        "reference": str(args.reference),
        "real windows": sets.origin,
        "training sequence": f"{len(sets.training):,} bases, one strand",
    }
    if args.motifs is not None:
        facts["motifs"] = str(args.motifs)
    about = About(facts, sets.held_out, args.markov_order)
    page = write_page(about, measured, curves, figures, drawn)
    text = json.dumps(numbers(about, args.seed, measured, curves), indent=1, allow_nan=False)
    with replacing(args.out) as new, replacing(args.out.with_suffix(".json")) as beside:
        new.write_text(page, encoding="utf-8")
        beside.write_text(text + "\n", encoding="utf-8")
