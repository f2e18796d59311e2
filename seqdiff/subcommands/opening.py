"""Open a run to draw from it, with the sampler that is asked for or that such a run has."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from inspect import signature
from pathlib import Path

import torch

from seqdiff.run import Run, load_run
from seqdiff.sampler_config import build_sampler, choose_sampler
from seqdiff.samplers import Sampler
from seqdiff.start import CONFIG_NAME

_DEFAULT = ("first_hitting", "left_to_right", "block", "ancestral", "tweedie", "gaussian")


def open_run(
    directory: Path, sampler: str | None, flags: Sequence[str], device: torch.device
) -> tuple[Run, Sampler]:
    """Build the sampler that is asked for, then load the run.

    Args:
        directory: Of the run.
        sampler: Its name; ``None`` is the default of such a run.
        flags: The sampler's options.
        device: Where the network goes.

    Raises:
        FileNotFoundError: See ``load_run``.
        ValueError: See ``build_sampler`` and ``load_run``; or if the sampler is not for the run.
    """
    try:
        chosen = _first_fit(_DEFAULT if sampler is None else [sampler], flags)
    except ValueError:
        if sampler is None and (directory / CONFIG_NAME).is_file():
            build_sampler(_usual(load_run(directory)), flags)  # raises, in the name of that one
        raise
    trained = load_run(directory, device=device)
    if sampler is None:
        chosen = build_sampler(_usual(trained), flags)
    chosen.check_fit(trained.denoiser)
    return trained, chosen


def _usual(run: Run) -> str:
    """The name of the default sampler of such a run."""
    return next(n for n in _DEFAULT if choose_sampler(n).needs.met_by(run.denoiser))


def _first_fit(names: Iterable[str], flags: Sequence[str]) -> Sampler:
    """Build the first of some samplers that takes the options; which it will be, the run decides.

    Raises:
        ValueError: If none does: what the first one says that has all of these options, or else
            what the first one says.
    """
    given = {flag.removeprefix("--").partition("=")[0].partition(".")[0] for flag in flags}
    complaints = []
    for name in names:
        try:
            return build_sampler(name, flags)
        except ValueError as error:
            complaints.append((given - set(signature(choose_sampler(name)).parameters), error))
    raise next((error for unknown, error in complaints if not unknown), complaints[0][1])
