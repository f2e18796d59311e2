"""What subcommands show and where they run."""

from __future__ import annotations

import argparse
import logging
import math
import warnings

import torch
from rich.progress import MofNCompleteColumn

from seqdiff.progress import Bar

_NOISE = (
    r"`isinstance\(treespec, LeafSpec\)` is deprecated",
    r"The '\w+' does not have many workers",
    r"Be aware that when using `ckpt_path`, callbacks .*: \[('(EMA|Timer)'(, )?)+\]",
)


def choose_device(name: str | None) -> torch.device:
    """Turn ``--device`` into a device.

    Args:
        name: As torch spells it; ``None`` takes a GPU if there is one.

    Raises:
        ValueError: If there is no such device.
    """
    wanted = ("cuda" if torch.cuda.is_available() else "cpu") if name is None else name
    try:
        device = torch.device(wanted)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
    else:
        if device.type != "meta" and (device.type != "cpu" or not device.index):
            return device
        reason = "it holds no numbers" if device.type == "meta" else "there is one cpu"
    raise ValueError(f"--device must be usable, got {wanted!r}: {reason}; try cpu")


def progress() -> Bar:
    """Make a bar with counts and times, on standard error."""
    return Bar(*Bar.get_default_columns(), MofNCompleteColumn())


def quieten_lightning() -> None:
    """Drop what Lightning says to those who write a Trainer; what it warns users of stays."""
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    for message in _NOISE:
        warnings.filterwarnings("ignore", message=message, module="lightning")


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", help="cpu, cuda, ...; default: cuda if there is one, else cpu")


def check_count(owner: str, count: int) -> None:
    """Refuse a number of things that is not positive.

    Args:
        owner: Who was given it, for the message.
        count: The number.

    Raises:
        ValueError: If it is less than 1.
    """
    if count < 1:
        raise ValueError(f"{owner} must be at least 1, got {count}; raise it")


def check_seed(owner: str, seed: int) -> None:
    """Refuse a seed that does not fit in 32 bits.

    Args:
        owner: Who was given it, for the message.
        seed: The seed.

    Raises:
        ValueError: If it is not in [0, 2^32).
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"{owner} must be in [0, 2^32), got {seed}; choose one, such as 0")


def check_guidance(owner: str, strength: float | None) -> None:
    """Refuse a strength of guidance that is no strength.

    Args:
        owner: Who was given it, for the message.
        strength: It, if there is one.

    Raises:
        ValueError: If it is negative or not finite.
    """
    if strength is not None and not 0 <= strength < math.inf:
        raise ValueError(
            f"{owner} must be finite and at least 0, got {strength}; 1 samples given the label"
        )
