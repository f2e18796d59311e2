"""The picture and the movie of a trace: one sequence, step by step."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Int64, Integer, UInt8
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from seqdiff.plots.colors import Colors, ink, spell
from seqdiff.trace import Trace

MAX_STEPS, MAX_POSITIONS = 1024, 1024  # about as many as the image has dots
_READABLE = (52, 72)  # steps and positions whose symbols are still readable
MAX_FRAMES, MAX_CELLS = 150, 16_384
_MAX_LETTERS = 600
_SECONDS, _LAST_SECONDS, _DPI = 8, 2, 90


@dataclass(frozen=True)
class Film:
    """One sequence of a trace, at some of its steps and some of its positions.

    Attributes:
        name: Name of the sequence.
        sampler: Name of the sampler.
        length: Tokens of the sequence.
        steps: The steps that are shown, with the first and the last; 0 is before the first.
        positions: The positions that are shown.
        tokens: Their tokens.
        hidden_again: True where masked but visible at an earlier step.
        masked: Masked positions of the whole sequence before the first step and after each.
    """

    name: str
    sampler: str
    length: int
    steps: Int64[np.ndarray, " F"]
    positions: Int64[np.ndarray, " P"]
    tokens: Integer[np.ndarray, "F P"]
    hidden_again: Bool[np.ndarray, "F P"]
    masked: Int64[np.ndarray, " S"]


def spread(count: int, limit: int) -> Int64[np.ndarray, " n"]:
    """Choose at most ``limit`` of ``0..count-1``, evenly, with both ends if there is room.

    Args:
        count: Number of candidates.
        limit: Largest number to choose, at least 1.
    """
    return np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64)


def develop(trace: Trace, row: int, *, max_steps: int, max_positions: int) -> Film:
    """Replay one sequence of a trace, and keep the states and positions that are shown.

    Args:
        trace: The trace.
        row: Number of the sequence.
        max_steps: States to keep at most, at least 2.
        max_positions: Positions to keep at most.

    Raises:
        ValueError: If there is no such sequence.
    """
    changes = list(trace.replay(row))
    length = int(trace.lengths[row])
    steps, positions = spread(len(changes) + 1, max_steps), spread(length, max_positions)
    now = trace.x_init[row, :length].copy()
    seen = now != trace.mask_id
    masked = np.empty(len(changes) + 1, dtype=np.int64)
    masked[0] = (~seen).sum()
    tokens = np.empty((len(steps), len(positions)), dtype=now.dtype)
    hidden = np.empty(tokens.shape, dtype=bool)
    shown = 0
    for step in range(len(changes) + 1):
        if step > 0:
            position, token = changes[step - 1]
            gone = (token == trace.mask_id).sum() - (now[position] == trace.mask_id).sum()
            masked[step] = masked[step - 1] + gone
            now[position] = token
            seen[position] |= token != trace.mask_id
        if shown < len(steps) and step == steps[shown]:
            tokens[shown] = now[positions]
            hidden[shown] = (tokens[shown] == trace.mask_id) & seen[positions]
            shown += 1
    return Film(trace.names[row], trace.sampler, length, steps, positions, tokens, hidden, masked)


# The picture


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
    _write_texts(image, film, trace, picture)
    image.set_xlabel(share_label("position", len(film.positions), film.length, "positions"))
    image.set_ylabel(share_label("step", len(film.steps), len(film.masked), "states"))
    _draw_curve(curve, film)
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


def _write_texts(axes: Axes, film: Film, trace: Trace, picture: UInt8[np.ndarray, "F P 4"]) -> None:
    """Write each symbol where it appears, and all in the last state, if there is room."""
    steps, positions = film.tokens.shape
    if steps > _READABLE[0] or positions > _READABLE[1]:
        return
    new = np.ones_like(film.hidden_again)
    new[1:-1] = film.tokens[1:-1] != film.tokens[:-2]
    for step, position in np.argwhere(new & (film.tokens != trace.mask_id)):
        symbol = spell(trace.symbols[film.tokens[step, position]])
        if len(symbol) == 1:
            color = ink(picture[step, position])
            axes.text(position, step, symbol, color=color, size=7, ha="center", va="center")


def _draw_curve(axes: Axes, film: Film) -> None:
    steps = np.arange(len(film.masked))
    axes.fill_betweenx(steps, film.masked, color="0.9")
    axes.plot(film.masked, steps, color="0.2", linewidth=1.2)
    axes.set_xlabel(f"masked positions of {film.length:,}")
    axes.set_xlim(0, max(1, film.masked.max()) * 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(3, integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(left=False, labelleft=False)


# The movie


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
        self._texts = self._add_texts(cells, width)
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
        for position, text in enumerate(self._texts):
            token = int(film.tokens[frame, position])
            symbol = "" if token == len(self._symbols) - 1 else self._symbols[token]
            text.set_text(symbol if len(symbol) == 1 else "")
            text.set_color(ink(picture[position // width, position % width]))
        step = int(film.steps[frame])
        self._dot.set_offsets([[step, film.masked[step]]])
        self._title.set_text(self._caption(frame))

    def _caption(self, frame: int) -> str:
        step = int(self._film.steps[frame])
        return f"{title(self._film)}\nstep {step:,}: {self._film.masked[step]:,} masked"

    def _add_texts(self, axes: Axes, width: int) -> list[Text]:
        count = len(self._film.positions)
        if count > _MAX_LETTERS:
            return []
        middle = {"ha": "center", "va": "center", "size": 8}
        return [axes.text(i % width + 1, i // width + 1, "", **middle) for i in range(count)]


def wrap(picture: UInt8[np.ndarray, "F P 4"]) -> UInt8[np.ndarray, "F lines width 4"]:
    """Break each state into lines, two and a half times as many symbols as lines.

    The width is a multiple of ten; the rest of the last line is transparent.
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
