"""What subcommands show and where they run."""

from __future__ import annotations

import logging
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
