"""What ``seqdiff variance`` says of the intervals it has compared."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table

from seqdiff.training.clipping import Interval, Variances


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
    table = Table(title=f"{title}: {report.title}", caption="\n".join(_notes(report)))
    widths = sorted({round(omega - beta, 2) for beta, omega in found.intervals})
    table.add_column("beta", justify="right")
    for width in widths:
        table.add_column(f"width {width:g}", justify="right")
    cells = {
        (interval.beta, round(interval.omega - interval.beta, 2)): _cell(found, i)
        for i, interval in enumerate(found.intervals)
    }
    for beta in sorted({interval.beta for interval in found.intervals}):
        table.add_row(f"{beta:g}", *(cells.get((beta, width), "") for width in widths))
    return table


def _cell(found: Variances, number: int) -> str:
    errors = found.standard_errors
    error = "" if errors is None else f" ± {errors[number]:.1g}"
    text = f"{found.values[number]:.3g}{error}"
    return f"[bold]{text} *[/bold]" if number == found.least else text


def _notes(report: Report) -> list[str]:
    found = report.found
    least = found.intervals[found.least]
    ratio = found.values[found.least] / found.values[-1]
    notes = [
        f"{report.unit}; masked shares are uniform on [beta, beta + width]",
        f"* least: {least}, {ratio:.3g} times that of the whole interval",
        "with beta 0 the true variance is infinite: such numbers are of these batches alone",
    ]
    if found.standard_errors is not None:
        notes.append("± SE is over batches, which are the same for all intervals, draws included")
    if report.in_use is None:
        return [*notes, "the run was not trained in an interval: it masked exact numbers of tokens"]
    return [*notes, f"the run trained in {report.in_use} from step {report.since} on"]
