"""The likelihood of a split, compared with baselines."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit

from seqdiff.data import SequenceDataModule, Split
from seqdiff.likelihood import Estimator, Likelihood, RowNats, check_budget, evaluate
from seqdiff.progress import progress
from seqdiff.run.directory import Trained
from seqdiff.types import Batch

_FITTED_ON: dict[Split, tuple[str, ...]] = {
    "train": ("the baselines were fitted on this split, so do not compare the model with them",),
    "valid": ("the order of the interpolated baseline was chosen on this split",),
}


@dataclass(frozen=True)
class Row:
    """One line of the table; errors are ``None`` for a single sequence."""

    name: str
    bits_per_token: float
    bits_per_token_error: float | None
    bits_per_token_estimator_error: float | None
    nats_per_token: float
    perplexity: float
    perplexity_error: float | None
    num_sequences: int
    num_tokens: int
    evaluations: float | None


@dataclass(frozen=True)
class Difference:
    """The model's line minus that of the best baseline, sequence by sequence."""

    baseline: str
    bits_per_token: float
    bits_per_token_error: float | None


@dataclass(frozen=True)
class Comparison:
    """A model beside baselines on the same sequences.

    Attributes:
        model: The model's line.
        baselines: The lines of the baselines.
        difference: The model minus the best baseline; ``None`` without baselines.
        degrees: Degrees of freedom of the errors over the choice of sequences.
        estimator: The estimator of the model's line.
        labels: See ``estimate``.
    """

    model: Row
    baselines: list[Row]
    difference: Difference | None
    degrees: int
    estimator: Estimator
    labels: bool | None


def estimate(
    run: Trained,
    split: Split,
    *,
    estimator: Estimator,
    seed: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
    labels: bool | None = None,
) -> Likelihood:
    """Estimate the likelihood of a split, with a progress bar.

    Args:
        run: The run.
        split: Split of its data.
        estimator: The estimator.
        seed: Seed of the draws.
        target_se: Standard error of a sequence to aim at, in nats.
        max_nfe: Maximum number of network evaluations for a sequence.
        labels: Whether each row's label is given; ``None`` for data without any.

    Raises:
        ValueError: If one pass over a row takes more than ``max_nfe``; see ``evaluate`` too.
    """
    if max_nfe is not None:
        _check_longest(run, split, estimator, max_nfe)
    total = len(run.datamodule.dataset(split))
    loaded = run.datamodule.evaluation_loader(split)
    batches = (batch if labels else replace(batch, label=None) for batch in loaded)
    budget = {"target_se": target_se, "max_nfe": max_nfe}
    return estimate_batches(
        run, batches, total, "evaluating", estimator=estimator, seed=seed, **budget
    )


def estimate_batches(
    run: Trained,
    batches: Iterable[Batch],
    total: int,
    title: str,
    *,
    estimator: Estimator,
    seed: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
    rows_per_call: int | None = None,
) -> Likelihood:
    """Estimate the likelihood of any rows, with a progress bar.

    Args:
        run: The run.
        batches: The rows.
        total: Number of rows.
        title: Title of the bar.
        estimator: The estimator.
        seed: Seed of the draws.
        target_se: Standard error of a sequence to aim at, in nats.
        max_nfe: Maximum number of network evaluations for a sequence.
        rows_per_call: Rows per network call; by default those of a batch.
    """
    device = next(run.denoiser.parameters()).device
    with progress() as bar:
        task = bar.add_task(title, total=total)
        return evaluate(
            run.denoiser,
            (batch.to(device) for batch in batches),
            estimator=estimator,
            target_se=target_se,
            max_nfe=max_nfe,
            rows_per_call=rows_per_call,
            seed=seed,
            progress=lambda done: bar.update(task, completed=done),
        )


def _check_longest(run: Trained, split: Split, estimator: Estimator, max_nfe: int) -> None:
    """Read all rows, to raise the error of a too small budget before the first network call."""
    rows = run.datamodule.evaluation_loader(split)
    counts = torch.cat([batch.loss_mask.sum(dim=-1) for batch in rows])
    longest = int(counts.argmax())
    tokens = max(1, int(counts[longest]))
    try:
        check_budget(estimator, num_tokens=tokens, target_se=None, max_nfe=max_nfe)
    except ValueError as error:
        raise ValueError(f"row {longest} of the {split} split: {error}") from None


