"""What subcommands show and where they run."""

from __future__ import annotations

import torch
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress


def choose_device(name: str | None) -> torch.device:
    """Turn ``--device`` into a device.

    Args:
        name: As torch spells it; ``None`` takes a GPU if there is one.

    Raises:
        ValueError: If there is no such device.
    """
    wanted = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=wanted).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device must be usable, got {wanted}: {reason}; try cpu") from error


def progress() -> Progress:
    """Make a bar with counts and times, on standard error."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    return Progress(*columns, console=Console(stderr=True))
