"""Estimate a likelihood and lay it out beside baselines, for ``evaluate`` and other subcommands."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from seqdiff.data.datamodule import Split
from seqdiff.likelihood import Estimator, Likelihood, evaluate
from seqdiff.run import Run
from seqdiff.subcommands.terminal import progress
from seqdiff.types import Batch


@dataclass(frozen=True)
class Row:
    """One line of the table; errors and mean evaluations a sequence exist only for the model."""

    name: str
    bits_per_token: float
    bits_per_token_error: float | None
    nats_per_token: float
    perplexity: float
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
) -> Likelihood:
    """Estimate the likelihood of a split under a progress bar.

    Args:
        run: The run.
        split: Which split of its data.
        estimator: How.
        seed: Of the draws.
        target_se: Standard error, in nats, at which a sequence is done.
        max_nfe: Most network evaluations of a sequence.
    """
    dataset = run.datamodule.dataset(split)
    budget = {"target_se": target_se, "max_nfe": max_nfe}
    loader = run.datamodule.evaluation_loader(split)
    return estimate_batches(
        run, loader, len(dataset), "evaluating", estimator=estimator, seed=seed, **budget
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
            process=run.process,
            estimator=estimator,
            target_se=target_se,
            max_nfe=max_nfe,
            seed=seed,
            progress=lambda done: bar.update(task, completed=done),
        )


def compare(result: Likelihood, estimator: Estimator, baselines: dict[str, float]) -> list[Row]:
    """Put the model's row above one for each baseline.

    Args:
        result: From ``estimate``.
        estimator: What estimated it.
        baselines: Name and nats per token of each, on the same split.
    """
    name = f"model, {estimator.quantity}"
    return [_model_row(name, result), *(_baseline_row(k, v, result) for k, v in baselines.items())]


def _model_row(name: str, result: Likelihood) -> Row:
    return Row(
        name=name,
        bits_per_token=result.bits_per_token,
        bits_per_token_error=result.bits_per_token_error,
        nats_per_token=result.nats_per_token,
        perplexity=result.perplexity,
        num_sequences=len(result.nats),
        num_tokens=int(result.num_tokens.sum()),
        evaluations=float(result.nfe.mean()),
    )


def _baseline_row(name: str, nats: float, result: Likelihood) -> Row:
    return Row(
        name=name,
        bits_per_token=nats / math.log(2),
        bits_per_token_error=None,
        nats_per_token=nats,
        perplexity=math.exp(nats),
        num_sequences=len(result.nats),
        num_tokens=int(result.num_tokens.sum()),
        evaluations=None,
    )


def counted(unit: str) -> str:
    """Say which tokens an estimate is over.

    Args:
        unit: What a token is called, e.g. ``base``.
    """
    return f"known {unit}s; unknown ones and context are given"


def build_table(rows: list[Row], estimator: Estimator, title: str, unit: str) -> Table:
    """Lay the rows out for a terminal.

    Args:
        rows: From ``compare``.
        estimator: What estimated the model's row.
        title: Above the table.
        unit: What a token is called, e.g. ``base``.
    """
    model = rows[0]
    title = f"{title}: {model.num_sequences:,} sequences, {model.num_tokens:,} {unit}s"
    notes = (
        "lower is better; ± SE is over the choice of sequences",
        f"estimator {estimator.name}, {model.evaluations:,.4g} evaluations a sequence",
        f"convention {estimator.convention}; counted: {counted(unit)}",
    )
    table = Table(title=title, caption="\n".join(notes))
    table.add_column("")
    for heading in (f"bits/{unit}", "± SE", "perplexity"):
        table.add_column(heading, justify="right")
    for row in rows:
        error = "" if row.bits_per_token_error is None else f"{row.bits_per_token_error:.4f}"
        table.add_row(row.name, f"{row.bits_per_token:.4f}", error, f"{row.perplexity:.4f}")
    return table
