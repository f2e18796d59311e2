"""``seqdiff evaluate``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.estimation import add_estimator, choose_estimator, suit
from seqdiff.cli.options import add_device, check_count, check_seed
from seqdiff.files import check_parent, write_bytes

if TYPE_CHECKING:
    from seqdiff.data import Suite
    from seqdiff.likelihood import Estimator
    from seqdiff.run import Run

help = "bound the likelihood of a split or of a suite's sets, with its standard error"

_SUITE_ONLY = ("suite_folder", "limit")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--split", choices=("train", "valid", "test"), help="default: test")
    parser.add_argument(
        "--suite", metavar="NAME", help="the sets of a benchmark instead, such as zero_shot"
    )
    parser.add_argument(
        "--suite_folder",
        type=Path,
        metavar="DIR",
        help="copies of the suite's sets, and no others; default: where the suite looks",
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="most rows of a set of the suite; default: all"
    )
    add_estimator(parser)
    parser.add_argument(
        "--given_labels",
        action="store_true",
        help="evaluate each row given its label, for a run with labels; default: without, as the "
        "baselines do",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws; default: 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    check_seed("evaluate.seed", args.seed)
    _check_suite(args)
    if args.json is not None:
        check_parent("evaluate.json", args.json)
    estimator = choose_estimator("evaluate", args)
    from seqdiff.cli.terminal import choose_device
    from seqdiff.data import find_suite
    from seqdiff.likelihood import check_budget
    from seqdiff.run import load_run

    check_budget(estimator, num_tokens=1, target_se=args.target_se, max_nfe=args.max_nfe)
    suite = None if args.suite is None else find_suite(args.suite)
    trained = load_run(args.directory, device=choose_device(args.device))
    estimator = suit("evaluate", estimator, args, trained)
    if suite is None:
        content = _evaluate_split(args, trained, estimator)
    else:
        content = _evaluate_suite(args, trained, estimator, suite)
    if args.json is not None:
        write_bytes(args.json, (json.dumps(content, indent=2) + "\n").encode())


def _check_suite(args: argparse.Namespace) -> None:
    """Refuse options that do not go together.

    Raises:
        ValueError: If there are any, or the limit is not positive.
    """
    if args.suite is None:
        for flag in _SUITE_ONLY:
            if getattr(args, flag) is not None:
                raise ValueError(
                    f"evaluate.{flag} must go with a suite, got none; add --suite zero_shot, or "
                    f"leave out --{flag}"
                )
        return
    if args.split is not None:
        raise ValueError(
            f"evaluate.split must be left out beside a suite, got {args.split} and {args.suite}; "
            "choose one"
        )
    if args.given_labels:
        raise ValueError(
            f"evaluate.given_labels must be left out beside a suite, got {args.suite}, whose rows "
            "have no labels; leave it out"
        )
    if args.limit is not None:
        check_count("evaluate.limit", args.limit)


def _evaluate_split(args: argparse.Namespace, trained: Run, estimator: Estimator) -> object:
    """Print the table of a split beside baselines; give what JSON says of it."""
    from rich.console import Console

    from seqdiff.cli.drawing import choose_labels
    from seqdiff.cli.likelihood_table import build_table, compare, counted, estimate

    split = args.split or "test"
    budget = {"target_se": args.target_se, "max_nfe": args.max_nfe}
    labels = choose_labels("evaluate", trained, given=args.given_labels)
    result = estimate(trained, split, estimator=estimator, seed=args.seed, **budget, labels=labels)
    found = compare(result, estimator, trained.datamodule.baselines(split), labels)
    unit = trained.datamodule.token_name
    title = f"{args.directory}, {split} split"
    Console().print(build_table(found, title, trained.datamodule, split))
    return {
        "run": str(args.directory),
        "split": split,
        "estimator": estimator.name,
        "convention": estimator.convention,
        "counted": counted(unit, labels),
        "notes": trained.datamodule.counting,
        "rows": [vars(row) for row in (found.model, *found.baselines)],
        "difference": None if found.difference is None else vars(found.difference),
        "error_degrees": found.degrees,
    }


def _evaluate_suite(
    args: argparse.Namespace, trained: Run, estimator: Estimator, suite: Suite
) -> object:
    """Print the table of a suite beside published numbers; give what JSON says of it."""
    from rich.console import Console

    from seqdiff.cli.suite_table import (
        build_suite_table,
        describe_row,
        describe_unfit,
        evaluate_set,
        lines_below,
        open_sets,
    )
    from seqdiff.data import UnfitSet

    sets, missing = open_sets(suite, trained, args.suite_folder)
    budget = {"target_se": args.target_se, "max_nfe": args.max_nfe}
    rows = []
    for found in sets:
        if isinstance(found, UnfitSet):
            rows.append(found)
            print(describe_unfit(found), file=sys.stderr)
            continue
        row = evaluate_set(
            trained, found, args.limit, estimator=estimator, seed=args.seed, **budget
        )
        rows.append(row)
        print(describe_row(row), file=sys.stderr)
    notes = suite.notes(trained.datamodule)
    console = Console()
    title = f"{args.directory}, suite {args.suite}"
    console.print(build_suite_table(rows, suite, estimator, title, notes))
    for line in lines_below(rows, missing):
        console.print(line, soft_wrap=True, markup=False, highlight=False)
    return {
        "run": str(args.directory),
        "suite": args.suite,
        "estimator": estimator.name,
        "convention": estimator.convention,
        "notes": notes,
        "limit": args.limit,
        "unit": suite.unit,
        "sets": [vars(row) for row in rows if not isinstance(row, UnfitSet)],
        "not_evaluable": [row._asdict() for row in rows if isinstance(row, UnfitSet)],
        "missing": [one._asdict() for one in missing],
    }
