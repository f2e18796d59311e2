"""``seqdiff generative-perplexity``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.subcommands.common import add_device, check_count

from .drawn_samples import Drawing, add_drawing, refuse_drawing

if TYPE_CHECKING:
    from rich.table import Table

    from .generative_perplexity import GenerativePerplexity

help = "perplexity of samples under another model, beside their unigram entropy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.commands.Command``."""
    parser.add_argument(
        "samples",
        type=Path,
        metavar="RUN_OR_FILE",
        help="run directory to draw from; or a file: .txt, a sample a line or as seqdiff sample "
        "writes it, or .jsonl, a key text",
    )
    add_drawing(parser)
    parser.add_argument(
        "--model",
        default="openai-community/gpt2-large",
        metavar="DIR_OR_NAME",
        help="folder or hub name of an autoregressive model of transformers, with safetensors; "
        "default: openai-community/gpt2-large",
    )
    parser.add_argument(
        "--batch_size",
        type=int,
        default=8,
        metavar="B",
        help="windows of a call, and samples drawn at a time; default: 8",
    )
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``seqdiff.commands.Command``.

    Raises:
        ValueError: If the samples or the model cannot be used.
    """
    check_count("generative-perplexity.batch_size", args.batch_size)
    texts = [] if args.samples.is_dir() else _read(args)
    from rich.console import Console

    from seqdiff.subcommands.terminal import choose_device, progress

    from .generative_perplexity import generative_perplexity, windows
    from .judge import Judge

    device, title = choose_device(args.device), str(args.samples)
    drawing = None if texts else Drawing.open("generative-perplexity", args, device)
    judge = Judge.load("generative-perplexity.model", args.model)
    if drawing is not None:
        texts, title = drawing.draw(args.batch_size), str(drawing)
    samples = judge.encode(texts)
    lead = judge.bos is not None
    with progress() as bar:
        total = len(windows([len(sample) + lead for sample in samples], judge.context))
        task = bar.add_task("reading", total=total)
        result = generative_perplexity(
            judge.network.to(device),
            samples,
            vocab_size=judge.vocab_size,
            bos=judge.bos,
            context=judge.context,
            batch_size=args.batch_size,
            progress=lambda count: bar.advance(task, count),
        )
    notes = conventions(judge.bos_name, judge.context)
    Console().print(build_table(result, f"{title} under {args.model}", notes))


def _read(args: argparse.Namespace) -> list[str]:
    if not args.samples.exists():
        raise FileNotFoundError(
            f"generative-perplexity.samples must be a run directory or a file, got {args.samples}, "
            "which is neither; check the path"
        )
    from .samples import read_samples

    texts = read_samples("generative-perplexity.samples", args.samples)
    refuse_drawing("generative-perplexity", args)
    return texts


def conventions(bos_name: str | None, context: int | None) -> tuple[str, ...]:
    """Say how samples were read.

    Args:
        bos_name: Spelling of the token before each sample, if there is one.
        context: Most tokens that the model reads at once.
    """
    first = f"predicted after {bos_name}" if bos_name else "given, not counted"
    reach = (
        "whole samples are read at once"
        if context is None
        else f"read {context:,} tokens at once, moved on by {max(1, context // 2):,} if longer"
    )
    return (
        "tokenised anew by the model's tokenizer; entropy is of these tokens within a sample",
        f"first token of a sample: {first}; {reach}",
        "± SE is over samples; low perplexity with little entropy is a failure, not a success",
    )


def build_table(result: GenerativePerplexity, title: str, notes: tuple[str, ...]) -> Table:
    """Lay the numbers out for a terminal, the entropy always among them.

    Args:
        result: The numbers.
        title: Above the table.
        notes: Below it.
    """
    from rich.table import Table

    likelihood = result.likelihood
    tokens = int(likelihood.num_tokens.sum())
    rows = (
        ("perplexity", result.perplexity, result.perplexity_error),
        ("nats/token", likelihood.nats_per_token, result.nats_per_token_error),
        ("unigram entropy, nats", float(result.entropy.mean()), result.entropy_error),
        ("least entropy of a sample", float(result.entropy.min()), None),
    )
    counted = f"{len(result.entropy):,} samples, {tokens:,} tokens predicted"
    without = len(result.entropy) - len(likelihood.nats)
    if without:
        counted += f", none in {without:,} of the samples, which the perplexity leaves out"
    table = Table(title=f"{title}: {counted}", caption="\n".join(notes))
    table.add_column("")
    for heading in ("mean", "± SE"):
        table.add_column(heading, justify="right")
    for name, mean, error in rows:
        table.add_row(name, f"{mean:.4f}", "" if error is None else f"{error:.4f}")
    return table
