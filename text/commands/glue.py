"""``seqdiff glue``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from seqdiff.cli.options import Several, check_count

if TYPE_CHECKING:
    from rich.table import Table

    from text.evaluation import Example, Outcome, Task
    from text.pretrained import BertBackbone


def glue(
    model: str,
    /,
    *,
    task: Literal["sst2", "cola", "rte"],
    train: Path,
    dev: Path,
    lr: Annotated[tuple[float, ...], Several] = (2e-5, 3e-5, 5e-5),
    seeds: int = 3,
    epochs: int = 3,
    batch_size: int = 32,
    max_length: int = 128,
    device: str | None = None,
) -> None:
    """Fine-tune a BERT, before or after masked diffusion, on a task of GLUE.

    Args:
        model: Run whose backbone is a text.pretrained.BertBackbone, or a BERT checkpoint.
        task: Task of GLUE.
        train: Table of the training examples, .tsv.
        dev: Table of the dev examples, .tsv.
        lr: Learning rates.
        seeds: Seeds for each learning rate.
        epochs: Epochs, of which the best on dev counts.
        batch_size: Examples of a step.
        max_length: Tokens of an example; longer ones are cut.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If the model or a file cannot be used.
    """
    rates = list(lr)
    for name, count in (("seeds", seeds), ("epochs", epochs), ("batch_size", batch_size)):
        check_count(f"glue.{name}", count)
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ValueError(f"glue.lr must be above 0, got {rate}; 3e-5 is usual")
    from rich.console import Console

    from seqdiff.run import choose_device
    from text.evaluation import TASKS, read_task

    chosen = TASKS[task]
    examples = [
        read_task(f"glue.{name}", chosen, path) for name, path in (("train", train), ("dev", dev))
    ]
    place = choose_device(device)
    backbone = _backbone(model)
    assert backbone.max_length is not None
    if not 4 <= max_length <= backbone.max_length:
        raise ValueError(
            f"glue.max_length must be in 4..{backbone.max_length}, the model's context, got "
            f"{max_length}; 128 is usual"
        )
    outcomes = _outcomes(
        model, backbone.to(place), chosen, examples, rates, seeds, epochs, batch_size, max_length
    )
    title = f"{model} on {chosen.title}: {len(examples[0]):,} train, {len(examples[1]):,} dev"
    Console().print(build_table(chosen, outcomes, title, len(examples[1])))


def _outcomes(
    model: str,
    backbone: BertBackbone,
    task: Task,
    examples: list[list[Example]],
    rates: list[float],
    seeds: int,
    epochs: int,
    batch_size: int,
    max_length: int,
) -> list[Outcome]:
    """Fine-tune for every rate and seed, under a bar."""
    from seqdiff.progress import progress
    from text.evaluation import Recipe, encode, fine_tune, summarise
    from text.pretrained import load_tokenizer

    owner = f"glue.model: the checkpoint of {model}, for its tokenizer,"
    tokenizer = load_tokenizer(owner, backbone.checkpoint)
    rows = [encode(tokenizer, part, max_length) for part in examples]
    outcomes = []
    with progress() as bar:
        total = len(examples[0]) * epochs * seeds * len(rates)
        bar_task = bar.add_task("fine-tuning", total=total)
        for lr in rates:
            runs = [
                fine_tune(
                    backbone.encoder,
                    backbone.width,
                    *rows,
                    lr=lr,
                    seed=seed,
                    recipe=Recipe(epochs, batch_size),
                    progress=lambda count: bar.advance(bar_task, count),
                )
                for seed in range(seeds)
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
