"""``seqdiff evaluate``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from seqdiff.files import check_parent, write_bytes
from seqdiff.subcommands.common import add_device, check_seed
from seqdiff.subcommands.estimation import add_estimator, choose_estimator, suit

help = "bound the likelihood of a split, with its standard error, beside baselines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--split", choices=("train", "valid", "test"), default="test", help="default: test"
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
    if args.json is not None:
        check_parent("evaluate.json", args.json)
    estimator = choose_estimator("evaluate", args)
    from rich.console import Console

    from seqdiff.likelihood import check_budget
    from seqdiff.run import load_run
    from seqdiff.subcommands.guiding import choose_labels
    from seqdiff.subcommands.likelihood_table import build_table, compare, counted, estimate
    from seqdiff.subcommands.terminal import choose_device

    budget = {"target_se": args.target_se, "max_nfe": args.max_nfe}
    check_budget(estimator, num_tokens=1, **budget)
    trained = load_run(args.directory, device=choose_device(args.device))
    estimator = suit(estimator, args, trained)
    labels = choose_labels("evaluate", trained, given=args.given_labels)
    result = estimate(
        trained, args.split, estimator=estimator, seed=args.seed, **budget, labels=labels
    )
    rows = compare(result, estimator, trained.datamodule.baselines(args.split), labels)
    unit = trained.datamodule.token_name
    if args.json is not None:
        content = {
            "run": str(args.directory),
            "split": args.split,
            "estimator": estimator.name,
            "convention": estimator.convention,
            "counted": counted(unit, labels),
            "rows": [vars(row) for row in rows],
        }
        write_bytes(args.json, (json.dumps(content, indent=2) + "\n").encode())
    title = f"{args.directory}, {args.split} split"
    Console().print(build_table(rows, estimator, title, unit, labels))
