"""``seqdiff glue``."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from seqdiff.cells import say
from seqdiff.checks import check_count
from seqdiff.cli.options import Several
from seqdiff.files import check_folder

if TYPE_CHECKING:
    from seqdiff.backbones import HubBackbone


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
    out: Path | None = None,
    device: str | None = None,
) -> None:
    """Fine-tune a BERT model on a GLUE task.

    The model is a BERT checkpoint, or a run that continued to train one by masked diffusion.

    Args:
        model: Run whose backbone is a seqdiff.backbones.HubBackbone, or a BERT checkpoint.
        task: GLUE task.
        train: Table of the training examples, .tsv.
        dev: Table of the dev examples, .tsv.
        lr: Learning rates to try.
        seeds: Number of seeds for each learning rate.
        epochs: Number of epochs; the table shows the best epoch on dev.
        batch_size: Examples per step.
        max_length: Maximum number of tokens per example; longer examples are truncated.
        out: Folder for the results. If it is set, repeating the command resumes after an
            interruption.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If the model or a file cannot be used.
    """
    rates = list(dict.fromkeys(lr))
    for name, count in (("seeds", seeds), ("epochs", epochs), ("batch_size", batch_size)):
        check_count(f"glue.{name}", count)
    for rate in rates:
        if not 0 < rate < math.inf:
            raise ValueError(f"glue.lr must be above 0, got {rate}; 3e-5 is usual")
    if out is not None:
        check_folder("glue.out", out)
    from rich.console import Console

    from seqdiff.pretrained import load_tokenizer
    from seqdiff.run import choose_device
    from seqdiff.training import Ledger, check_converged, run_cells, write_tables
    from text.evaluation import TASKS, Recipe, build_table, cells, encode, read_task

    chosen = TASKS[task]
    examples = [
        read_task(f"glue.{name}", chosen, path) for name, path in (("train", train), ("dev", dev))
    ]
    place = choose_device(device)
    backbone = _backbone(model)
    if not 4 <= max_length <= backbone.positions:
        raise ValueError(
            f"glue.max_length must be between 4 and {backbone.positions}, the context of the "
            f"model, got {max_length}; 128 is usual"
        )
    owner = f"glue.model: the checkpoint of {model}, for its tokenizer,"
    tokenizer = load_tokenizer(owner, backbone.checkpoint)
    parts = [encode(tokenizer, part, max_length) for part in examples]
    recipes = [Recipe(rate, epochs, batch_size, seed) for rate in rates for seed in range(seeds)]
    todo = cells(backbone.to(place).encoder, backbone.width, chosen, parts, recipes)
    ledger = Ledger(None if out is None else out / "results.jsonl")
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    results = run_cells(todo, ledger)
    by_rate: dict[float, list[dict]] = {rate: [] for rate in rates}
    for recipe, result in zip(recipes, results, strict=True):
        by_rate[recipe.lr].append(result)
    title = f"{model} on {chosen.title}: {len(examples[0]):,} train, {len(examples[1]):,} dev"
    table, rows, notes = build_table(chosen, by_rate, title, len(examples[1]))
    Console().print(table.to_rich())
    print("\n".join(notes))
    if out is not None:
        write_tables(out, [table], rows, notes)
        say(f"{out}: results.jsonl (a line per run), table.json, table.md")
    check_converged("glue.lr", results)


def _backbone(name: str) -> HubBackbone:
    """Load the masked language model of a run, or a checkpoint."""
    from seqdiff.backbones import HubBackbone
    from seqdiff.run import load

    if (Path(name) / "run.yaml").is_file():
        backbone = load(name).denoiser.backbone
    else:
        backbone = HubBackbone.from_hub(name)
    if not isinstance(backbone, HubBackbone):
        raise ValueError(
            f"glue.model must be a run on seqdiff.backbones.HubBackbone, got {name} on "
            f"{type(backbone).__name__}; give another run, or a BERT checkpoint"
        )
    return backbone
