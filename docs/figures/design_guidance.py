"""Draws docs/figures/design_guidance.svg: designs by the strength of guidance."""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
TABLES = {
    "E. coli promoters": ("ecoli_165bp", "#1b9e77"),
    "retina enhancers": ("crx_retina_164bp", "#d95f02"),
}
PANELS = {
    "Pearson, wanted and predicted": lambda row: row["pearson"][0],
    "6-mer JS distance to real rows": lambda row: row["js_distance_6"],
    "edit distance of two designs": lambda row: row["diversity"],
}


def main(path: str) -> None:
    """Draw the mean over seeds, each seed as a dot, and real rows as a dashed line."""
    figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.0), layout="constrained")
    for name, (table, colour) in TABLES.items():
        (file,) = RESULTS.glob(f"design-{table}-*.json")
        sets = json.loads(file.read_text())["results"]["sets"]
        seeds = defaultdict(list)
        for label, row in sets.items():
            if found := re.fullmatch(r"seqdiff-\d+, guidance ([\d.]+)", label):
                seeds[float(found[1])].append(row)
        strengths = sorted(seeds)
        for axis, (title, value) in zip(axes, PANELS.items(), strict=True):
            means = [fmean(map(value, seeds[strength])) for strength in strengths]
            axis.plot(strengths, means, color=colour, label=name)
            for strength in strengths:
                dots = [value(row) for row in seeds[strength]]
                axis.plot([strength] * len(dots), dots, ".", color=colour, markersize=4)
            axis.axhline(value(sets["real test rows"]), color=colour, linestyle="--", linewidth=1)
            axis.set_title(title, fontsize=9)
            axis.set_xlabel("strength of guidance")
            axis.spines[["top", "right"]].set_visible(False)
    axes[2].set_ylim(80, 95)
    axes[2].legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/design_guidance.svg")
