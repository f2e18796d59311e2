"""``seqdiff plot trace``."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from seqdiff.files import check_parent, replacing

if TYPE_CHECKING:
    from seqdiff.trace import Trace

help = "draw how a sampler filled in a sequence, from what seqdiff sample --trace kept"

_FORMATS = (".gif", ".pdf", ".png", ".svg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument("trace", type=Path, metavar="TRACE.npz", help="of seqdiff sample --trace")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE",
        help="its suffix chooses the format: .png, .svg, .pdf, or .gif for a movie",
    )
    parser.add_argument(
        "--row",
        default="0",
        metavar="ROW",
        help="which sequence: its name, or its number from 0; default: 0",
    )


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    if args.out.suffix not in _FORMATS:
        raise ValueError(
            f"plot.out must end in one of {', '.join(_FORMATS)}, got {args.out}; rename it"
        )
    check_parent("plot.out", args.out)
    from seqdiff.trace import read_trace

    trace = read_trace(args.trace)
    row = choose_row(trace, args.row)
    with replacing(args.out) as temporary:
        if args.out.suffix == ".gif":
            _film(temporary, trace, row)
        else:
            from seqdiff.plots import draw_trace, write_figure

            write_figure(temporary, draw_trace(trace, row))
    print(f"{args.out}: {trace.names[row]}, {trace.num_steps[row] + 1} states")


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
    """Write a movie under a bar."""
    from seqdiff.cli.terminal import progress
    from seqdiff.plots import film_trace

    with progress() as bar:
        task = bar.add_task("frames", total=None)
        for done, count in film_trace(path, trace, row):
            bar.update(task, completed=done, total=count)
