"""``seqdiff sample``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.commands import find_template_reader, find_writer
from seqdiff.cli.options import add_device, check_count, check_guidance, check_seed
from seqdiff.files import check_apart, check_parent, replacing

if TYPE_CHECKING:
    from seqdiff.data import Templates, Tokenizer
    from seqdiff.run import Run
    from seqdiff.samplers import Recorder, Sampler


def add_given(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--length", type=int, metavar="L", help="tokens in each")
    parser.add_argument(
        "--infill",
        type=Path,
        metavar="FILE",
        help="templates to fill, N sequences for each record: known tokens stay; for DNA a FASTA "
        "file with N and IUPAC codes where there is something to fill, for text a .txt or .jsonl "
        "with [MASK], or [MASK:20] for 20 tokens",
    )
    parser.add_argument(
        "--motif",
        action="append",
        metavar="PATTERN[@START]",
        help="letters that stand in every sequence from START on, counted from 0, or where there "
        "is room; for DNA with IUPAC codes; may be repeated",
    )
    parser.add_argument(
        "--extrapolate",
        action="store_true",
        help="draw sequences longer than those that the run was trained on",
    )


def check_given(args: argparse.Namespace) -> None:
    """Refuse arguments that do not fit together, before slow imports.

    Raises:
        FileNotFoundError: If there is no file of templates.
        ValueError: If there is neither a length nor a file, or too much is given.
    """
    if args.infill is None:
        if args.length is None:
            raise ValueError(
                "sample.length must be given without --infill, got none; add --length, "
                "for example --length 100"
            )
        check_count("sample.length", args.length)
        return
    for name, instead in (
        ("length", "the records have their own lengths"),
        ("motif", "write its letters into the template"),
    ):
        given = getattr(args, name)
        if given is not None:
            raise ValueError(
                f"sample.{name} must be left out with --infill, got {given}; {instead}"
            )
    find_template_reader(args.infill)
    if not args.infill.is_file():
        raise FileNotFoundError(
            f"sample.infill must be an existing file, got {args.infill}; check the path"
        )


def read_given(args: argparse.Namespace, run: Run, sampler: Sampler) -> Templates:
    """Turn checked arguments into a template for each sequence.

    Raises:
        ValueError: If a sequence is longer than the model's context, the file is not sound, the
            motifs do not fit, or the run's tokenizer knows no patterns.
    """
    from seqdiff.data import Blanks, Motif, Records, Scaffolds

    if args.infill is not None:
        records = find_template_reader(args.infill)(args.infill)
        templates = Records(records, args.num, run.tokenizer)
        for name, length in templates.records:
            owner = f"sample.infill record {name!r}"
            check_context(owner, length, run, sampler, extrapolate=args.extrapolate)
        return templates
    check_context("sample.length", args.length, run, sampler, extrapolate=args.extrapolate)
    if args.motif is None:
        return Blanks(args.num, args.length, run.process.unknown_id)
    motifs = [Motif.parse(text) for text in args.motif]
    return Scaffolds(motifs, args.num, args.length, run.tokenizer)


def check_context(
    owner: str, length: int, run: Run, sampler: Sampler, *, extrapolate: bool
) -> None:
    """Refuse a sequence of which the network would see more than it can, or has learnt to.

    Args:
        owner: What has that length, for the message.
        length: Tokens of the sequence; a sampler that slides a window shows fewer at a time.
        run: The run.
        sampler: How it will be drawn.
        extrapolate: Whether to go beyond the length of the training rows.

    Raises:
        ValueError: If it is too long.
    """
    seen = sampler.context_length(length)
    unit = run.datamodule.token_name
    bound, learnt = run.max_length, run.datamodule.context_length
    window = min(limit for limit in (bound, learnt, seen) if limit is not None)
    slide = (
        "or slide a window: --sampler semi_autoregressive "
        f"--window {window} --stride {max(1, window // 2)}"
    )
    from seqdiff.samplers import BlockSampler

    if isinstance(sampler, BlockSampler):
        slide = f"or let it look back less far: --window {window}"
    if bound is not None and seen > bound:
        raise ValueError(
            f"{owner} must be at most {bound:,} {unit}s, all that the network of {run.directory} "
            f"takes at a time, got {length:,}; shorten it, {slide}"
        )
    if learnt is not None and seen > learnt and not extrapolate:
        raise ValueError(
            f"{owner} must be at most {learnt:,} {unit}s, the context that {run.directory} was "
            f"trained with, got {length:,}; shorten it, add --extrapolate, {slide}"
        )


def check_trace(path: Path, out: Path) -> None:
    """Refuse, before slow work, a file that a trace cannot be written to.

    Args:
        path: Where the trace goes.
        out: Where the sequences go.

    Raises:
        OSError: If it cannot be written.
        ValueError: If its suffix is another than npz, or both are one file.
    """
    if path.suffix != ".npz":
        raise ValueError(f"sample.trace must end in .npz, got {path}; rename it")
    check_apart("sample.trace", path, {"--out": out})
    check_parent("sample.trace", path)


def save_trace(
    path: Path, recorder: Recorder, sampler: Sampler, names: list[str], tokenizer: Tokenizer
) -> None:
    """Write what a recorder kept.

    Args:
        path: Where to.
        recorder: Saw all sequences.
        sampler: What drew them.
        names: Of the sequences.
        tokenizer: Says what each id decodes to.

    Raises:
        OSError: If the file cannot be written.
    """
    import numpy as np

    from seqdiff.samplers import sampler_name
    from seqdiff.trace import write_trace

    symbols = [tokenizer.decode(np.array([i])) for i in range(tokenizer.vocab_size + 1)]
    name = sampler_name(type(sampler))
    write_trace(path, recorder.trace(sampler=name, names=names, symbols=symbols))


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
    from seqdiff.cli.drawing import check_memory, conjoin, draw, fit_sampler, guide, open_run
    from seqdiff.cli.terminal import choose_device
    from seqdiff.samplers import Recorder, check_room

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
