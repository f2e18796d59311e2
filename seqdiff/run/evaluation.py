"""The likelihood of a split, compared with baselines."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.special import stdtrit

from seqdiff.data import CountingTokenizer, SequenceDataModule, Split
from seqdiff.likelihood import Estimator, Likelihood, RowNats, check_budget, evaluate
from seqdiff.progress import progress
from seqdiff.run.directory import Trained
from seqdiff.types import Batch

_FITTED_ON: dict[Split, tuple[str, ...]] = {
    "train": ("the baselines were fitted on this split, so do not compare the model with them",),
    "valid": ("the order of the interpolated baseline was chosen on this split",),
}
_ROWS = 256
_GATES_CHOSEN = "the gates of the n-gram experts were chosen on this split"


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
class Conditions:
    """Which conditions of the rows of a split the model is given.

    Attributes:
        labels: Whether each row's label is given; ``None`` for data without labels.
        signals: Whether each row's signals are given; ``None`` for data without signals.
    """

    labels: bool | None = None
    signals: bool | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Remove the other conditions from a batch."""
        label = batch.label if self.labels else None
        return replace(batch, label=label, signal=batch.signal if self.signals else None)

    @property
    def of_each(self) -> str:
        """What is given of each row, in words; empty if nothing is."""
        given = [name for name in ("label", "signals") if self._given(name)]
        return f"each row's {' and '.join(given)}" if given else ""

    @property
    def hidden(self) -> str:
        """What the data has and is not given, in words; empty if there is nothing."""
        return " and ".join(n for n in ("labels", "signals") if self._given(n) is False)

    def _given(self, name: str) -> bool | None:
        return self.signals if name == "signals" else self.labels


def estimate(
    run: Trained,
    split: Split,
    *,
    estimator: Estimator,
    seed: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
    conditions: Conditions | None = None,
) -> Likelihood:
    """Estimate the likelihood of a split, with a progress bar.

    Args:
        run: The run.
        split: Split of its data.
        estimator: The estimator.
        seed: Seed of the draws.
        target_se: Standard error of a sequence to aim at, in nats.
        max_nfe: Maximum number of network evaluations for a sequence.
        conditions: Which conditions of each row are given; by default none.

    Raises:
        ValueError: If one pass over a row takes more than ``max_nfe``; see ``evaluate`` too.
    """
    total = len(run.dataset(split))
    if max_nfe is not None:
        _check_longest(run, split, estimator, max_nfe)
    loaded = run.datamodule.evaluation_loader(split)
    batches = map(Conditions() if conditions is None else conditions, loaded)
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
    run: Trained,
    split: Split,
    result: Likelihood,
    estimator: Estimator,
    conditions: Conditions | None = None,
    parts: Mapping[str, Likelihood] | None = None,
) -> Evaluation:
    """Compare a model with baselines.

    Args:
        run: The run.
        split: Split of its data.
        result: From ``estimate``.
        estimator: Its estimator.
        conditions: See ``estimate``.
        parts: Results of parts of the model, by name.

    Raises:
        ValueError: If a baseline counts other tokens than the model.
    """
    given = Conditions() if conditions is None else conditions
    name = f"model, {estimator.quantity}" + (f", given {given.of_each}" if given.of_each else "")
    baselines = run.datamodule.baselines(split)
    scored = {name: rows.counted for name, rows in baselines.items()}
    differences = {name: result.minus(rows) for name, rows in scored.items()}
    difference = None
    if scored:
        best = min(scored, key=lambda name: scored[name].nats_per_token)
        bits, error = differences[best].bits_per_token, differences[best].bits_per_token_error
        difference = Difference(best, bits, _finite(error))
    return Evaluation(
        str(run.directory),
        run.datamodule,
        split,
        _row(
            name,
            result,
            estimator_error=result.bits_per_token_estimator_error,
            evaluations=float(result.nfe.mean()),
        ),
        [
            _row(part, rows, evaluations=float(rows.nfe.mean()))
            for part, rows in (parts or {}).items()
        ],
        [_row(name, rows) for name, rows in scored.items()],
        difference,
        result.nats_per_token_degrees,
        estimator,
        given,
        _count_units(run, split),
    )


def _count_units(run: Trained, split: Split) -> tuple[str, float] | None:
    """Name the units of the tokens of a split, and count them for a counted token."""
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, CountingTokenizer):
        return None
    dataset, units, tokens = run.dataset(split), 0, 0
    for first in range(0, len(dataset), _ROWS):
        rows, counted = dataset.rows(np.arange(first, min(first + _ROWS, len(dataset))))
        tokens += int(counted.sum())
        units += sum(map(tokenizer.num_units, map(np.compress, counted, rows)))
    return tokenizer.unit, units / tokens


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


def counted(unit: str, conditions: Conditions) -> str:
    """Describe which tokens count, and what they are conditioned on.

    Args:
        unit: Name of a token, such as ``base``.
        conditions: See ``estimate``.
    """
    hidden = f", {conditions.hidden} are not" if conditions.hidden else ""
    if conditions.of_each:
        given = f"unknown {unit}s, context and {conditions.of_each} are given"
    else:
        given = f"unknown {unit}s and context are given"
    return f"known {unit}s; {given}{hidden}"


