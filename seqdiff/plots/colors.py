"""Colours of tokens that colour-blind readers can distinguish, their legend, and figure files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Bool, Integer, UInt8
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch

# Okabe and Ito 2008, https://jfly.uni-koeln.de/color/, without black.
PALETTE = ("#009E73", "#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
MASK, REMASKED = "#E6E6E6", "#555555"
_SCALE = "viridis"
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
_NAMED = 40  # symbols that a colour bar can name one by one


def spell(symbol: str) -> str:
    """Escape a symbol so that any font shows it, on one line and not as a formula."""
    plain = symbol.isascii() and symbol.isprintable() and symbol.strip() == symbol != ""
    text = symbol if plain else ascii(symbol)
    return (text if len(text) <= 12 else text[:11] + "~").replace("$", r"\$")


@dataclass(frozen=True)
class Colors:
    """A colour for each id of an alphabet.

    Attributes:
        symbols: What the ids ``0..K`` decode to; the last is the mask's.
    """

    symbols: tuple[str, ...]

    @property
    def few(self) -> bool:
        """Whether each symbol has its own colour; otherwise colours follow a scale, by id."""
        return len(self.symbols) - 1 <= len(PALETTE)

    def paint(
        self, tokens: Integer[np.ndarray, "F P"], hidden_again: Bool[np.ndarray, "F P"]
    ) -> UInt8[np.ndarray, "F P 4"]:
        """Colour tokens: red, green, blue and opacity.

        Args:
            tokens: Ids in ``0..K``.
            hidden_again: True at masks that were visible before.
        """
        count = len(self.symbols) - 1
        if self.few:
            colors = np.array([to_rgba(color) for color in PALETTE[:count]])
        else:
            colors = np.asarray(colormaps[_SCALE](np.linspace(0, 1, count)))
        table = np.concatenate([colors, [to_rgba(MASK), to_rgba(REMASKED)]])
        ids = tokens.astype(np.int64) + hidden_again
        return (255 * table).round().astype(np.uint8)[ids]

    def explain(self, figure: Figure, axes: Axes, *, hiding: bool) -> None:
        """Add the legend and, for large alphabets, a colour bar.

        Args:
            figure: Figure for the legend.
            axes: Axes for the colour bar.
            hiding: Whether the legend names remasked positions.
        """
        count = len(self.symbols) - 1
        handles = [Patch(facecolor=MASK, edgecolor="0.6", label="mask")]
        if hiding:
            handles.append(Patch(facecolor=REMASKED, label="remasked"))
        if self.few:
            colors = zip(PALETTE, self.symbols[:-1], strict=False)
            handles = [Patch(facecolor=c, label=spell(s)) for c, s in colors] + handles
        else:
            scale = ScalarMappable(Normalize(0, count - 1), _SCALE)
            bar = figure.colorbar(scale, ax=axes, label="token id", pad=0.02)
            ids = np.arange(count) if count <= _NAMED else np.linspace(0, count - 1, 9).astype(int)
            bar.set_ticks(ids.tolist(), labels=[f"{i:,} {spell(self.symbols[i])}" for i in ids])
            bar.ax.tick_params(labelsize=7)
        figure.legend(
            handles=handles, loc="outside lower center", ncols=len(handles), frameon=False
        )


def ink(color: UInt8[np.ndarray, " 4"]) -> str:
    """Black or white, whichever is read more easily on a colour."""
    return "black" if color[:3] @ np.array([0.299, 0.587, 0.114]) > 140 else "white"


def write_figure(path: Path, figure: Figure) -> None:
    """Write a png (200 dots an inch), svg or pdf, by the suffix; equal figures give equal bytes.

    Raises:
        OSError: If it cannot be written.
    """
    with matplotlib.rc_context({"svg.hashsalt": "seqdiff", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=200, metadata=_UNDATED.get(path.suffix))


def rasterize(figure: Figure) -> UInt8[np.ndarray, "H W 3"]:
    """Draw a figure as red, green and blue, 100 dots an inch."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()
