"""Estimate a likelihood and lay it out beside baselines, for ``evaluate`` and other subcommands."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from rich.table import Table

from seqdiff.data.datamodule import SequenceDataModule, Split
from seqdiff.likelihood import Estimator, Likelihood, check_budget, evaluate
from seqdiff.run import Run
from seqdiff.subcommands.terminal import progress
from seqdiff.types import Batch


@dataclass(frozen=True)
class Row:
    """One line of the table; errors and mean evaluations a sequence exist only for the model."""

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


def estimate(
    run: Run,
    split: Split,
    *,
    estimator: Estimator,
    seed: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
    labels: bool | None = None,
) -> Likelihood:
    """Estimate the likelihood of a split under a progress bar.

    Args:
        run: The run.
        split: Which split of its data.
        estimator: How.
        seed: Of the draws.
        target_se: Standard error, in nats, at which a sequence is done.
        max_nfe: Most network evaluations of a sequence.
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
    run: Run,
    batches: Iterable[Batch],
    total: int,
    title: str,
    *,
    estimator: Estimator,
    seed: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
) -> Likelihood:
    """Estimate the likelihood of any rows under a progress bar.

    Args:
        run: The run.
        batches: The rows.
        total: How many there are.
        title: Of the bar.
        estimator: How.
        seed: Of the draws.
        target_se: Standard error, in nats, at which a sequence is done.
        max_nfe: Most network evaluations of a sequence.
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


def _check_longest(run: Run, split: Split, estimator: Estimator, max_nfe: int) -> None:
    """Read all rows once, to refuse before the first network call what a later one would."""
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
    baselines: dict[str, float],
    labels: bool | None = None,
) -> list[Row]:
    """Put the model's row above one for each baseline.

    Args:
        result: From ``estimate``.
        estimator: What estimated it.
        baselines: Name and nats per token of each, on the same split.
        labels: See ``estimate``.
    """
    name = f"model, {estimator.quantity}" + (", given each row's label" if labels else "")
    return [_model_row(name, result), *(_baseline_row(k, v, result) for k, v in baselines.items())]


def _model_row(name: str, result: Likelihood) -> Row:
    return Row(
        name=name,
        bits_per_token=result.bits_per_token,
        bits_per_token_error=result.bits_per_token_error,
        bits_per_token_estimator_error=result.bits_per_token_estimator_error,
        nats_per_token=result.nats_per_token,
        perplexity=result.perplexity,
        perplexity_error=result.perplexity_error,
        num_sequences=len(result.nats),
        num_tokens=int(result.num_tokens.sum()),
        evaluations=float(result.nfe.mean()),
    )


def _baseline_row(name: str, nats: float, result: Likelihood) -> Row:
    return Row(
        name=name,
        bits_per_token=nats / math.log(2),
        bits_per_token_error=None,
        bits_per_token_estimator_error=None,
        nats_per_token=nats,
        perplexity=math.exp(nats),
        perplexity_error=None,
        num_sequences=len(result.nats),
        num_tokens=int(result.num_tokens.sum()),
        evaluations=None,
    )


def counted(unit: str, labels: bool | None = None) -> str:
    """Say which tokens an estimate is over, and what it is given.

    Args:
        unit: What a token is called, e.g. ``base``.
        labels: See ``estimate``.
    """
    if labels:
        return f"known {unit}s; unknown ones, context and each row's label are given"
    hidden = "" if labels is None else ", labels are not"
    return f"known {unit}s; unknown ones and context are given{hidden}"


def build_table(
    rows: list[Row],
    estimator: Estimator,
    title: str,
    data: SequenceDataModule,
    labels: bool | None = None,
) -> Table:
    """Lay the rows out for a terminal.

    Args:
        rows: From ``compare``.
        estimator: What estimated the model's row.
        title: Above the table.
        data: Of the run: what a token is called and how rows are cut.
        labels: See ``estimate``.
    """
    unit = data.token_name
    model = rows[0]
    title = f"{title}: {model.num_sequences:,} sequences, {model.num_tokens:,} {unit}s"
    notes = (
        "lower is better; ± SE is over the choice of sequences",
        f"and the estimator's draws, which alone make {model.bits_per_token_estimator_error:.4f}",
        f"estimator {estimator.name}, {model.evaluations:,.4g} evaluations a sequence",
        f"convention {estimator.convention}; counted: {counted(unit, labels)}",
        *data.counting,
    )
    table = Table(title=title, caption="\n".join(notes))
    table.add_column("")
    for heading in (f"bits/{unit}", "± SE", "perplexity", "± SE"):
        table.add_column(heading, justify="right")
    for row in rows:
        errors = (row.bits_per_token_error, row.perplexity_error)
        bits, perplexity = ("" if error is None else f"{error:.4f}" for error in errors)
        numbers = (f"{row.bits_per_token:.4f}", bits, f"{row.perplexity:.4f}", perplexity)
        table.add_row(row.name, *numbers)
    return table
