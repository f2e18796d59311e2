"""``seqdiff train``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from seqdiff.cli.commands import command_line
from seqdiff.run import PRESETS

help = "train what a YAML file describes, or go on with a run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.epilog = (
        "Any key of the configuration may follow, for example --optim.lr 1e-3. --preset NAME "
        f"chooses a system of the papers: {', '.join(PRESETS)}."
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("config", nargs="?", type=Path, metavar="CONFIG", help="YAML file")
    what.add_argument("--resume", type=Path, metavar="RUN", help="go on with a run directory")
    what.add_argument("--keys", action="store_true", help="list the keys of a configuration")
    parser.set_defaults(flags=[])


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Part ``CONFIG`` or ``--resume RUN`` from the flags that follow; ``--keys`` takes none.

    Args:
        arguments: What comes after ``train``.
    """
    if arguments[:1] == ["--keys"]:
        return list(arguments), []
    own = 2 if arguments[:1] == ["--resume"] else 1
    return list(arguments[:own]), list(arguments[own:])


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    from seqdiff.run import parse_run, resume_run, run_parser, start_run

    if args.keys:
        run_parser().print_help()
        return
    if args.resume is None:
        parsed = parse_run(args.config, args.flags)
        directory = parsed["output"]
        done = "trained" if parsed["trainer"]["max_steps"] else "written, not trained"
        fit(directory, partial(start_run, parsed))
    else:
        directory, done = args.resume, "trained"
        fit(directory, partial(resume_run, directory, args.flags))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"{directory}: {done}; next: {command_line('evaluate', directory)}")


def fit(directory: Path, start: Callable[[], Path]) -> None:
    """Train with nothing but the bar on the terminal.

    Args:
        directory: The run directory.
        start: Trains.

    Raises:
        KeyboardInterrupt: With the command that goes on, if the user or a SIGTERM stops it.
    """
    from seqdiff.cli.terminal import quieten_lightning
    from seqdiff.training import CHECKPOINT_NAME

    quieten_lightning()
    try:
        start()
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning leaves with an exit code after Ctrl-C, and without one after SIGTERM.
        if not (directory / CHECKPOINT_NAME).exists():
            raise KeyboardInterrupt("nothing was saved yet") from stop
        resume = command_line("train", "--resume", directory)
        raise KeyboardInterrupt(f"to go on: {resume}") from stop
