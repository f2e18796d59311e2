"""Draws docs/figures/comparisons.svg from benchmarks/results/objectives."""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "objectives"
SYSTEMS = ("ar", "mdlm", "sedd", "d3pm", "udlm", "gidd", "plaid")


def main(path: str) -> None:
    """Draw the figure."""
    tables = {name: json.loads((RESULTS / f"dna-{name}-0.json").read_text()) for name in SYSTEMS}
    points = []
    for name, table in tables.items():
        first = table["test"]["rows"][0]
        kind = "exact" if "exact" in first["name"] else "upper bound"
        points.append((name, first, "#1b9e77" if kind == "exact" else "#7570b3", kind))
    for row in tables["mdlm"]["test"]["rows"][1:]:
        if row["name"].endswith(("order 2", "order 5", "order 8")) or "interpolated" in row["name"]:
            points.append((row["name"], row, "#666666", "counts"))
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    seen = set()
    for place, (_, row, colour, kind) in enumerate(points):
        axes.errorbar(
            row["bits_per_token"],
            -place,
            xerr=1.96 * row["bits_per_token_error"],
            fmt="o",
            color=colour,
            label=None if kind in seen else kind,
        )
        seen.add(kind)
    axes.set_yticks([-place for place in range(len(points))], [name for name, *_ in points])
    axes.set_xlabel("bits per base on chr20, with 95% intervals")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/comparisons.svg")
