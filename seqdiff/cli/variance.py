"""``seqdiff variance``."""

from __future__ import annotations

import argparse
import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.options import add_device
from seqdiff.files import check_apart, check_parent, replacing, write_bytes

if TYPE_CHECKING:
    from seqdiff.run import Run
    from seqdiff.training import ClippedEstimates, Interval, Variances


help = "compare clipped intervals of masked shares by the variance of what training estimates"

_FORMATS = (".pdf", ".png", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run of block diffusion")
    parser.add_argument(
        "--split", choices=("train", "valid", "test"), default="valid", help="default: valid"
    )
    parser.add_argument(
        "--batches",
        type=int,
        default=64,
        metavar="N",
        help="as many as training reads at a time on one device, 36 network passes each; "
        "default: 64",
    )
    parser.add_argument(
        "--gradient",
        action="store_true",
        help="the variance of the gradient in place of the loss's; the passes are then both ways",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="draw a heat map: .png, .svg or .pdf"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    _check(args)
    from rich.console import Console

    from seqdiff.cli.terminal import choose_device
    from seqdiff.cli.variance_table import Report, build_grid
    from seqdiff.run import load_run

    trained = load_run(args.directory, device=choose_device(args.device))
    estimates = _estimates(trained)
    measure = _gradient if args.gradient else _loss
    found = measure(trained, estimates, args)
    what = "gradient" if args.gradient else "loss"
    in_use, since = _in_use(trained)
    report = Report(
        what, found, in_use, since, trained.denoiser.block_size, trained.datamodule.batch_size
    )
    Console().print(build_grid(report, f"{args.directory}, {args.split} split"))
    if args.out is not None:
        from seqdiff.plots import draw_variances, write_figure

        with replacing(args.out) as temporary:
            write_figure(temporary, draw_variances(found, report.title, report.unit, in_use))
    if args.json is not None:
        content = {"run": str(args.directory), "split": args.split, **report.content()}
        write_bytes(args.json, (json.dumps(content, indent=2) + "\n").encode())


def _check(args: argparse.Namespace) -> None:
    """Refuse what can be refused before a slow import.

    Raises:
        ValueError: If there are too few batches, or a file has the wrong name.
    """
    if args.batches < 2:
        raise ValueError(f"variance.batches must be at least 2, got {args.batches}; raise it")
    if args.out is not None:
        if args.out.suffix not in _FORMATS:
            raise ValueError(
                f"variance.out must end in one of {', '.join(_FORMATS)}, got {args.out}; rename it"
            )
        check_parent("variance.out", args.out)
        check_apart("variance.out", args.out, {"--json": args.json})
    if args.json is not None:
        check_parent("variance.json", args.json)


def _estimates(run: Run) -> ClippedEstimates:
    """Find out what the run's training estimates.

    Raises:
        ValueError: If it is no run of block diffusion.
    """
    from seqdiff.objectives import BlockNELBO
    from seqdiff.rng import CounterNoise
    from seqdiff.training import ClippedEstimates

    objective = run.config.objective
    if run.denoiser.context != "block":
        raise ValueError(
            f"variance.run must be of block diffusion, got {run.directory} of "
            f"{type(objective).__name__}; train one with --preset bd3lm"
        )
    if not isinstance(objective, BlockNELBO):
        objective = BlockNELBO()
    noise, dropout = CounterNoise(run.config.seed), run.config.label_dropout
    return ClippedEstimates(objective, run.denoiser, noise, dropout)


def _in_use(run: Run) -> tuple[Interval | None, int]:
    """The interval that the run trained in at last, if in any, and from which step on."""
    from seqdiff.objectives import BlockNELBO
    from seqdiff.training import BETA, METRICS_NAME, OMEGA, Interval, last_logged

    objective = run.config.objective
    if not isinstance(objective, BlockNELBO):
        return None, 0
    beta, omega = (last_logged(run.directory / METRICS_NAME, name) for name in (BETA, OMEGA))
    if objective.search_batches is None or beta is None or omega is None:
        return Interval(objective.beta, objective.omega), 0
    return Interval(beta[1], omega[1]), beta[0]


def _loss(run: Run, estimates: ClippedEstimates, args: argparse.Namespace) -> Variances:
    import torch

    from seqdiff.cli.terminal import progress

    device = next(run.denoiser.parameters()).device
    rows = []
    with progress() as bar:
        task = bar.add_task("batches", total=args.batches)
        for batch in islice(run.datamodule.training_loader(args.split), args.batches):
            rows.append(estimates.totals(batch.to(device)))
            bar.advance(task)
    return estimates.variances(torch.stack(rows))


def _gradient(run: Run, estimates: ClippedEstimates, args: argparse.Namespace) -> Variances:
    import numpy as np

    from seqdiff.cli.terminal import progress
    from seqdiff.training import Variances

    device = next(run.denoiser.parameters()).device
    loader = run.datamodule.training_loader(args.split)
    batches = [batch.to(device) for batch in islice(loader, args.batches)]
    values = []
    with progress() as bar:
        task = bar.add_task("intervals", total=len(estimates.intervals))
        for value in estimates.gradient_variances(batches):
            values.append(value)
            bar.advance(task)
    return Variances(estimates.intervals, np.array(values), None, args.batches)
