"""``seqdiff sample``."""

from __future__ import annotations

import argparse
from pathlib import Path

from seqdiff.commands import find_writer
from seqdiff.files import check_apart, check_parent, replacing
from seqdiff.subcommands.common import add_device, check_count, check_guidance, check_seed
from seqdiff.subcommands.given import add_given, check_given, read_given
from seqdiff.subcommands.recording import check_trace, save_trace

help = "draw sequences from a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.epilog = (
        "Any option of the sampler may follow, for example --temperature 0.8; "
        "seqdiff samplers NAME lists them."
    )
    parser.add_argument("directory", type=Path, metavar="RUN", help="run directory")
    parser.add_argument("--num", type=int, required=True, metavar="N", help="number of sequences")
    add_given(parser)
    parser.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="its suffix chooses the format"
    )
    parser.add_argument("--seed", type=int, required=True, help="of the draws")
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="one of those that seqdiff samplers lists; seqdiff samplers NAME lists its options; "
        "default: first_hitting for masked diffusion, block for block diffusion, left_to_right if "
        "autoregressive, tweedie for scores, gaussian for Gaussian diffusion, ancestral otherwise",
    )
    parser.add_argument(
        "--batch_size", type=int, default=32, metavar="B", help="drawn at a time; default: 32"
    )
    parser.add_argument(
        "--stop",
        metavar="SYMBOL",
        help="end a sequence with this symbol, before --length; for runs of block diffusion",
    )
    parser.add_argument("--label", metavar="NAME", help="class to draw, for a run with labels")
    parser.add_argument(
        "--guidance",
        type=float,
        metavar="GAMMA",
        help="how strongly to follow the label; default: 1, the model's law given the label",
    )
    parser.add_argument(
        "--rc_consistent",
        action="store_true",
        help="predict from both strands, so that a sequence and its reverse complement are equally "
        "likely; twice the evaluations",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE.npz",
        help="keep the tokens after every step, for seqdiff plot trace",
    )
    add_device(parser)
    parser.set_defaults(flags=[])


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    for name in ("num", "batch_size"):
        check_count(f"sample.{name}", getattr(args, name))
    check_seed("sample.seed", args.seed)
    check_guidance("sample.guidance", args.guidance)
    check_given(args)
    writer = find_writer(args.out)
    check_parent("sample.out", args.out)
    check_apart("sample.out", args.out, {"--infill": args.infill})
    if args.trace is not None:
        check_trace(args.trace, args.out)
    from seqdiff.samplers.recorder import Recorder, check_room
    from seqdiff.subcommands.drawing import check_memory, draw
    from seqdiff.subcommands.growing import fit_sampler
    from seqdiff.subcommands.guiding import conjoin, guide
    from seqdiff.subcommands.opening import open_run
    from seqdiff.subcommands.terminal import choose_device

    device = choose_device(args.device)
    if args.length is not None:
        check_memory(min(args.num, args.batch_size), args.length, device)
    if args.trace is not None:
        check_room(args.num, args.length or 1)
    trained, sampler = open_run(args.directory, args.sampler, args.flags, device)
    if args.rc_consistent:
        trained = conjoin("sample", trained, sampler)
    trained = guide("sample", trained, args.label, args.guidance)
    sampler = fit_sampler(sampler, trained, stop=args.stop, extrapolate=args.extrapolate)
    templates = read_given(args, trained, sampler)
    names = templates.names
    recorder = Recorder() if args.trace is not None else None
    if recorder is not None:
        check_room(len(names), max(templates.lengths))
    sequences, lengths, clamped = draw(
        trained, sampler, templates, seed=args.seed, batch_size=args.batch_size, recorder=recorder
    )
    with replacing(args.out) as temporary:
        writer(temporary, sequences, names)
    if args.trace is not None and recorder is not None:
        save_trace(args.trace, recorder, sampler, names, trained.tokenizer)
    span = f"{min(lengths)}" if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    print(f"{args.out}: {len(sequences)} x {span} {trained.datamodule.token_name}s")
    if clamped:
        print(
            f"{clamped:,} steps of single tokens had probabilities above 1, which were scaled "
            "down; more --num-steps make them fewer"
        )
