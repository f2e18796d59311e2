"""Embeddings of measured values: Fourier features and an MLP, each alone and both together.

Each embedding is trained with the network of ``configs/experiment/genomics/design.yaml`` for the
same steps, on the same batches and masks, with each of ``--pairs`` seeds. The bound given the
values is computed on the same test rows with the same noise, and differences are taken seed by
seed. Run
``python -m benchmarks.signal_embedding ecoli.tsv.gz --signal log2_expr --work runs/embedding``.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import seqdiff
from benchmarks.common import begin, make_parser, positive, print_table, refuse, write_json
from seqdiff.backbones import base, layers
from seqdiff.cli import app

CONFIG = Path(__file__).parents[1] / "configs" / "experiment" / "genomics" / "design.yaml"


class OneLayer(layers.SignalEmbedding):
    """Fourier features and one layer in place of two."""

    def __init__(self, num_signals: int, d_model: int) -> None:
        super().__init__(num_signals, d_model)
        nn.init.normal_(self.hidden.weight, std=0.02)
        self.out = nn.Identity()


EMBEDDINGS: dict[str, Callable[[], Any]] = {
    "Fourier features and MLP": nullcontext,
    "MLP": lambda: patch.object(layers, "_FREQUENCIES", ()),
    "Fourier features": lambda: patch.object(base, "SignalEmbedding", OneLayer),
}


def measure(options: argparse.Namespace, name: str, seed: int) -> float:
    """Train with an embedding; return the bound given the values in bits per base."""
    run = options.work / f"{name.replace(' ', '-').lower()}-{seed}"
    kept = run / "bound.json"
    if kept.exists():
        return json.loads(kept.read_text())
    print(f"{run.name} ...", flush=True)
    steps = options.steps
    arguments = [
        *("train", CONFIG, f"--data.table={options.table}", f"--data.signals=[{options.signal}]"),
        *(f"--output={run}", f"--seed={seed}", f"--trainer.max_steps={steps}"),
        *(f"--trainer.val_check_interval={steps}", f"--checkpoint_every_n_steps={steps}"),
        *(() if options.group is None else (f"--data.group={options.group}",)),
    ]
    with EMBEDDINGS[name]():
        if app.main([str(argument) for argument in arguments]):
            raise SystemExit(2)
        loaded = seqdiff.load(run)
        bound = loaded.evaluate(given_signals=True, seed=0, evaluations=4).model.bits_per_token
    kept.write_text(json.dumps(bound) + "\n")
    return bound


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = make_parser(__doc__)
    parser.add_argument("table", type=Path, help="table with a sequence and a value in each row")
    parser.add_argument("--signal", required=True, help="column of the values")
    parser.add_argument("--group", help="column of groups, which splits never divide")
    parser.add_argument("--work", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--steps", type=positive, default=1000, help="training steps of each run")
    parser.set_defaults(pairs=3)
    options = parser.parse_args(argv)
    if options.pairs < 2:
        refuse("signal_embedding.pairs must be at least 2, for an error over seeds; ask for more")
    torch.set_num_threads(1)
    described = begin()
    bounds = {
        name: [measure(options, name, seed) for seed in range(options.pairs)] for name in EMBEDDINGS
    }
    reference = next(iter(bounds.values()))
    rows, results = [], {}
    for name, found in bounds.items():
        gaps = [ours - theirs for ours, theirs in zip(found, reference, strict=True)]
        mean, error = statistics.fmean(gaps), statistics.stdev(gaps) / len(gaps) ** 0.5
        results[name] = {"bits_per_base": found, "difference": mean, "standard_error": error}
        shown = "" if found is reference else f"{mean:+.4f} ± {error:.4f}"
        rows.append([name, *(f"{bound:.4f}" for bound in found), shown])
    print_table(["embedding", *(f"seed {seed}" for seed in range(options.pairs)), "gap"], rows)
    settings = {"table": options.table.name, "signal": options.signal, "steps": options.steps}
    write_json(options.json, "signal_embedding", described, settings, results)


if __name__ == "__main__":
    main()
