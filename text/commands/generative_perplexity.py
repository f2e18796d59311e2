"""``seqdiff generative-perplexity``."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.options import add_device, check_count, check_seed

if TYPE_CHECKING:
    import torch
    from rich.table import Table

    from seqdiff.run import Run
    from seqdiff.samplers import Sampler
    from text.evaluation import GenerativePerplexity

_NUM = 64
_OPTIONS = ("num_samples", "length", "extrapolate", "sampler", "seed")


def add_drawing(parser: argparse.ArgumentParser) -> None:
    """Declare what a run can be told, as ``seqdiff sample`` is."""
    parser.epilog = (
        "Beside a RUN any option of the sampler may follow, for example --temperature 0.8; "
        "seqdiff samplers NAME lists them."
    )
    parser.add_argument(
        "--num_samples", type=int, metavar="N", help=f"to draw from a RUN; default: {_NUM}"
    )
    parser.add_argument(
        "--length", type=int, metavar="L", help="tokens in each; default: those of a training row"
    )
    parser.add_argument(
        "--extrapolate",
        action="store_true",
        default=None,
        help="draw samples longer than those that the run was trained on",
    )
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="one of those that seqdiff samplers lists; default: that of seqdiff sample for "
        "such a run",
    )
    parser.add_argument("--seed", type=int, help="of the draws; default: 0")
    parser.set_defaults(flags=[])


def refuse_drawing(owner: str, args: argparse.Namespace) -> None:
    """Refuse what a file of samples has no use for.

    Args:
        owner: The command, for the message.
        args: What was given.

    Raises:
        ValueError: If any of it was given.
    """
    given = [f"--{name}" for name in _OPTIONS if getattr(args, name) is not None]
    if args.flags:
        raise ValueError(
            f"{owner}: unrecognized arguments: {' '.join(args.flags)}; options of a sampler go "
            f"with a RUN to draw from, got the file {args.samples}"
        )
    if given:
        raise ValueError(
            f"{owner}: {', '.join(given)} must come with a RUN to draw from, got the file "
            f"{args.samples}; leave out, or give a run directory"
        )


@dataclass(frozen=True)
class Drawing:
    """A run that is about to draw.

    Attributes:
        run: The run.
        sampler: How.
        num: Samples.
        length: Tokens in each.
        seed: Of the draws.
    """

    run: Run
    sampler: Sampler
    num: int
    length: int
    seed: int

    @classmethod
    def open(cls, owner: str, args: argparse.Namespace, device: torch.device) -> Drawing:
        """Load what was asked for, and refuse what cannot be drawn.

        Args:
            owner: The command, for the messages.
            args: What was given.
            device: Where the network goes.

        Raises:
            OSError: If there is no such run.
            ValueError: If the run is not one of text, an option does not fit, or the samples are
                too long.
        """
        num = _NUM if args.num_samples is None else args.num_samples
        seed = 0 if args.seed is None else args.seed
        check_count(f"{owner}.num_samples", num)
        check_seed(f"{owner}.seed", seed)
        if args.length is not None:
            check_count(f"{owner}.length", args.length)
        from seqdiff.cli.drawing import check_memory, fit_sampler, open_run
        from seqdiff.cli.sample import check_context
        from text.corpora import TextDataModule

        run, sampler = open_run(args.samples, args.sampler, args.flags, device)
        if not isinstance(run.datamodule, TextDataModule):
            raise ValueError(
                f"{owner}.samples must be a run on text, got {args.samples}, a run on "
                f"{type(run.datamodule).__name__}; choose another"
            )
        extrapolate = bool(args.extrapolate)
        sampler = fit_sampler(sampler, run, stop=None, extrapolate=extrapolate)
        length = args.length or run.datamodule.length
        check_context(f"{owner}.length", length, run, sampler, extrapolate=extrapolate)
        check_memory(min(num, args.batch_size), length, device)
        return cls(run, sampler, num, length, seed)

    def draw(self, batch_size: int) -> list[str]:
        """Draw the samples, ``batch_size`` at a time, on which they do not depend."""
        from seqdiff.cli.drawing import draw
        from seqdiff.data import Blanks

        blanks = Blanks(self.num, self.length, self.run.process.unknown_id)
        drawn = draw(self.run, self.sampler, blanks, seed=self.seed, batch_size=batch_size)
        return drawn.sequences

    def __str__(self) -> str:
        """What was drawn, for the title of a report."""
        from seqdiff.samplers import sampler_name

        unit = self.run.datamodule.token_name
        name = sampler_name(type(self.sampler))
        return f"{self.run.directory}, {self.length:,} {unit}s by {name}, seed {self.seed},"


help = "perplexity of samples under another model, beside their unigram entropy"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.cli.commands.Command``."""
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
    """See ``seqdiff.cli.commands.Command``.

    Raises:
        ValueError: If the samples or the model cannot be used.
    """
    check_count("generative-perplexity.batch_size", args.batch_size)
    texts = [] if args.samples.is_dir() else _read(args)
    from rich.console import Console

    from seqdiff.cli.terminal import choose_device, progress
    from text.evaluation import Judge, generative_perplexity, windows

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
    from text.corpora import read_samples

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
