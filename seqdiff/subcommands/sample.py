"""``seqdiff sample``."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqdiff.commands import find_writer
from seqdiff.files import check_parent, replacing
from seqdiff.subcommands.common import add_device, check_count, check_seed

help = "draw sequences from a run"

_DEFAULT, _DEFAULT_IF_CAUSAL = "first_hitting", "left_to_right"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.epilog = "Any option of the sampler may follow, for example --temperature 0.8."
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--num", type=int, required=True, metavar="N", help="number of sequences")
    parser.add_argument("--length", type=int, required=True, metavar="L", help="tokens in each")
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="its suffix chooses the format"
    )
    parser.add_argument("--seed", type=int, required=True, help="of the draws")
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="one of those that seqdiff samplers lists; default: first_hitting, or left_to_right "
        "for an autoregressive run",
    )
    parser.add_argument(
        "--batch_size", type=int, default=32, metavar="B", help="drawn at a time; default: 32"
    )
    parser.add_argument("--label", metavar="NAME", help="class to draw, for a run with labels")
    parser.add_argument(
        "--guidance",
        type=float,
        metavar="GAMMA",
        help="how strongly to follow the label; default: 1, the model's law given the label",
    )
    add_device(parser)
    parser.set_defaults(flags=[])


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    for name in ("num", "length", "batch_size"):
        check_count(f"sample.{name}", getattr(args, name))
    check_seed("sample.seed", args.seed)
    writer = find_writer(args.out)
    check_parent("sample.out", args.out)
    from seqdiff.run import load_run
    from seqdiff.sampler_config import build_sampler
    from seqdiff.subcommands.drawing import check_memory, draw
    from seqdiff.subcommands.guiding import guide
    from seqdiff.subcommands.terminal import choose_device

    sampler = build_sampler(args.sampler or _DEFAULT, args.flags)
    device = choose_device(args.device)
    check_memory(min(args.num, args.batch_size), args.length, device)
    trained = guide("sample", load_run(args.directory, device=device), args.label, args.guidance)
    if args.sampler is None and trained.denoiser.causal:
        sampler = build_sampler(_DEFAULT_IF_CAUSAL, args.flags)
    sequences = draw(
        trained,
        sampler,
        num=args.num,
        length=args.length,
        seed=args.seed,
        batch_size=args.batch_size,
    )
    with replacing(args.out) as temporary:
        writer(temporary, sequences, [f"sample_{i}" for i in range(args.num)])
    unit = trained.datamodule.token_name
    print(f"{args.out}: {args.num} x {args.length} {unit}s")
