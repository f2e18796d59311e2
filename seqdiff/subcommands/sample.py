"""``seqdiff sample``."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqdiff.commands import find_writer
from seqdiff.files import check_parent, replacing
from seqdiff.subcommands.common import add_device

help = "draw sequences from a run"

# Steps that reveal nothing cost nothing, so a fine grid takes no more evaluations than tokens.
STEPS_PER_TOKEN = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--num", type=int, required=True, help="number of sequences")
    parser.add_argument("--length", type=int, required=True, help="tokens in each")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="its suffix chooses the format"
    )
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--num-steps", type=int, metavar="T", help="default: 4 a token")
    parser.add_argument("--batch-size", type=int, default=32, help="drawn at a time")
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    for name in ("num", "length", "batch_size"):
        if getattr(args, name) < 1:
            raise ValueError(
                f"sample.{name} must be at least 1, got {getattr(args, name)}; raise it"
            )
    writer = find_writer(args.out)
    check_parent("sample.out", args.out)
    from seqdiff.run import load_run
    from seqdiff.samplers import AncestralSampler
    from seqdiff.subcommands.sampling import draw
    from seqdiff.subcommands.terminal import choose_device

    trained = load_run(args.directory, device=choose_device(args.device))
    steps = STEPS_PER_TOKEN * args.length if args.num_steps is None else args.num_steps
    sequences = draw(
        trained,
        AncestralSampler(steps),
        num=args.num,
        length=args.length,
        seed=args.seed,
        batch_size=args.batch_size,
    )
    with replacing(args.out) as temporary:
        writer(temporary, sequences, [f"sample_{i}" for i in range(args.num)])
    print(f"{args.out}: {args.num} sequences of {args.length} tokens")
