"""``seqdiff samplers``."""

from __future__ import annotations

import argparse
import inspect
import textwrap

help = "list the samplers that seqdiff sample can use, or the options of one"

_WIDTH, _INDENT = 100, " " * 6
_MEANINGS = {
    "exactly": "With their defaults these draw from the model's own distribution",
    "in the limit": "These tend to it as --num-steps grows",
    "another": "These draw from another distribution, whatever the number of steps",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """See ``Command``."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="list the options of this one; default: list all"
    )


def run(args: argparse.Namespace) -> None:
    """See ``Command``."""
    from seqdiff.samplers import named_samplers

    if args.name is not None:
        _describe(args.name)
        return
    found = named_samplers()
    width = max(map(len, found))
    for name, cls in found.items():
        print(f"{name:{width}}  {(inspect.getdoc(cls) or '').splitlines()[0]}")
    print()
    for how, meaning in _MEANINGS.items():
        names = ", ".join(name for name, cls in found.items() if cls.draws_from == how)
        print(textwrap.fill(f"{meaning}: {names}.", _WIDTH, subsequent_indent="  "))
    print("\nThe options of one: seqdiff samplers NAME")


def _describe(name: str) -> None:
    """Print what a sampler does and what its options mean."""
    from seqdiff.run import choose_sampler, list_options

    cls = choose_sampler(name)
    about = (inspect.getdoc(cls) or "").partition("Attributes:")[0]
    print(
        f"{name}: {about.replace('``', '').strip()}\n\nOptions of seqdiff sample --sampler {name}:"
    )
    options = list_options(cls)
    if not options:
        print("  it takes none")
    for option in options:
        default = "must be given" if option.default is None else f"default: {option.default}"
        print(f"  {option.flag}  {option.kind}; {default}")
        if option.meaning:
            print(
                textwrap.fill(
                    option.meaning, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
                )
            )
