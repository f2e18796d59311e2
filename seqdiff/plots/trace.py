"""The picture of a trace: every step of one sequence, and how many positions are masked."""

from __future__ import annotations

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from seqdiff.plots.colors import Colors, spell
from seqdiff.plots.film import Film, develop
from seqdiff.trace import Trace

MAX_STEPS, MAX_POSITIONS = 1024, 1024  # about as many as the image has dots
_MAX_LETTERS = (52, 72)  # steps and positions whose letters can still be read


def draw_trace(trace: Trace, row: int) -> Figure:
    """Draw one sequence, step by step from top to bottom.

    Of a long trace ``MAX_STEPS`` states and ``MAX_POSITIONS`` positions are drawn, evenly spread;
    the labels say so. The curve counts all positions at every step.

    Args:
        trace: The trace.
        row: Number of the sequence.

    Raises:
        ValueError: If there is no such sequence.
    """
    film = develop(trace, row, max_steps=MAX_STEPS, max_positions=MAX_POSITIONS)
    colors = Colors(trace.symbols)
    height = float(np.clip(1.9 + 0.14 * len(film.steps), 3.2, 9.0))
    figure = Figure(figsize=(10, height), layout="constrained")
    image, curve = figure.subplots(1, 2, sharey=True, width_ratios=(4, 1))
    picture = colors.paint(film.tokens, film.hidden_again)
    bottom, right = int(film.steps[-1]) + 0.5, film.length - 0.5
    image.imshow(picture, aspect="auto", interpolation="none", extent=(-0.5, right, bottom, -0.5))
    _add_letters(image, film, trace, picture)
    image.set_xlabel(share_label("position", len(film.positions), film.length, "positions"))
    image.set_ylabel(share_label("step", len(film.steps), len(film.masked), "states"))
    _add_curve(curve, film)
    for axis in (image.xaxis, image.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    colors.explain(figure, curve, hiding=bool(film.hidden_again.any()))
    figure.suptitle(title(film))
    return figure


def title(film: Film) -> str:
    """Name the sequence, the sampler and its number of steps."""
    steps = len(film.masked) - 1
    name = film.name.replace("$", r"\$")
    return f"{name}, drawn by {film.sampler} in {steps:,} step{'s' * (steps != 1)}"


def share_label(what: str, drawn: int, count: int, of: str) -> str:
    """Name an axis, and say if only a part of it is drawn."""
    return what if drawn == count else f"{what} ({drawn:,} of {count:,} {of} drawn)"


def ink(color: UInt8[np.ndarray, " 4"]) -> str:
    """Black or white, whichever is read more easily on a colour."""
    return "black" if color[:3] @ np.array([0.299, 0.587, 0.114]) > 140 else "white"


def _add_letters(axes: Axes, film: Film, trace: Trace, picture: UInt8[np.ndarray, "F P 4"]) -> None:
    """Write each letter where it appears, and all in the last state, if there is room."""
    steps, positions = film.tokens.shape
    if steps > _MAX_LETTERS[0] or positions > _MAX_LETTERS[1]:
        return
    new = np.ones_like(film.hidden_again)
    new[1:-1] = film.tokens[1:-1] != film.tokens[:-2]
    for step, position in np.argwhere(new & (film.tokens != trace.mask_id)):
        symbol = spell(trace.symbols[film.tokens[step, position]])
        if len(symbol) == 1:
            color = ink(picture[step, position])
            axes.text(position, step, symbol, color=color, size=7, ha="center", va="center")


def _add_curve(axes: Axes, film: Film) -> None:
    steps = np.arange(len(film.masked))
    axes.fill_betweenx(steps, film.masked, color="0.9")
    axes.plot(film.masked, steps, color="0.2", linewidth=1.2)
    axes.set_xlabel(f"masked positions of {film.length:,}")
    axes.set_xlim(0, max(1, film.masked.max()) * 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False, labelleft=False)
