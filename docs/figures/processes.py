"""Draws docs/figures/processes.svg: one row of DNA under three kinds of noise."""

import sys

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.colors import ListedColormap

from seqdiff.process import Absorbing, Hybrid, Uniform

ROW = "ACGTTGCATGACCGTTAAGCTTGACCATGCAA"
COLOURS = ["#1b9e77", "#7570b3", "#e6ab02", "#d95f02", "#dddddd"]


def states(process, times: int = 12) -> np.ndarray:
    """The same row at rising times; a token that became noise stays noise."""
    x0 = torch.tensor(["ACGT".index(base) for base in ROW])[None]
    at = torch.linspace(0, 1, times).expand(1, times).T
    noise = torch.rand(x0.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return torch.cat([process.corrupt(x0, t, noise=noise) for t in at]).numpy()


def main(path: str) -> None:
    """Draw the figure."""
    figure, panels = plt.subplots(1, 3, figsize=(9, 2.6), layout="constrained")
    processes = (Absorbing(4), Uniform(4), Hybrid(4, p_u=0.3))
    for axes, process in zip(panels, processes, strict=True):
        axes.imshow(states(process), cmap=ListedColormap(COLOURS), vmin=0, vmax=4, aspect="auto")
        axes.set_title(process.name, fontsize=10)
        axes.set_xlabel("position")
        axes.set_yticks([0, 11], ["t = 0", "t = 1"])
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in COLOURS]
    figure.legend(handles, [*"ACGT", "mask"], ncol=5, loc="outside lower center", frameon=False)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/processes.svg")
