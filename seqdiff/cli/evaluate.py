"""``seqdiff evaluate``."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from seqdiff.checks import check_count, check_seed
from seqdiff.cli.options import FlatOptions
from seqdiff.files import check_parent, write_bytes
from seqdiff.run import EstimatorOptions, choose_estimator, suit

if TYPE_CHECKING:
    from seqdiff.data import Suite
    from seqdiff.run import Run

_DEFAULTS = EstimatorOptions()


def evaluate(
    run: Path,
    /,
    *,
    split: Literal["train", "valid", "test"] | None = None,
    suite: str | None = None,
    suite_folder: Path | None = None,
    limit: int | None = None,
    estimation: Annotated[EstimatorOptions, FlatOptions] = _DEFAULTS,
    given_labels: bool = False,
    given_signals: bool = False,
    block_size: int | None = None,
    seed: int = 0,
    json: Path | None = None,
    device: str | None = None,
) -> None:
    """Estimate the likelihood of a split, or of the sets of a benchmark, with its standard error.

    Args:
        run: Run directory, or name of a packaged model.
        split: Split of the run's data; default: test.
        suite: Evaluate the sets of a benchmark instead, such as zero_shot.
        suite_folder: Folder with copies of the suite's sets; default: the cache and the hub.
        limit: Maximum number of rows of each set of the suite, evenly spaced; default: all.
        estimation: How the likelihood is estimated.
        given_labels: Evaluate each row given its label, for a run with labels.
        given_signals: Evaluate each row given its signals, for a run with signals.
        block_size: Tokens of a block, for a run of several sizes; default: the largest.
        seed: Seed of the draws.
        json: Also write the numbers to this file.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If options do not fit together or to the run.
    """
    check_seed("evaluate.seed", seed)
    given = {"labels": given_labels, "signals": given_signals}
    _check_suite(split, suite, suite_folder, limit, given)
    if json is not None:
        check_parent("evaluate.json", json)
    estimator = choose_estimator("evaluate", estimation)
    from rich.console import Console

    from seqdiff.data import find_suite
    from seqdiff.likelihood import check_budget
    from seqdiff.run import choose_device, load

    check_budget(estimator, num_tokens=1, **estimation.budget)
    found = None if suite is None else find_suite(suite)
    trained = load(run, device=choose_device(device)).in_blocks(block_size, "evaluate")
    if suite is None:
        evaluation = trained.evaluate(
            split or "test",
            given_labels=given_labels,
            given_signals=given_signals,
            seed=seed,
            **vars(estimation),
        )
        Console().print(evaluation.table)
        if evaluation.verdict is not None:
            print(evaluation.verdict)
        content = evaluation.content()
    else:
        assert found is not None
        content = _evaluate_suite(trained, found, suite, suite_folder, limit, estimation, seed)
    if json is not None:
        write_bytes(json, (json_format.dumps(content, indent=2) + "\n").encode())


def _check_suite(
    split: str | None,
    suite: str | None,
    folder: Path | None,
    limit: int | None,
    given: dict[str, bool],
) -> None:
    """Check that options go together.

    Raises:
        ValueError: If they do not, or the limit is not positive.
    """
    if suite is None:
        for flag, value in (("suite_folder", folder), ("limit", limit)):
            if value is not None:
                raise ValueError(
                    f"evaluate.{flag} must go with a suite, got none; add --suite zero_shot, or "
                    f"leave out --{flag.replace('_', '-')}"
                )
        return
    if split is not None:
        raise ValueError(
            f"evaluate.split must be left out beside a suite, got {split} and {suite}; choose one"
        )
    for name, asked in given.items():
        if asked:
            raise ValueError(
                f"evaluate.given_{name} must be left out beside a suite, got {suite}, whose rows "
                f"have no {name}; leave it out"
            )
    if limit is not None:
        check_count("evaluate.limit", limit)


def _evaluate_suite(
    trained: Run,
    suite: Suite,
    name: str,
    folder: Path | None,
    limit: int | None,
    estimation: EstimatorOptions,
    seed: int,
) -> object:
    """Print the table of a suite beside published numbers, and give the content of a JSON file."""
    from rich.console import Console

    from seqdiff.data import UnfitSet
    from seqdiff.run import (
        build_suite_table,
        describe_row,
        describe_unfit,
        evaluate_set,
        lines_below,
        open_sets,
    )

    estimator = suit("evaluate", choose_estimator("evaluate", estimation), estimation, trained)
    sets, missing = open_sets(suite, trained, folder)
    rows = []
    for found in sets:
        if isinstance(found, UnfitSet):
            rows.append(found)
            print(describe_unfit(found), file=sys.stderr)
            continue
        row = evaluate_set(
            trained, found, limit, estimator=estimator, seed=seed, **estimation.budget
        )
        rows.append(row)
        print(describe_row(row), file=sys.stderr)
    notes = suite.notes(trained.datamodule)
    console = Console()
    title = f"{trained.directory}, suite {name}"
    console.print(build_suite_table(rows, suite, estimator, title, notes))
    for line in lines_below(rows, missing):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return {
        "run": str(trained.directory),
        "suite": name,
        "estimator": estimator.name,
        "convention": estimator.convention,
        "notes": notes,
        "limit": limit,
        "unit": suite.unit,
        "sets": [vars(row) for row in rows if not isinstance(row, UnfitSet)],
        "not_evaluable": [row._asdict() for row in rows if isinstance(row, UnfitSet)],
        "missing": [one._asdict() for one in missing],
    }
