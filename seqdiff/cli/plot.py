"""``seqdiff plot``: one picture a subcommand of its own, itself a ``Command``."""

from __future__ import annotations

import argparse

from seqdiff.cli import plot_trace
from seqdiff.cli.commands import Command

help = "draw a picture of what another command wrote"
_PICTURES: dict[str, Command] = {"trace": plot_trace}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    subparsers = parser.add_subparsers(metavar="PICTURE", required=True)
    for name, picture in _PICTURES.items():
        sub = subparsers.add_parser(name, help=picture.help, description=picture.help)
        picture.add_arguments(sub)
        sub.set_defaults(picture=picture, parser=sub)


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    args.picture.run(args)
