"""``seqdiff samplers``."""

from __future__ import annotations

import argparse
import inspect

help = "list the samplers that seqdiff sample can use"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``; there are none."""


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    from seqdiff.samplers import named_samplers

    found = named_samplers()
    width = max(map(len, found))
    for name, cls in found.items():
        print(f"{name:{width}}  {(inspect.getdoc(cls) or '').splitlines()[0]}")
