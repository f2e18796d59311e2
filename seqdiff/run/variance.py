"""The variance of block diffusion's training loss under each interval of mask fractions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from seqdiff.data import Split
from seqdiff.objectives import BlockNELBO
from seqdiff.progress import progress
from seqdiff.rng import CounterNoise
from seqdiff.run.directory import Trained
from seqdiff.training import (
    BETA,
    METRICS_NAME,
    OMEGA,
    ClippedEstimates,
    Interval,
    Variances,
    last_logged,
)


@dataclass(frozen=True)
class Report:
    """Variances of the training loss or its gradient.

    Attributes:
        what: ``loss`` or ``gradient``.
        found: The variances.
        in_use: The last interval of training; ``None`` if the run was trained without intervals.
        since: First training step with this interval.
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
        """Unit of the variances."""
        return "nats² per token²" if self.what == "loss" else "squared norm, nats² per token²"

    @property
    def title(self) -> str:
        """Title of the table."""
        batches = f"{self.found.num_batches} batches of {self.batch_size} rows"
        return f"variance of the training {self.what}, blocks of {self.block_size}, {batches}"

    def content(self) -> dict[str, object]:
        """Return the content of a JSON file."""
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
    """Build a table for a terminal, with a row for each beta and a column for each width.

    Args:
        report: Variances of a run.
        title: Title above the table.
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
    """Return the power of ten of the least variance, the unit of the cells."""
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
        f"unit: 1e{_scale(found)} {report.unit}",
        "masked fractions are uniform on [beta, beta + width]",
        f"* smallest: {least}, {ratio:.3g} times the variance of the whole interval",
        "for beta 0 the true variance is infinite; the table shows the variance of these batches",
    ]
    if found.standard_errors is not None:
        notes.append(
            "± SE is the standard error over batches and masks; all intervals use the same batches"
        )
    if report.in_use is None:
        return [*notes, "the run used no interval in training, but exact numbers of masks"]
    return [*notes, f"the run used {report.in_use} in training from step {report.since} on"]


def measure_variance(
    run: Trained, split: Split = "valid", *, batches: int = 64, gradient: bool = False
) -> Report:
    """Measure the variance of the training loss under each of 36 intervals of mask fractions.

    Args:
        run: A run of block diffusion.
        split: Split of the batches.
        batches: Number of batches, each as large as in training on one device; at least 2.
        gradient: Measure the variance of the gradient instead.

    Raises:
        ValueError: If it is not a run of block diffusion.
    """
    estimates = _estimates(run)
    run.dataset(split)
    found = (_gradient if gradient else _loss)(run, estimates, split, batches)
    in_use, since = _in_use(run)
    what = "gradient" if gradient else "loss"
    size, rows = run.denoiser.block_size, run.datamodule.batch_size
    return Report(what, found, in_use, since, size, rows)


def _estimates(run: Trained) -> ClippedEstimates:
    """Build the loss of training for any interval.

    Raises:
        ValueError: If it is not a run of block diffusion.
    """
    objective = run.config.objective
    if run.denoiser.context != "block":
        raise ValueError(
            f"variance.run must be of block diffusion, got {run.directory} of "
            f"{type(objective).__name__}; train one with --preset bd3lm"
        )
    if not isinstance(objective, BlockNELBO):
        objective = BlockNELBO()
    noise, dropout = CounterNoise(run.config.seed), run.config.dropout
    return ClippedEstimates(objective, run.denoiser, noise, dropout)


def _in_use(run: Trained) -> tuple[Interval | None, int]:
    """Return the last interval of training, if any, and its first step."""
    objective = run.config.objective
    if not isinstance(objective, BlockNELBO):
        return None, 0
    beta, omega = (last_logged(run.directory / METRICS_NAME, name) for name in (BETA, OMEGA))
    if objective.search_batches is None or beta is None or omega is None:
        return Interval(objective.beta, objective.omega), 0
    return Interval(beta[1], omega[1]), beta[0]


def _loss(run: Trained, estimates: ClippedEstimates, split: Split, num_batches: int) -> Variances:
    device = next(run.denoiser.parameters()).device
    rows = []
    with progress() as bar:
        task = bar.add_task("batches", total=num_batches)
        for batch in islice(run.datamodule.training_loader(split), num_batches):
            rows.append(estimates.totals(batch.to(device)))
            bar.advance(task)
    return estimates.variances(torch.stack(rows))


def _gradient(
    run: Trained, estimates: ClippedEstimates, split: Split, num_batches: int
) -> Variances:
    device = next(run.denoiser.parameters()).device
    loader = run.datamodule.training_loader(split)
    batches = [batch.to(device) for batch in islice(loader, num_batches)]
    values = []
    with progress() as bar:
        task = bar.add_task("intervals", total=len(estimates.intervals))
        for value in estimates.gradient_variances(batches):
            values.append(value)
            bar.advance(task)
    return Variances(estimates.intervals, np.array(values), None, num_batches)