def compare(
    result: Likelihood,
    estimator: Estimator,
    baselines: dict[str, RowNats],
    labels: bool | None = None,
) -> Comparison:
    """Compare a model with baselines.

    Args:
        result: From ``estimate``.
        estimator: Its estimator.
        baselines: Likelihoods of the same split under baselines, by name.
        labels: See ``estimate``.

    Raises:
        ValueError: If a baseline counts other tokens than the model.
    """
    name = f"model, {estimator.quantity}" + (", given each row's label" if labels else "")
    scored = {name: rows.counted for name, rows in baselines.items()}
    differences = {name: result.minus(rows) for name, rows in scored.items()}
    model = _row(
        name,
        result,
        estimator_error=result.bits_per_token_estimator_error,
        evaluations=float(result.nfe.mean()),
    )
    difference = None
    if scored:
        best = min(scored, key=lambda name: scored[name].nats_per_token)
        bits, error = differences[best].bits_per_token, differences[best].bits_per_token_error
        difference = Difference(best, bits, _finite(error))
    lines = [_row(name, rows) for name, rows in scored.items()]
    degrees = result.nats_per_token_degrees
    return Comparison(model, lines, difference, degrees, estimator, labels)


def _row(
    name: str,
    rows: RowNats,
    *,
    estimator_error: float | None = None,
    evaluations: float | None = None,
) -> Row:
    return Row(
        name=name,
        bits_per_token=rows.bits_per_token,
        bits_per_token_error=_finite(rows.bits_per_token_error),
        bits_per_token_estimator_error=estimator_error,
        nats_per_token=rows.nats_per_token,
        perplexity=rows.perplexity,
        perplexity_error=_finite(rows.perplexity_error),
        num_sequences=len(rows.nats),
        num_tokens=int(rows.num_tokens.sum()),
        evaluations=evaluations,
    )


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def counted(unit: str, labels: bool | None = None) -> str:
    """Describe which tokens count, and what they are conditioned on.

    Args:
        unit: Name of a token, such as ``base``.
        labels: See ``estimate``.
    """
    if labels:
        return f"known {unit}s; unknown {unit}s, context and each row's label are given"
    hidden = "" if labels is None else ", labels are not"
    return f"known {unit}s; unknown {unit}s and context are given{hidden}"


def build_table(found: Comparison, title: str, data: SequenceDataModule, split: Split) -> Table:
    """Build the table of a comparison for a terminal.

    Args:
        found: From ``compare``.
        title: Title above the table.
        data: Data of the run.
        split: The split.
    """
    unit, model, estimator = data.token_name, found.model, found.estimator
    title = f"{title}: {model.num_sequences:,} sequences, {model.num_tokens:,} {unit}s"
    notes = (
        "lower is better; ± SE is the standard error over sequences",
        *_interval_note(found.degrees),
        "the model's SE includes the error of the estimator, "
        f"{model.bits_per_token_estimator_error:.4f}",
        *_FITTED_ON.get(split, ()),
        f"estimator {estimator.name}, {model.evaluations:,.4g} evaluations per sequence",
        f"convention {estimator.convention}; counted: {counted(unit, found.labels)}",
        *data.counting,
    )
    table = Table(title=title, caption="\n".join(notes))
    table.add_column("")
    for heading in (f"bits/{unit}", "± SE", "perplexity", "± SE"):
        table.add_column(heading, justify="right")
    for row in (model, *found.baselines):
        bits, perplexity = _spell(row.bits_per_token_error), _spell(row.perplexity_error)
        numbers = (f"{row.bits_per_token:.4f}", bits, f"{row.perplexity:.4f}", perplexity)
        table.add_row(row.name, *numbers)
    if found.difference is not None:
        table.add_section()
        gap = found.difference
        error = _spell(gap.bits_per_token_error)
        table.add_row(f"model - {gap.baseline}", f"{gap.bits_per_token:+.4f}", error)
    return table


@dataclass(frozen=True)
class Evaluation:
    """The likelihood of a split beside baselines; prints as a table.

    Attributes:
        comparison: The numbers.
        run: Name of the run.
        data: Data of the run.
        split: The split.
    """

    comparison: Comparison
    run: str
    data: SequenceDataModule
    split: Split

    @property
    def rows(self) -> list[Row]:
        """The model's line, then those of the baselines."""
        return [self.comparison.model, *self.comparison.baselines]

    @property
    def table(self) -> Table:
        """The table for a terminal."""
        title = f"{self.run}, {self.split} split"
        return build_table(self.comparison, title, self.data, self.split)

    def content(self) -> dict[str, object]:
        """Return the content of a JSON file."""
        found = self.comparison
        return {
            "run": self.run,
            "split": self.split,
            "estimator": found.estimator.name,
            "convention": found.estimator.convention,
            "counted": counted(self.data.token_name, found.labels),
            "notes": self.data.counting,
            "rows": [vars(row) for row in self.rows],
            "difference": None if found.difference is None else vars(found.difference),
            "error_degrees": found.degrees,
        }

    def __repr__(self) -> str:
        """The table, as on a terminal."""
        console = Console(width=100, file=io.StringIO(), force_jupyter=False, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table)
        return capture.get().rstrip()


def _interval_note(degrees: int) -> tuple[str, ...]:
    """Return a note on the width of a 95% interval."""
    if degrees < 1:
        return ()
    width = float(stdtrit(degrees, 0.975))
    return (
        f"SE is computed from {degrees + 1} groups of neighbours; 95% interval: ± {width:.2f} SE",
    )


def _spell(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"
