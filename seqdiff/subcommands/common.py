"""What several subcommands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from rich.progress import Progress


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", help="cpu, cuda, ...; default: cuda if there is one, else cpu")


def choose_device(args: argparse.Namespace) -> torch.device:
    """Read ``--device``.

    Raises:
        ValueError: If there is no such device.
    """
    import torch

    name = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=name).device
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device must be usable, got {name}: {reason}; try cpu") from error


def progress() -> Progress:
    """Make a bar with counts and times, on standard error."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress

    columns = (*Progress.get_default_columns(), MofNCompleteColumn())
    return Progress(*columns, console=Console(stderr=True))
