"""``seqdiff evaluate``."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.files import check_parent, write_bytes
from seqdiff.subcommands.common import add_device, choose_device, progress

if TYPE_CHECKING:
    from rich.table import Table

    from seqdiff.data.datamodule import Split
    from seqdiff.likelihood import Likelihood
    from seqdiff.run import Run

help = "bound the likelihood of a split, with its standard error, beside baselines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--split", choices=("train", "valid", "test"), default="test")
    parser.add_argument(
        "--evaluations", type=int, default=16, metavar="N", help="network passes a sequence, even"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the masks")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    if args.json is not None:
        check_parent("evaluate.json", args.json)
    from rich.console import Console

    from seqdiff.run import load_run

    trained = load_run(args.directory, device=choose_device(args))
    rows = measure(trained, args.split, evaluations=args.evaluations, seed=args.seed)
    if args.json is not None:
        content = {"run": str(args.directory), "split": args.split, "rows": [vars(r) for r in rows]}
        write_bytes(args.json, (json.dumps(content, indent=2) + "\n").encode())
    unit = trained.datamodule.token_name
    Console().print(build_table(rows, f"{args.directory}, {args.split} split", unit))


@dataclass(frozen=True)
class Row:
    """One line of the table; errors and counts of evaluations exist only for the model."""

    name: str
    bits_per_token: float
    bits_per_token_error: float | None
    nats_per_token: float
    perplexity: float
    num_sequences: int
    num_tokens: int
    evaluations: int | None


def measure(run: Run, split: Split, *, evaluations: int, seed: int) -> list[Row]:
    """Evaluate a run under a progress bar.

    Args:
        run: The run.
        split: Which split of its data.
        evaluations: Network passes a sequence.
        seed: Of the masks.

    Returns:
        The model's row, then one for each baseline of the data module.
    """
    from seqdiff.likelihood import evaluate
    from seqdiff.types import Batch

    device = next(run.denoiser.parameters()).device
    total = len(run.datamodule.dataset(split))
    batches = (Batch(*(x.to(device) for x in b)) for b in run.datamodule.evaluation_loader(split))
    with progress() as bar:
        task = bar.add_task("evaluating", total=total)
        result = evaluate(
            run.denoiser,
            batches,
            process=run.process,
            evaluations=evaluations,
            seed=seed,
            progress=lambda count: bar.advance(task, count),
        )
    baselines = run.datamodule.baselines(split)
    return [_model_row(result), *(_baseline_row(k, v, result) for k, v in baselines.items())]


def _model_row(result: Likelihood) -> Row:
    return Row(
        name="model, upper bound",
        bits_per_token=result.bits_per_token,
        bits_per_token_error=result.bits_per_token_error,
        nats_per_token=result.nats_per_token,
        perplexity=result.perplexity,
        num_sequences=len(result.nats),
        num_tokens=int(result.num_tokens.sum()),
        evaluations=result.nfe,
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


def build_table(rows: list[Row], title: str, unit: str) -> Table:
    """Lay the rows out for a terminal.

    Args:
        rows: From ``measure``.
        title: Above the table.
        unit: What a token is called, e.g. ``base``.
    """
    from rich.table import Table

    table = Table(title=title)
    table.add_column("")
    for heading in (f"bits/{unit}", "± SE", "perplexity", "sequences", f"{unit}s"):
        table.add_column(heading, justify="right")
    for row in rows:
        error = "" if row.bits_per_token_error is None else f"{row.bits_per_token_error:.4f}"
        table.add_row(
            row.name,
            f"{row.bits_per_token:.4f}",
            error,
            f"{row.perplexity:.4f}",
            f"{row.num_sequences:,}",
            f"{row.num_tokens:,}",
        )
    return table
