"""``seqdiff score``."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqdiff.cli.estimation import add_estimator, choose_estimator, suit
from seqdiff.cli.options import add_device, check_count, check_seed
from seqdiff.data import Reader, find_readers
from seqdiff.files import check_apart, check_parent, write_bytes

help = "estimate the likelihood of each sequence of a file, with its standard error"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    readers = find_readers()
    files = parser.add_mutually_exclusive_group(required=True)
    for name, reader in readers.items():
        files.add_argument(f"--{name}", dest=name, type=Path, metavar="FILE", help=reader.help)
        reader.add_arguments(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="tab-separated table to write"
    )
    add_estimator(parser)
    parser.add_argument(
        "--label", metavar="NAME", help="class to score as, for a run with labels; default: none"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the draws; default: 0")
    parser.add_argument(
        "--batch_size",
        type=int,
        default=32,
        metavar="B",
        help="rows of a network call; default: 32",
    )
    add_device(parser)
    parser.set_defaults(readers=readers)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    check_count("score.batch_size", args.batch_size)
    check_seed("score.seed", args.seed)
    name, reader, path = _source(args)
    check_parent("score.out", args.out)
    check_apart("score.out", args.out, {f"--{name}": path})
    estimator = choose_estimator("score", args)
    from seqdiff.cli.drawing import guide
    from seqdiff.cli.scoring import format_scores, score_records
    from seqdiff.cli.terminal import choose_device
    from seqdiff.likelihood import check_budget
    from seqdiff.run import load_run

    budget = {"target_se": args.target_se, "max_nfe": args.max_nfe}
    check_budget(estimator, num_tokens=1, **budget, owner="score")
    trained = load_run(args.directory, device=choose_device(args.device))
    trained = guide("score", trained, args.label)
    estimator = suit("score", estimator, args, trained)
    records = reader.read(path, args, trained.tokenizer)
    scores = score_records(
        trained,
        records,
        estimator=estimator,
        seed=args.seed,
        batch_size=args.batch_size,
        **budget,
    )
    unit = trained.datamodule.token_name
    write_bytes(args.out, format_scores(scores, unit).encode())
    given = "" if args.label is None else f", given the label {args.label}"
    print(
        f"{args.out}: {len(scores):,} {'record' if len(scores) == 1 else 'records'}; nats: "
        f"{estimator.quantity}{given}, by {estimator.name}, convention {estimator.convention}"
    )


def _source(args: argparse.Namespace) -> tuple[str, Reader, Path]:
    """Find the file to score, by which flag it came, and who reads it.

    Raises:
        FileNotFoundError: If it is not an existing file.
    """
    name, reader = next((n, r) for n, r in args.readers.items() if getattr(args, n) is not None)
    path: Path = getattr(args, name)
    if not path.is_file():
        raise FileNotFoundError(
            f"score.{name} must be an existing file, got {path}; check the path"
        )
    return name, reader, path
