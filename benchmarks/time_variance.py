"""Variance of the loss over batches, with independent times and with times spread over a batch.

Reads a trained masked diffusion run, draws the same batches of its training split with each time
sampler, and prints the variance over batches of the loss in nats per token, with its ratio to that
of independent times. It times nothing, so the machine may be busy.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import begin, make_parser, positive, print_table, write_json
from seqdiff.objectives import VDM, ContinuousNELBO, Sobol, Stratified, Uniform, WeightedMLM
from seqdiff.rng import CounterNoise
from seqdiff.run import load


@torch.no_grad()
def main(arguments: list[str] | None = None) -> None:
    """Print one line per time sampler and write them as JSON if a path is given."""
    parser = make_parser(__doc__)
    parser.add_argument("run", type=Path, help="directory of a run")
    parser.add_argument("--batches", type=positive, default=256)
    options = parser.parse_args(arguments)
    described = begin()
    run = load(options.run)
    size = run.datamodule.batch_size
    objectives = {
        "independent times": ContinuousNELBO(Uniform()),
        "stratified over a batch": ContinuousNELBO(Stratified(size)),
        "VDM's grid over a batch": ContinuousNELBO(VDM(size)),
        "Sobol's sequence": ContinuousNELBO(Sobol()),
        "exact number of masks": WeightedMLM(),
    }
    losses: dict[str, list[float]] = {name: [] for name in objectives}
    for batch in islice(run.datamodule.training_loader(), options.batches):
        for name, objective in objectives.items():
            terms = objective.terms(run.denoiser, batch, CounterNoise(run.config.seed))
            losses[name].append(float(terms.sum() / batch.num_tokens.sum()))
    first = np.array(losses["independent times"])
    generator = np.random.default_rng(0)
    picks = generator.integers(0, len(first), (1000, len(first)))
    rows, results = [], {}
    for name, found in losses.items():
        values = np.array(found)
        ratio = first.var(ddof=1) / values.var(ddof=1)
        spread = np.std(first[picks].var(axis=1, ddof=1) / values[picks].var(axis=1, ddof=1))
        results[name] = {
            "mean": values.mean(),
            "variance": values.var(ddof=1),
            "ratio": ratio,
            "ratio_error": spread,
        }
        variance = f"{values.var(ddof=1):.5f}"
        rows.append((name, f"{values.mean():.4f}", variance, f"{ratio:.2f}x ± {spread:.2f}"))
    print_table(("times", "nats/token", "variance of a batch", "less than independent"), rows)
    settings = {"run": options.run.name, "batches": options.batches, "batch_size": size}
    write_json(options.json, "time_variance", described, settings, results)


if __name__ == "__main__":
    main()
