"""``seqdiff train``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

help = "train what a YAML file describes, or go on with a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.epilog = "Any key of the configuration may follow, for example --optim.lr 1e-3."
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="YAML file")
    what.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run directory")
    what.add_argument("--keys", action="store_true", help="list the keys of a configuration")
    parser.set_defaults(flags=[])


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part ``CONFIG`` or ``--resume RUN`` from the configuration flags that follow.

    Args:
        arguments: What comes after ``train``.
    """
    own = 2 if arguments[:1] == ["--resume"] else 1
    return list(arguments[:own]), list(arguments[own:])


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    from seqdiff.config import parse_run, run_parser
    from seqdiff.run import resume_run, start_run

    if args.keys:
        run_parser().print_help()
        return
    _quieten()
    if args.resume is None:
        start = partial(start_run, parse_run(args.config, args.flags))
    else:
        start = partial(resume_run, args.resume, args.flags)
    try:
        directory = start()
    except SystemExit as stop:  # what Lightning makes of Ctrl-C
        raise KeyboardInterrupt from stop
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"{directory}: trained; next: seqdiff evaluate {directory}")


def _quieten() -> None:
    """Leave the terminal to the bar."""
    import logging
    import warnings

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module="lightning")
