"""``seqdiff sample``."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqdiff.commands import find_writer
from seqdiff.files import check_parent, replacing
from seqdiff.subcommands.common import add_device, check_count, check_seed

help = "draw sequences from a run"

# Steps that reveal nothing cost nothing, so a fine grid takes no more evaluations than tokens.
STEPS_PER_TOKEN = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--num", type=int, required=True, metavar="N", help="number of sequences")
    parser.add_argument("--length", type=int, required=True, metavar="L", help="tokens in each")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="its suffix chooses the format"
    )
    parser.add_argument("--seed", type=int, required=True, help="of the draws")
    parser.add_argument(
        "--num_steps", type=int, metavar="T", help="sampler steps; default: 4 a token"
    )
    parser.add_argument(
        "--batch_size", type=int, default=32, metavar="B", help="drawn at a time; default: 32"
    )
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    steps = STEPS_PER_TOKEN * args.length if args.num_steps is None else args.num_steps
    for name in ("num", "length", "batch_size"):
        check_count(f"sample.{name}", getattr(args, name))
    check_count("sample.num_steps", steps)
    check_seed("sample.seed", args.seed)
    writer = find_writer(args.out)
    check_parent("sample.out", args.out)
    from seqdiff.run import load_run
    from seqdiff.samplers import AncestralSampler
    from seqdiff.subcommands.drawing import check_memory, draw
    from seqdiff.subcommands.terminal import choose_device

    device = choose_device(args.device)
    check_memory(min(args.num, args.batch_size), args.length, device)
    trained = load_run(args.directory, device=device)
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
    unit = trained.datamodule.token_name
    print(f"{args.out}: {args.num} x {args.length} {unit}s")
