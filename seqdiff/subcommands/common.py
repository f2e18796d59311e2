"""Arguments that several subcommands share."""

from __future__ import annotations

import argparse


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", help="cpu, cuda, ...; default: cuda if there is one, else cpu")
