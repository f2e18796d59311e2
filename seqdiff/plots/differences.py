"""Differences to a reference, with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from seqdiff.plots.colors import PALETTE


def draw_differences(
    names: Sequence[str], differences: Sequence[float], half_widths: Sequence[float], label: str
) -> Figure:
    """Draw a line for each difference, from top to bottom, and its interval.

    Args:
        names: What each difference is of.
        differences: The differences.
        half_widths: Half the width of each interval.
        label: Below the axis of the differences.
    """
    figure = Figure(figsize=(7, 1.4 + 0.4 * len(names)), layout="constrained")
    axes = figure.subplots()
    for place, (gap, width) in enumerate(zip(differences, half_widths, strict=True)):
        color = PALETTE[1] if gap < 0 else PALETTE[3]
        axes.errorbar(gap, place, xerr=width, fmt="o", color=color, capsize=3)
    axes.axvline(0, color="0.5", linewidth=0.8)
    axes.set_yticks(range(len(names)), labels=list(names))
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    return figure
