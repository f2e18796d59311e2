"""``seqdiff train``."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from seqdiff.cli.extensions import command_line
from seqdiff.cli.options import ConfigAndFlags, respell


def train(
    *words: ConfigAndFlags,
    resume: Path | None = None,
    keys: bool = False,
) -> None:
    """Train what a configuration file describes, or continue a run.

    Any key of the configuration may follow, for example --optim.lr 1e-3. --preset NAME chooses a
    diffusion model of the papers: mdlm, bd3lm, sedd, sedd_uniform, d3pm, d3pm_uniform, udlm, gidd,
    ar, mlm, plaid.

    Args:
        words: YAML file, and keys of the configuration.
        resume: Continue this run directory instead.
        keys: List the keys of a configuration instead.

    Raises:
        ValueError: If the configuration does not fit together.
    """
    options = respell(words)
    config = None
    if options and not options[0].startswith("--"):
        config, options = Path(options[0]), options[1:]
    given = [config is not None, resume is not None, keys]
    if sum(given) != 1:
        raise ValueError(
            "train must be given one of CONFIG, --resume RUN and --keys, got "
            f"{sum(given)} of them; see: seqdiff train --help"
        )
    if keys and options:
        raise ValueError(f"train.keys must be alone, got {' '.join(options)}; leave it out")
    from seqdiff.run import parse_run, resume_run, run_parser, start_run

    if keys:
        run_parser().print_help()
        return
    if config is not None:
        parsed = parse_run(config, options)
        directory = parsed["output"]
        done = "trained" if parsed["trainer"]["max_steps"] else "written, not trained"
        fit(directory, partial(start_run, parsed))
    else:
        assert resume is not None
        directory, done = resume, "trained"
        fit(directory, partial(resume_run, directory, options))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        print(f"{directory}: {done}; next: {command_line('evaluate', directory)}")


def fit(directory: Path, start: Callable[[], Path]) -> None:
    """Train, with only the progress bar on the terminal.

    Args:
        directory: The run directory.
        start: Function that trains and returns the run directory.

    Raises:
        KeyboardInterrupt: With the command that continues, if the user or a SIGTERM stops it.
    """
    from seqdiff.run import quieten_lightning
    from seqdiff.training import CHECKPOINT_NAME

    quieten_lightning()
    try:
        start()
    except (KeyboardInterrupt, SystemExit) as stop:
        # Lightning leaves with an exit code after Ctrl-C, and without one after SIGTERM.
        if not (directory / CHECKPOINT_NAME).exists():
            raise KeyboardInterrupt("nothing was saved yet") from stop
        resume = command_line("train", "--resume", directory)
        raise KeyboardInterrupt(f"to continue: {resume}") from stop
