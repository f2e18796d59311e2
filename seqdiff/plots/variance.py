"""The heat map of the variance of an estimate under each interval of mask fractions."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from seqdiff.plots.colors import PALETTE, ink
from seqdiff.training import Interval, Variances

_SCALE = "viridis"
_LEAST, _IN_USE = PALETTE[3], PALETTE[4]


def draw_variances(
    found: Variances, title: str, unit: str, in_use: Interval | None = None
) -> Figure:
    """Draw a cell for each interval: beta from top to bottom, width from left to right.

    Colours are on a logarithmic scale unless a variance is 0.

    Args:
        found: The variances.
        title: Above the picture.
        unit: Unit of the variances.
        in_use: An interval to mark beside the least.
    """
    betas = sorted({interval.beta for interval in found.intervals})
    widths = sorted({_width(interval) for interval in found.intervals})
    low, high = float(found.values.min()), float(found.values.max())
    norm = (LogNorm if low > 0 else Normalize)(low, high if high > low else low + 1)
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    axes = figure.subplots()
    for i, interval in enumerate(found.intervals):
        column, row = widths.index(_width(interval)), betas.index(interval.beta)
        color = np.array(colormaps[_SCALE](norm(found.values[i])))
        axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=color, linewidth=0))
        shade = (255 * color).round().astype(np.uint8)
        text = f"{found.values[i]:.3g}\n{interval}"
        axes.text(column, row, text, color=ink(shade), size=7, ha="center", va="center")
    marks = [(found.intervals[found.least], _LEAST, "-", "least")]
    if in_use is not None and in_use in found.intervals:
        marks.append((in_use, _IN_USE, ":", "in use at the end of training"))
    for interval, color, style, label in marks:
        corner = (widths.index(_width(interval)) - 0.47, betas.index(interval.beta) - 0.47)
        edge = {"fill": False, "edgecolor": color, "linewidth": 2.5, "linestyle": style}
        axes.add_patch(Rectangle(corner, 0.94, 0.94, label=label, **edge))
    axes.set_xlim(-0.5, len(widths) - 0.5)
    axes.set_ylim(len(betas) - 0.5, -0.5)
    axes.set_xticks(range(len(widths)), labels=[f"{width:g}" for width in widths])
    axes.set_yticks(range(len(betas)), labels=[f"{beta:g}" for beta in betas])
    axes.set_xlabel("width: omega - beta")
    axes.set_ylabel("beta")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    figure.colorbar(ScalarMappable(norm, _SCALE), ax=axes, label=f"variance, {unit}")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(title, size=10)
    return figure


def _width(interval: Interval) -> float:
    return round(interval.omega - interval.beta, 2)
