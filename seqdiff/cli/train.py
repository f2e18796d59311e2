"""``seqdiff train``."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable
from functools import partial
from pathlib import Path

from seqdiff.cells import say
from seqdiff.cli.extensions import command_line
from seqdiff.cli.options import ConfigAndFlags, respell


def train(
    *words: ConfigAndFlags,
    output: Path | None = None,
    resume: Path | None = None,
    keys: bool = False,
) -> None:
    """Train what a configuration file describes, or continue a run.

    Any key of the configuration may follow, for example --optim.lr 1e-3. --preset NAME chooses a
    diffusion model of the papers: mdlm, bd3lm, sedd, sedd_uniform, d3pm, d3pm_uniform, udlm, gidd,
    ar, mlm, plaid.

    Args:
        words: YAML file, and keys of the configuration.
        output: Run directory to create; required unless the file sets it.
        resume: Continue this run directory instead.
        keys: List the keys that every configuration has, or with CONFIG also those of the classes
            that it chooses, and do not train.

    Raises:
        ValueError: If the configuration does not fit together.
    """
    options = respell(words)
    config = None
    if options and not options[0].startswith("--"):
        config, options = Path(options[0]), options[1:]
    if config is None and resume is None and not keys:
        raise ValueError(
            "train must be given CONFIG, --resume RUN or --keys, got none of them; see: seqdiff "
            "train --help"
        )
    if resume is not None and (config is not None or keys):
        other = config or "--keys"
        raise ValueError(f"train.resume must go without a new run, got {other}; leave it out")
    if keys and config is None and (options or output):
        got = " ".join(options) or f"--output {output}"
        raise ValueError(f"train.keys must be alone or go with CONFIG, got {got}; leave it out")
    if output is not None:
        options = [f"--output={output}", *options]
    if keys:
        print_keys(config, options)
        return
    from seqdiff.run import parse_run, resume_run, start_run

    if config is not None:
        parsed = parse_run(config, options)
        directory = parsed["output"]
        done = "written, not trained" if parsed["trainer"]["max_steps"] == 0 else "trained"
        fit(directory, partial(start_run, parsed))
    else:
        assert resume is not None
        directory, done = resume, "trained"
        fit(directory, partial(resume_run, directory, options))
    if os.environ.get("LOCAL_RANK", "0") == "0":
        early = out_of_time(directory)
        said = [
            f"{directory}: {'stopped' if early else done}",
            f"next: {command_line('evaluate', directory)}",
        ]
        say("; ".join([said[0], *early, said[1]]))


def out_of_time(directory: Path) -> list[str]:
    """Describe how far a run came if ``max_time`` ended it early, and the command that continues.

    Args:
        directory: A run that was trained or written without an error.
    """
    from seqdiff.run import read_yaml
    from seqdiff.training import CHECKPOINT_NAME, steps_done

    trainer = read_yaml(directory / "run.yaml")["trainer"]
    if trainer["max_steps"] == 0 or trainer["max_time"] is None:
        return []
    step = steps_done(directory / CHECKPOINT_NAME)
    if trainer["max_steps"] is None or step >= trainer["max_steps"]:
        return []
    days, hours, minutes, seconds = map(int, trainer["max_time"].split(":"))
    minutes, seconds = divmod(2 * (((days * 24 + hours) * 60 + minutes) * 60 + seconds), 60)
    hours, minutes = divmod(minutes, 60)
    longer = f"{hours // 24:02}:{hours % 24:02}:{minutes:02}:{seconds:02}"
    resume = command_line("train", "--resume", directory, "--trainer.max_time", longer)
    reached = f"trainer.max_time ended the training after step {step:,} of {trainer['max_steps']:,}"
    return [reached, f"to continue: {resume}"]


def print_keys(config: Path | None, options: list[str]) -> None:
    """Print the keys of a configuration, each with its default or value and its meaning.

    Args:
        config: Configuration whose keys are listed; ``None`` lists those of every configuration.
        options: Keys that override it.
    """
    from seqdiff.run import list_keys, list_keys_of

    found = list_keys() if config is None else list_keys_of(config, options)
    shown = "default" if config is None else "value"
    for key in found:
        value = "required" if key.value is None else f"{shown}: {key.value}"
        print(f"--{key.name} ({value})")
        print(textwrap.indent(textwrap.fill(key.meaning, 92), "    "))
    if config is None:
        print(
            "Arguments of a class follow its key: --backbone.d_model 256. To list them for the "
            f"classes of a file: {command_line('train', 'CONFIG', '--keys')}"
        )


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
            said = "nothing was saved yet; the same command starts again"
            raise KeyboardInterrupt(said) from stop
        resume = command_line("train", "--resume", directory)
        raise KeyboardInterrupt(f"to continue: {resume}") from stop
