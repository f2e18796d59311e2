"""What a user gives of the sequences to draw: a length, templates, motifs; for ``sample``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.commands import find_template_reader
from seqdiff.subcommands.common import check_count

if TYPE_CHECKING:
    from seqdiff.data.templates import Templates
    from seqdiff.run import Run
    from seqdiff.samplers import Sampler


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
    from seqdiff.data.motifs import Motif, Scaffolds
    from seqdiff.data.templates import Blanks, Records

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
    from seqdiff.samplers import BlockSampler

    seen = sampler.reach(length)
    unit = run.datamodule.token_name
    bound, learnt = run.max_length, run.datamodule.context_length
    window = min(limit for limit in (bound, learnt, seen) if limit is not None)
    slide = (
        "or slide a window: --sampler semi_autoregressive "
        f"--window {window} --stride {max(1, window // 2)}"
    )
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
