"""``seqdiff glue``."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.cli.options import add_device, check_count

if TYPE_CHECKING:
    from rich.table import Table

    from text.evaluation import Example, Outcome, Task
    from text.pretrained import BertBackbone

help = "fine-tune a BERT, before or after masked diffusion, on a task of GLUE and measure it"

_TASKS = ("sst2", "cola", "rte")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``seqdiff.cli.commands.Command``."""
    parser.add_argument(
        "model",
        metavar="RUN_OR_DIR",
        help="run whose backbone is a text.pretrained.BertBackbone, or a BERT checkpoint itself",
    )
    parser.add_argument("--task", choices=_TASKS, required=True)
    for split in ("train", "dev"):
        parser.add_argument(f"--{split}", type=Path, required=True, metavar="TSV")
    parser.add_argument(
        "--lr", type=float, nargs="+", default=[2e-5, 3e-5, 5e-5], help="default: 2e-5 3e-5 5e-5"
    )
    for name, value, text in (
        ("seeds", 3, "of each learning rate"),
        ("epochs", 3, "of which the best on dev counts"),
        ("batch_size", 32, "examples of a step"),
        ("max_length", 128, "tokens of an example, the rest is cut"),
    ):
        parser.add_argument(
            f"--{name}", type=int, default=value, metavar="N", help=f"{text}; default: {value}"
        )
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    """See ``seqdiff.cli.commands.Command``.

    Raises:
        ValueError: If the model or a file cannot be used.
    """
    for name in ("seeds", "epochs", "batch_size"):
        check_count(f"glue.{name}", getattr(args, name))
    for lr in args.lr:
        if not 0 < lr < math.inf:
            raise ValueError(f"glue.lr must be above 0, got {lr}; 3e-5 is usual")
    from text.evaluation import TASKS, read_task

    task = TASKS[args.task]
    train, dev = (read_task(f"glue.{s}", task, getattr(args, s)) for s in ("train", "dev"))
    from rich.console import Console

    from seqdiff.cli.terminal import choose_device

    device = choose_device(args.device)
    backbone = _backbone(args.model)
    if not 4 <= args.max_length <= backbone.max_length:
        raise ValueError(
            f"glue.max_length must be in 4..{backbone.max_length}, the model's context, got "
            f"{args.max_length}; 128 is usual"
        )
    outcomes = _outcomes(args, backbone.to(device), task, train, dev)
    title = f"{args.model} on {task.title}: {len(train):,} train, {len(dev):,} dev"
    Console().print(build_table(task, outcomes, title, len(dev)))


def _outcomes(
    args: argparse.Namespace,
    backbone: BertBackbone,
    task: Task,
    train: list[Example],
    dev: list[Example],
) -> list[Outcome]:
    """Fine-tune for every rate and seed, under a bar."""
    from seqdiff.cli.terminal import progress
    from text.evaluation import Recipe, encode, fine_tune, summarise
    from text.pretrained import load_tokenizer

    owner = f"glue.model: the checkpoint of {args.model}, for its tokenizer,"
    tokenizer = load_tokenizer(owner, backbone.checkpoint)
    rows = [encode(tokenizer, part, args.max_length) for part in (train, dev)]
    outcomes = []
    with progress() as bar:
        total = len(train) * args.epochs * args.seeds * len(args.lr)
        bar_task = bar.add_task("fine-tuning", total=total)
        for lr in args.lr:
            runs = [
                fine_tune(
                    backbone.encoder,
                    backbone.width,
                    *rows,
                    lr=lr,
                    seed=seed,
                    recipe=Recipe(args.epochs, args.batch_size),
                    progress=lambda count: bar.advance(bar_task, count),
                )
                for seed in range(args.seeds)
            ]
            outcomes.append(summarise(task, lr, runs))
    return outcomes


def _backbone(name: str) -> BertBackbone:
    """Take the BERT out of a run, or load a checkpoint as it is."""
    from text.pretrained import BertBackbone, load_config

    if not (Path(name) / "run.yaml").is_file():
        size = load_config("glue.model", name).vocab_size
        return BertBackbone(name, num_embeddings=size + 1, num_logits=size)
    from seqdiff.run import load

    backbone = load(name).denoiser.backbone
    if not isinstance(backbone, BertBackbone):
        raise ValueError(
            f"glue.model must be a run on text.pretrained.BertBackbone, got {name} on "
            f"{type(backbone).__name__}; train one, or give a BERT checkpoint"
        )
    return backbone


def build_table(task: Task, outcomes: list[Outcome], title: str, dev_size: int) -> Table:
    """Lay out a line for each learning rate, the best marked, and the published number.

    Args:
        task: The task.
        outcomes: One for each rate.
        title: Above the table.
        dev_size: Examples that were measured on.
    """
    from rich.table import Table

    best = max(outcomes, key=lambda outcome: outcome.mean)
    other = (
        f"dev has {dev_size:,} examples, the published one {task.dev_size:,}: it is another set,",
        "and the published number does NOT compare",
    )
    notes = (
        f"{task.metric} on dev times 100, the best epoch of each seed, ± SE over seeds; epoch and",
        "rate are chosen on dev, so the best is flattered; published: after 5,000 steps on C4",
        *(other if dev_size != task.dev_size else ()),
    )
    table = Table(title=title, caption="\n".join(notes))
    others = list(best.others)
    for heading in ("lr", task.metric, "± SE", "seeds", *others, "best epochs"):
        table.add_column(heading, justify="right")
    for outcome in outcomes:
        error = outcome.standard_error
        table.add_row(
            f"{outcome.lr:g}{' *' if outcome is best else ''}",
            f"{outcome.mean:.2f}",
            "" if error is None else f"{error:.2f}",
            str(len(outcome.values)),
            *(f"{outcome.others[name]:.2f}" for name in others),
            " ".join(map(str, outcome.epochs)),
        )
    table.add_row("published MDLM", f"{task.published:.2f}", "", "", *("" for _ in others), "")
    return table