@dataclass(frozen=True)
class Evaluation:
    """The likelihood of a split beside baselines on the same sequences; prints as a table.

    Attributes:
        run: Name of the run.
        data: Data of the run.
        split: The split.
        model: The model's line.
        parts: The lines of parts of the model: without its experts, and they without the network.
        baselines: The lines of the baselines.
        difference: The model minus the best baseline; ``None`` without baselines.
        degrees: Degrees of freedom of the errors over the choice of sequences.
        estimator: The estimator of the model's line.
        conditions: See ``estimate``.
        units: Name of the units that tokens stand for, and their mean number in a counted token,
            see ``CountingTokenizer``; ``None`` for other tokenizers.
    """

    run: str
    data: SequenceDataModule
    split: Split
    model: Row
    parts: list[Row]
    baselines: list[Row]
    difference: Difference | None
    degrees: int
    estimator: Estimator
    conditions: Conditions
    units: tuple[str, float] | None = None

    @property
    def rows(self) -> list[Row]:
        """The model's line, then those of its parts and of the baselines."""
        return [self.model, *self.parts, *self.baselines]

    @property
    def table(self) -> Table:
        """The table for a terminal."""
        unit, model, estimator = self.data.token_name, self.model, self.estimator
        notes = [
            "the model's SE includes the error of the estimator, "
            f"{model.bits_per_token_estimator_error:.4f}",
            *_FITTED_ON.get(self.split, ()),
            *([_GATES_CHOSEN] if self.parts and self.split == "valid" else []),
            f"estimator {estimator.name}, {model.evaluations:,.4g} evaluations per sequence",
            f"convention {estimator.convention}; counted: {counted(unit, self.conditions)}",
            *self.data.counting,
        ]
        if self.degrees >= 1:
            groups, width = self.degrees + 1, float(stdtrit(self.degrees, 0.975))
            note = (
                f"SE is computed from {groups} groups of neighbours; 95% interval: ± {width:.2f} SE"
            )
            notes.insert(0, note)
        notes.insert(0, "lower is better; ± SE is the standard error over sequences")
        size = f"{model.num_sequences:,} sequences, {model.num_tokens:,} {unit}s"
        title = f"{self.run}, {self.split} split: {size}"
        table = Table(title=title, caption="\n".join(notes))
        table.add_column("")
        per_unit = () if self.units is None else (f"bits/{self.units[0]}",)
        for heading in (f"bits/{unit}", "± SE", "perplexity", "± SE", *per_unit):
            table.add_column(heading, justify="right")
        for row in self.rows:
            bits, perplexity = _spell(row.bits_per_token_error), _spell(row.perplexity_error)
            numbers = [f"{row.bits_per_token:.4f}", bits, f"{row.perplexity:.4f}", perplexity]
            if self.units is not None:
                numbers.append(f"{row.bits_per_token / self.units[1]:.4f}")
            table.add_row(row.name, *numbers)
        if self.difference is not None:
            table.add_section()
            gap = self.difference
            error = _spell(gap.bits_per_token_error)
            table.add_row(f"model - {gap.baseline}", f"{gap.bits_per_token:+.4f}", error)
        return table

    @property
    def verdict(self) -> str | None:
        """How the model compares with the best baseline, in a sentence.

        The two are called different if a 95% interval of their difference excludes 0. ``None``
        without baselines, and on the training split, on which the baselines were fitted.
        """
        if self.difference is None or self.split == "train":
            return None
        gap, unit = self.difference, self.data.token_name
        bits, error = gap.bits_per_token, gap.bits_per_token_error
        by = f"{abs(bits):.4f} bits/{unit}"
        if error is None or self.degrees < 1:
            side = "below" if bits < 0 else "above"
            return f"The model is {by} {side} {gap.baseline}; one sequence has no standard error."
        by = f"{abs(bits):.4f} ± {error:.4f} bits/{unit}"
        if abs(bits) <= float(stdtrit(self.degrees, 0.975)) * error:
            return (
                f"These sequences do not tell the model from {gap.baseline}: the difference is "
                f"{bits:+.4f} ± {error:.4f} bits/{unit}."
            )
        if bits < 0:
            return f"The model is better than every baseline: {by} below the best, {gap.baseline}."
        return (
            f"The model is worse than a baseline: {by} above {gap.baseline}. Train it longer or on "
            "more data."
        )

    def content(self) -> dict[str, object]:
        """Return the content of a JSON file."""
        return {
            "run": self.run,
            "split": self.split,
            "estimator": self.estimator.name,
            "convention": self.estimator.convention,
            "counted": counted(self.data.token_name, self.conditions),
            "notes": self.data.counting,
            "rows": [vars(row) for row in self.rows],
            "difference": None if self.difference is None else vars(self.difference),
            "error_degrees": self.degrees,
            "verdict": self.verdict,
            **dict(zip(("unit", "units_per_token"), self.units or (), strict=False)),
        }

    def __repr__(self) -> str:
        """The table and the verdict, as on a terminal."""
        console = Console(width=100, file=io.StringIO(), force_jupyter=False, force_terminal=False)
        with console.capture() as capture:
            console.print(self.table)
        return "\n".join([capture.get().rstrip(), *([self.verdict] if self.verdict else [])])


def _spell(error: float | None) -> str:
    return "" if error is None else f"{error:.4f}"
