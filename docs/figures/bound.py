"""Draws docs/figures/bound.svg: the cost of a token by the number of masks."""

import itertools
import sys

import matplotlib.pyplot as plt
import torch
from chain import all_rows, denoiser, log_prob, token_nats

LENGTH = 8


def costs(sharpness: float) -> list[float]:
    """Mean -log p(token | visible tokens) under the source, for 1 ... L masks, by enumeration."""
    rows, model = all_rows(LENGTH), denoiser(LENGTH, sharpness)
    weight = log_prob(rows).exp()
    found = []
    for number in range(1, LENGTH + 1):
        sets = itertools.combinations(range(LENGTH), number)
        found.append(torch.stack([weight @ token_nats(model, rows, one).mean(1) for one in sets]))
    return [float(one.mean()) for one in found]


def main(path: str) -> None:
    """Draw the figure."""
    weight = log_prob(all_rows(LENGTH)).exp()
    entropy = -float(weight @ weight.log()) / LENGTH
    figure, axes = plt.subplots(figsize=(6.4, 3.4), layout="constrained")
    for shift, sharpness, name, colour in (
        (-0.2, 1.0, "exact network", "#1b9e77"),
        (0.2, 2.0, "overconfident network", "#d95f02"),
    ):
        bars = costs(sharpness)
        label = f"{name}: mean {sum(bars) / LENGTH:.3f}"
        axes.bar(
            [k + 1 + shift for k in range(LENGTH)], bars, width=0.38, color=colour, label=label
        )
    axes.axhline(entropy, color="black", label=f"entropy of the source: {entropy:.3f}")
    axes.set_xlabel(f"masked tokens of {LENGTH}")
    axes.set_ylabel("cost of a masked token, nats")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/bound.svg")
