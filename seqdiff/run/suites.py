"""Evaluation of a run on the sets of a suite, beside published numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from seqdiff.data import MissingSet, Suite, SuiteSet, UnfitSet
from seqdiff.likelihood import Estimator
from seqdiff.run.directory import Trained
from seqdiff.run.evaluation import estimate_batches


@dataclass(frozen=True)
class SuiteRow:
    """One line of the table; ``num_rows`` and ``num_tokens`` count what was evaluated.

    The numbers are estimates of ``quantity``, for example an upper bound.
    """

    name: str
    quantity: str
    origin: str
    num_documents: int
    num_rows: int
    of_rows: int
    num_tokens: int
    nats_per_token: float
    nats_per_token_error: float
    perplexity: float
    perplexity_error: float
    bits_per_unit: float | None
    evaluations: float
    published: dict[str, float]


def open_sets(
    suite: Suite, run: Trained, folder: Path | None
) -> tuple[list[SuiteSet | UnfitSet], list[MissingSet]]:
    """Find the sets of a suite, before anything slow.

    Args:
        suite: The suite.
        run: The run to evaluate.
        folder: See ``Suite.find``.

    Raises:
        FileNotFoundError: If no set is available, or the folder does not exist.
        ValueError: If the tokenizer of the run can encode none of them; see ``Suite.find`` too.
    """
    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(
            f"evaluate.suite_folder must be an existing folder, got {folder}; check the path"
        )
    found, missing = suite.find(run.datamodule, folder)
    if not found:
        places = ", ".join(one.place for one in missing)
        raise FileNotFoundError(
            f"evaluate.suite must find at least one of its sets, got none; put a copy of one "
            f"at its path: {places}"
        )
    if all(isinstance(one, UnfitSet) for one in found):
        reasons = "; ".join(one.reason for one in found if isinstance(one, UnfitSet))
        raise ValueError(
            f"evaluate.suite must have a set that {run.directory} can encode, got none: {reasons}"
        )
    return found, missing


def evaluate_set(
    run: Trained,
    found: SuiteSet,
    limit: int | None,
    *,
    estimator: Estimator,
    seed: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
) -> SuiteRow:
    """Evaluate a run on one set.

    Args:
        run: The run.
        found: The set.
        limit: Maximum number of rows to evaluate, evenly spaced; the value of a row does not depend
            on it.
        estimator: The estimator.
        seed: Seed of the draws.
        target_se: Standard error of a row to aim at, in nats.
        max_nfe: Maximum number of network evaluations for a row.
    """
    total = len(found.dataset)
    count = total if limit is None else min(limit, total)
    rows = [total * place // count for place in range(count)]
    loader = run.datamodule.rows_loader(found.dataset, rows)
    budget = {"target_se": target_se, "max_nfe": max_nfe}
    result = estimate_batches(
        run, loader, count, found.name, estimator=estimator, seed=seed, **budget
    )
    per_token = found.units_per_token
    return SuiteRow(
        name=found.name,
        quantity=estimator.quantity,
        origin=found.origin,
        num_documents=found.num_documents,
        num_rows=count,
        of_rows=total,
        num_tokens=int(result.num_tokens.sum()),
        nats_per_token=result.nats_per_token,
        nats_per_token_error=result.nats_per_token_error,
        perplexity=result.perplexity,
        perplexity_error=result.perplexity_error,
        bits_per_unit=None if per_token is None else result.bits_per_token / per_token,
        evaluations=float(result.nfe.mean()),
        published=found.published,
    )


def describe_row(row: SuiteRow) -> str:
    """Describe the result of a set in one line, before the table is complete."""
    error = "" if math.isinf(row.perplexity_error) else f" ± {_short(row.perplexity_error)} SE"
    return (
        f"{row.name}, {row.quantity}: {row.num_tokens:,} tokens, {row.nats_per_token:.4f} "
        f"nats/token, perplexity {_short(row.perplexity)}{error}"
    )


def describe_unfit(one: UnfitSet) -> str:
    """Describe in one line why a set is not evaluated."""
    return f"{one.name}: not evaluable, {one.reason}"


def build_suite_table(
    rows: Sequence[SuiteRow | UnfitSet],
    suite: Suite,
    estimator: Estimator,
    title: str,
    notes: Sequence[str],
) -> Table:
    """Build the table for a terminal of 80 columns.

    Args:
        rows: From ``evaluate_set``, and the sets that cannot be evaluated.
        suite: The suite.
        estimator: The estimator.
        title: Title above the table.
        notes: Lines below the table.
    """
    caption = (
        f"{estimator.quantity}; lower is better; ± SE is the standard error over groups of "
        "consecutive rows",
        f"estimator {estimator.name}, convention {estimator.convention}",
        *notes,
    )
    table = Table(
        title=title,
        caption="\n".join(caption),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("set", no_wrap=True)
    own = ("rows", "tokens", "nats/ token", "perplexity", "± SE", f"bits/ {suite.unit}")
    for heading in (*own, *suite.models):
        table.add_column(heading, justify="right", overflow="fold")
    for row in rows:
        numbers = ("NA",) * len(own) if isinstance(row, UnfitSet) else _numbers(row)
        published = (f"{row.published[model]:.2f}" for model in suite.models)
        table.add_row(row.name, *numbers, *published)
    return table


def _numbers(row: SuiteRow) -> tuple[str, ...]:
    return (
        f"{row.num_rows:,}",
        f"{row.num_tokens:,}",
        f"{row.nats_per_token:.4f}",
        _short(row.perplexity),
        "" if math.isinf(row.perplexity_error) else _short(row.perplexity_error),
        "" if row.bits_per_unit is None else f"{row.bits_per_unit:.4f}",
    )


def _short(number: float) -> str:
    return f"{number:.2f}" if number < 1e5 else f"{number:.1e}"


def lines_below(rows: Sequence[SuiteRow | UnfitSet], missing: Sequence[MissingSet]) -> list[str]:
    """Describe where each set came from, and which sets cannot be evaluated or are missing.

    Args:
        rows: The available sets.
        missing: The missing sets.
    """
    found: list[str] = []
    for row in rows:
        if isinstance(row, UnfitSet):
            found.append(describe_unfit(row))
            continue
        part = row.num_rows < row.of_rows
        chosen = f"{row.num_rows:,} of {row.of_rows:,} rows, evenly spaced; " * part
        found.append(f"{row.name}: {chosen}{row.num_documents:,} documents, {row.origin}")
    for one in missing:
        why = f" ({one.reason})" if one.reason else ""
        found.append(f"{one.name}: missing{why}, would be read from {one.place}")
    return found
