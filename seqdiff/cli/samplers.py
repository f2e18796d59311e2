"""``seqdiff samplers``."""

from __future__ import annotations

import inspect
import textwrap

_WIDTH, _INDENT = 100, " " * 6
_MEANINGS = {
    "exactly": "With their defaults these draw from the model's own distribution",
    "in the limit": "These approach it as --num-steps grows",
    "another": "These draw from another distribution, whatever the number of steps",
}


def samplers(name: str | None = None, /) -> None:
    """List the samplers that seqdiff sample can use, or the options of one.

    Args:
        name: Describe this sampler and its options.

    Raises:
        ValueError: If there is no such sampler.
    """
    from seqdiff.samplers import named_samplers

    if name is not None:
        _describe(name)
        return
    found = named_samplers()
    width = max(map(len, found))
    for known, cls in found.items():
        print(f"{known:{width}}  {(inspect.getdoc(cls) or '').splitlines()[0]}")
    print()
    for how, meaning in _MEANINGS.items():
        names = ", ".join(known for known, cls in found.items() if cls.draws_from == how)
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
