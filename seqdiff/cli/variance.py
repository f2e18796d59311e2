"""What ``seqdiff variance`` says of the intervals it has compared."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from seqdiff.cli.terminal import add_device
from seqdiff.files import check_apart, check_parent, replacing, write_bytes
from seqdiff.training import Interval, Variances

if TYPE_CHECKING:
    from seqdiff.run import Run
    from seqdiff.training import ClippedEstimates, Interval, Variances


@dataclass(frozen=True)
class Report:
    """Variances and what they are of.

    Attributes:
        what: ``loss`` or ``gradient``.
        found: The variances.
        in_use: The interval that the run trained in at last; ``None`` if in none.
        since: From which step on.
        block_size: Tokens of a block.
        batch_size: Rows of a batch.
    """

    what: str
    found: Variances
    in_use: Interval | None
    since: int
    block_size: int
    batch_size: int

    @property
    def unit(self) -> str:
        """Of the variances."""
        return "nats² per token²" if self.what == "loss" else "squared norm, nats² per token²"

    @property
    def title(self) -> str:
        """What was measured on how much."""
        batches = f"{self.found.num_batches} batches of {self.batch_size} rows"
        return f"variance of the training {self.what}, blocks of {self.block_size}, {batches}"

    def content(self) -> dict[str, object]:
        """Give what a JSON file says of it."""
        errors = self.found.standard_errors
        rows = [
            {
                **interval._asdict(),
                "variance": float(self.found.values[i]),
                "standard_error": None if errors is None else float(errors[i]),
            }
            for i, interval in enumerate(self.found.intervals)
        ]
        return {
            "of": self.what,
            "unit": self.unit,
            "block_size": self.block_size,
            "batches": self.found.num_batches,
            "batch_size": self.batch_size,
            "least": self.found.intervals[self.found.least]._asdict(),
            "in_use": None if self.in_use is None else self.in_use._asdict(),
            "intervals": rows,
        }


def build_grid(report: Report, title: str) -> Table:
    """Lay the variances out for a terminal: a row for each beta, a column for each width.

    Args:
        report: Of a run.
        title: Above the table.
    """
    found = report.found
    above, below = Text(f"{title}\n{report.title}"), Text("\n".join(_notes(report)))
    table = Table(title=above, caption=below, box=SIMPLE_HEAD, pad_edge=False)
    widths = sorted({round(omega - beta, 2) for beta, omega in found.intervals})
    table.add_column("beta", justify="right", no_wrap=True)
    for width in widths:
        table.add_column(f"width {width:g}", justify="right", overflow="fold")
    scale = _scale(found)
    cells = {
        (interval.beta, round(interval.omega - interval.beta, 2)): _cell(found, i, scale)
        for i, interval in enumerate(found.intervals)
    }
    for beta in sorted({interval.beta for interval in found.intervals}):
        table.add_row(f"{beta:g}", *(cells.get((beta, width), "") for width in widths))
    return table


def _scale(found: Variances) -> int:
    """The power of ten of the least, so that cells are short."""
    least = float(found.values[found.least])
    return math.floor(math.log10(least)) if least > 0 else 0


def _cell(found: Variances, number: int, scale: int) -> str:
    errors, unit = found.standard_errors, 10.0**scale
    error = "" if errors is None else f" ±{_plain(errors[number] / unit, 1)}"
    text = f"{_plain(found.values[number] / unit, 3)}{error}"
    return f"[bold]{text}*[/bold]" if number == found.least else text


def _plain(number: float, digits: int) -> str:
    """Round to significant digits, without an exponent where there is room."""
    return f"{float(f'{number:.{digits}g}'):g}"


def _notes(report: Report) -> list[str]:
    found = report.found
    least = found.intervals[found.least]
    ratio = found.values[found.least] / found.values[-1]
    notes = [
        f"in 1e{_scale(found)} {report.unit}",
        "masked shares are uniform on [beta, beta + width]",
        f"* least: {least}, {ratio:.3g} times that of the whole interval",
        "with beta 0 the true variance is infinite: these are of the batches alone",
    ]
    if found.standard_errors is not None:
        notes.append("± SE is over batches, the same for all intervals, draws included")
    if report.in_use is None:
        return [*notes, "the run was trained in none: it masked exact numbers of tokens"]
    return [*notes, f"the run trained in {report.in_use} from step {report.since} on"]


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
