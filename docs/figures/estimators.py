"""Draws docs/figures/estimators.svg: standard deviation by network evaluations."""

import sys

import matplotlib.pyplot as plt
import torch
from chain import denoiser

from seqdiff.likelihood import BernoulliTime, ExactK, RandomOrderChain, StratifiedK, evaluate
from seqdiff.types import Batch

LENGTH, REPEATS = 16, 2000


def spread(estimator) -> tuple[float, float]:
    """Evaluations per row, and standard deviation over repeats, in nats per token."""
    row = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 0]]).expand(REPEATS, -1)
    batch = Batch(row, torch.ones_like(row, dtype=torch.bool), index=torch.arange(REPEATS))
    found = evaluate(denoiser(LENGTH, sharpness=2.0), [batch], estimator=estimator)
    return float(found.nfe.mean()), float(found.nats.std()) / LENGTH


def main(path: str) -> None:
    """Draw the figure."""
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    counts = (16, 32, 64, 128)
    kinds = {
        "bernoulli-time": [BernoulliTime(n) for n in counts],
        "exact-k": [ExactK(n) for n in counts],
        "stratified-k": [StratifiedK(n) for n in counts],
        "random-order-chain": [RandomOrderChain(n // LENGTH) for n in counts if n > LENGTH],
    }
    for (name, estimators), marker in zip(kinds.items(), "os^D", strict=True):
        points = [spread(estimator) for estimator in estimators]
        axes.plot(*zip(*points, strict=True), marker=marker, label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("network evaluations per row")
    axes.set_ylabel("standard deviation,\nnats per token")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/estimators.svg")
