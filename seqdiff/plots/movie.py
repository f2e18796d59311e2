"""The movie of a trace: the sequence as lines of letters that appear, frame by frame."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from seqdiff.plots.colors import Colors, spell
from seqdiff.plots.film import Film, develop
from seqdiff.plots.trace import ink, share_label, title
from seqdiff.trace import Trace

MAX_FRAMES, MAX_CELLS = 150, 16_384
_MAX_LETTERS = 600
_SECONDS, _LAST_SECONDS, _DPI = 8, 2, 90


def film_trace(path: Path, trace: Trace, row: int) -> Iterator[tuple[int, int]]:
    """Write a gif of one sequence, at most ``MAX_FRAMES`` of its states, evenly spread.

    All frames are in memory until the end, a megabyte each.

    Args:
        path: Where to; its folder exists.
        trace: The trace.
        row: Number of the sequence.

    Yields:
        After each frame how many are done, and of how many. The file is there at the end.

    Raises:
        ValueError: If there is no such sequence.
    """
    film = develop(trace, row, max_steps=MAX_FRAMES, max_positions=MAX_CELLS)
    screen = Screen(film, trace)
    count = len(film.steps)
    rate = min(max(count // _SECONDS, 2), 20)
    writer = PillowWriter(fps=rate)
    with writer.saving(screen.figure, str(path), _DPI):
        for frame in range(count):
            screen.show(frame)
            writer.grab_frame()
            yield frame + 1, count
        for _ in range(rate * _LAST_SECONDS):
            writer.grab_frame()


class Screen:
    """A figure that shows one state at a time.

    Attributes:
        figure: The figure.
        picture: What each state looks like, wrapped into lines.
    """

    def __init__(self, film: Film, trace: Trace) -> None:
        self._film = film
        self._symbols = [spell(symbol) for symbol in trace.symbols]
        colors = Colors(trace.symbols)
        self.picture = wrap(colors.paint(film.tokens, film.hidden_again))
        lines, width = self.picture.shape[1:3]
        height = float(np.clip(1.9 + 6.2 * lines / width, 3.0, 6.0))
        self.figure = Figure(figsize=(9, height), layout="constrained")
        cells, curve = self.figure.subplots(1, 2, width_ratios=(3, 1))
        extent = (0.5, width + 0.5, lines + 0.5, 0.5)
        self._image = cells.imshow(
            self.picture[-1], aspect="auto", interpolation="nearest", extent=extent
        )
        label = share_label("position", len(film.positions), film.length, "positions")
        cells.set_xlabel(f"{label}, in lines of {width:,}")
        cells.set_ylabel("line")
        for axis in (cells.xaxis, cells.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
        self._letters = self._add_letters(cells, width)
        self._dot = _add_curve(curve, film)
        self._title = self.figure.suptitle(self._caption(len(film.steps) - 1))
        colors.explain(self.figure, curve, hiding=bool(film.hidden_again.any()))
        self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")  # laid out once: frames must not tremble

    def show(self, frame: int) -> None:
        """Change the figure to another state."""
        picture, film = self.picture[frame], self._film
        self._image.set_data(picture)
        width = picture.shape[1]
        for position, letter in enumerate(self._letters):
            token = int(film.tokens[frame, position])
            symbol = "" if token == len(self._symbols) - 1 else self._symbols[token]
            letter.set_text(symbol if len(symbol) == 1 else "")
            letter.set_color(ink(picture[position // width, position % width]))
        step = int(film.steps[frame])
        self._dot.set_offsets([[step, film.masked[step]]])
        self._title.set_text(self._caption(frame))

    def _caption(self, frame: int) -> str:
        step = int(self._film.steps[frame])
        return f"{title(self._film)}\nstep {step:,}: {self._film.masked[step]:,} masked"

    def _add_letters(self, axes: Axes, width: int) -> list[Text]:
        count = len(self._film.positions)
        if count > _MAX_LETTERS:
            return []
        middle = {"ha": "center", "va": "center", "size": 8}
        return [axes.text(i % width + 1, i // width + 1, "", **middle) for i in range(count)]


def wrap(picture: UInt8[np.ndarray, "F P 4"]) -> UInt8[np.ndarray, "F lines width 4"]:
    """Break each state into lines, two and a half times as many letters as lines.

    The width is a multiple of ten; what is left of the last line is transparent.
    """
    frames, count = picture.shape[:2]
    width = min(count, 10 * math.ceil(math.sqrt(2.5 * count) / 10))
    lines = math.ceil(count / width)
    filled = np.zeros((frames, lines * width, 4), dtype=np.uint8)
    filled[:, :count] = picture
    return filled.reshape(frames, lines, width, 4)


def _add_curve(axes: Axes, film: Film) -> PathCollection:
    steps = np.arange(len(film.masked))
    axes.fill_between(steps, film.masked, color="0.9")
    axes.plot(steps, film.masked, color="0.2", linewidth=1.2)
    axes.set_xlabel("step")
    axes.set_ylabel(f"masked positions of {film.length:,}")
    axes.set_ylim(0, max(1, film.masked.max()) * 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    return axes.scatter([0], [film.masked[0]], color="#D55E00", zorder=3)
