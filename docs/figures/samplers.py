"""Draws docs/figures/samplers.svg: how far each sampler is from the model's distribution."""

import sys

import matplotlib.pyplot as plt
import torch
from chain import all_rows, denoiser, model_prob

from seqdiff.samplers import AncestralSampler, ConfidenceSampler, FirstHittingSampler

LENGTH, DRAWS = 8, 40_000


def distance(tokens: torch.Tensor, exact: torch.Tensor) -> float:
    """Total variation distance between drawn rows and the exact distribution."""
    places = 2 ** torch.arange(LENGTH - 1, -1, -1)
    found = torch.bincount((tokens * places).sum(1), minlength=2**LENGTH) / len(tokens)
    return float((found - exact).abs().sum()) / 2


def main(path: str) -> None:
    """Draw the figure."""
    model = denoiser(LENGTH, sharpness=2.0)
    rows = all_rows(LENGTH)
    exact = model_prob(model, rows)
    figure, axes = plt.subplots(figsize=(6, 3.4), layout="constrained")
    kinds = {
        "ancestral": [AncestralSampler(num_steps=n) for n in (1, 2, 4, 8, 16, 32, 64, 128)],
        "first_hitting with num_steps": [FirstHittingSampler(num_steps=n) for n in (1, 2, 4)],
        "first_hitting": [FirstHittingSampler()],
        "confidence": [ConfidenceSampler()],
    }
    for (name, samplers), marker in zip(kinds.items(), "osD^", strict=True):
        points = []
        for sampler in samplers:
            noise = torch.Generator().manual_seed(0)
            drawn = sampler.sample(model, model.process.blank((DRAWS, LENGTH)), generator=noise)
            points.append((float(drawn.nfe.double().mean()), distance(drawn.tokens, exact)))
        axes.plot(*zip(*points, strict=True), marker=marker, label=name)
    ideal = rows[torch.multinomial(exact, DRAWS, True, generator=torch.Generator().manual_seed(1))]
    axes.axhline(distance(ideal, exact), color="grey", linestyle=":", label="exact draws")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("network evaluations per row")
    axes.set_ylabel("total variation distance")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/samplers.svg")
