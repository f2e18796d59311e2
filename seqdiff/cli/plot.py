"""``seqdiff plot``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqdiff.cells import say
from seqdiff.files import check_parent, replacing

if TYPE_CHECKING:
    from seqdiff.trace import Trace

_FORMATS = (".gif", ".pdf", ".png", ".svg")


def plot(
    picture: Literal["trace"], file: Path, /, *, out: Path | None = None, row: str = "0"
) -> None:
    """Draw a figure from the output of another command.

    Args:
        picture: trace: how a sampler filled in a sequence.
        file: For a trace, the .npz file of seqdiff sample --trace.
        out: Picture to write: .png, .svg or .pdf, or .gif for a movie; default: FILE with .png.
        row: Which sequence: its name, or its number from 0.

    Raises:
        ValueError: If a file or the row cannot be used.
    """
    out = file.with_suffix(".png") if out is None else out
    if out.suffix not in _FORMATS:
        raise ValueError(f"plot.out must end in one of {', '.join(_FORMATS)}, got {out}; rename it")
    check_parent("plot.out", out)
    from seqdiff.trace import read_trace

    trace = read_trace(file)
    number = choose_row(trace, row)
    with replacing(out) as temporary:
        if out.suffix == ".gif":
            _film(temporary, trace, number)
        else:
            from seqdiff.plots import draw_trace, write_figure

            write_figure(temporary, draw_trace(trace, number))
    say(f"{out}: {trace.names[number]}, {trace.num_steps[number] + 1} states")


def choose_row(trace: Trace, wanted: str) -> int:
    """Find a sequence by its name or else by its number.

    Raises:
        ValueError: If there is none.
    """
    if wanted in trace.names:
        return trace.names.index(wanted)
    if wanted.isdecimal() and int(wanted) < len(trace.names):
        return int(wanted)
    last = len(trace.names) - 1
    raise ValueError(
        f"plot.row must be the name of a sequence or a number in 0..{last}, got {wanted!r}; "
        f"the names are {trace.names[0]} ... {trace.names[-1]}"
    )


def _film(path: Path, trace: Trace, row: int) -> None:
    """Write a movie, with a progress bar."""
    from seqdiff.plots import film_trace
    from seqdiff.progress import progress

    with progress() as bar:
        task = bar.add_task("frames", total=None)
        for done, count in film_trace(path, trace, row):
            bar.update(task, completed=done, total=count)
