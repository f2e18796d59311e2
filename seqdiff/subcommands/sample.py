"""``seqdiff sample``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.commands import find_writer
from seqdiff.files import check_apart, check_parent, replacing
from seqdiff.subcommands.common import add_device, check_count, check_guidance, check_seed
from seqdiff.subcommands.given import add_given, check_given, read_given
from seqdiff.subcommands.recording import check_trace, save_trace

if TYPE_CHECKING:
    from seqdiff.samplers import Sampler

help = "draw sequences from a run"

_DEFAULT = {"masked": "first_hitting", "causal": "left_to_right", "block": "block"}


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
        "default: first_hitting; left_to_right if autoregressive, block for block diffusion",
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


def _first_fit(names: Iterable[str], flags: Sequence[str]) -> Sampler:
    """Build the first of some samplers that takes the options; which it will be, the run decides.

    Raises:
        ValueError: If none does: what the first one says that has all of these options, or else
            what the first one says.
    """
    from seqdiff.sampler_config import build_sampler, choose_sampler

    given = {flag.removeprefix("--").partition("=")[0].partition(".")[0] for flag in flags}
    complaints = []
    for name in names:
        try:
            return build_sampler(name, flags)
        except ValueError as error:
            complaints.append((given - set(signature(choose_sampler(name)).parameters), error))
    raise next((error for unknown, error in complaints if not unknown), complaints[0][1])


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
    from seqdiff.run import load_run
    from seqdiff.sampler_config import build_sampler
    from seqdiff.samplers.recorder import Recorder, check_room
    from seqdiff.subcommands.drawing import check_memory, draw
    from seqdiff.subcommands.growing import fit_sampler
    from seqdiff.subcommands.guiding import conjoin, guide
    from seqdiff.subcommands.terminal import choose_device

    wanted = _DEFAULT.values() if args.sampler is None else [args.sampler]
    sampler = _first_fit(wanted, args.flags)
    device = choose_device(args.device)
    if args.length is not None:
        check_memory(min(args.num, args.batch_size), args.length, device)
    if args.trace is not None:
        check_room(args.num, args.length or 1)
    trained = load_run(args.directory, device=device)
    if args.sampler is None:
        sampler = build_sampler(_DEFAULT[trained.denoiser.kind], args.flags)
    if args.rc_consistent:
        trained = conjoin("sample", trained, sampler)
    trained = guide("sample", trained, args.label, args.guidance)
    sampler = fit_sampler(sampler, trained, stop=args.stop, extrapolate=args.extrapolate)
    templates = read_given(args, trained, sampler)
    names = templates.names
    recorder = Recorder() if args.trace is not None else None
    if recorder is not None:
        check_room(len(names), max(templates.lengths))
    sequences, lengths = draw(
        trained, sampler, templates, seed=args.seed, batch_size=args.batch_size, recorder=recorder
    )
    with replacing(args.out) as temporary:
        writer(temporary, sequences, names)
    if args.trace is not None and recorder is not None:
        save_trace(args.trace, recorder, sampler, names, trained.tokenizer)
    span = f"{min(lengths)}" if len(set(lengths)) == 1 else f"{min(lengths)} to {max(lengths)}"
    print(f"{args.out}: {len(sequences)} x {span} {trained.datamodule.token_name}s")
