"""``seqdiff evaluate``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from seqdiff.files import check_parent, write_bytes
from seqdiff.subcommands.common import add_device, check_seed

help = "bound the likelihood of a split, with its standard error, beside baselines"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument(
        "--split", choices=("train", "valid", "test"), default="test", help="default: test"
    )
    parser.add_argument(
        "--evaluations",
        type=int,
        default=16,
        metavar="N",
        help="network passes a sequence, an even number; default: 16",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the masks; default: 0")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers there too")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    check_seed("evaluate.seed", args.seed)
    if args.json is not None:
        check_parent("evaluate.json", args.json)
    from rich.console import Console

    from seqdiff.likelihood import check_evaluations
    from seqdiff.run import load_run
    from seqdiff.subcommands.likelihood_table import build_table, compare, estimate
    from seqdiff.subcommands.terminal import choose_device

    check_evaluations(args.evaluations)
    trained = load_run(args.directory, device=choose_device(args.device))
    result = estimate(trained, args.split, evaluations=args.evaluations, seed=args.seed)
    rows = compare(result, trained.datamodule.baselines(args.split))
    if args.json is not None:
        content = {"run": str(args.directory), "split": args.split, "rows": [vars(r) for r in rows]}
        write_bytes(args.json, (json.dumps(content, indent=2) + "\n").encode())
    unit = trained.datamodule.token_name
    Console().print(build_table(rows, f"{args.directory}, {args.split} split", unit))
