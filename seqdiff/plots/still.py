"""Write a figure to a file: the same figure gives the same bytes."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def write_figure(path: Path, figure: Figure) -> None:
    """Write a png (200 dots an inch), svg or pdf, by the suffix.

    Raises:
        OSError: If it cannot be written.
    """
    with matplotlib.rc_context({"svg.hashsalt": "seqdiff", "svg.fonttype": "none"}):
        figure.savefig(path, dpi=200, metadata=_UNDATED.get(path.suffix))
