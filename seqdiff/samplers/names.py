"""The names under which samplers are chosen."""

from __future__ import annotations

import inspect
import re

from seqdiff.samplers.protocol import Sampler


def named_samplers() -> dict[str, type[Sampler]]:
    """Every sampler that has been imported, under its name.

    The name of ``FirstHittingSampler`` is ``first_hitting``; an outside sampler has one too.
    """
    found: dict[str, type[Sampler]] = {}
    waiting: list[type[Sampler]] = [Sampler]
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if not inspect.isabstract(cls):
            found[sampler_name(cls)] = cls
    return dict(sorted(found.items()))


def sampler_name(cls: type[Sampler]) -> str:
    """The name of a sampler: that of its class in snake case, without ``Sampler``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__.removesuffix("Sampler")).lower()


def find_sampler(name: str) -> type[Sampler]:
    """Choose a sampler by its name, with dashes or underscores.

    Raises:
        ValueError: If there is none; with those there are.
    """
    known = named_samplers()
    found = known.get(name.replace("-", "_"))
    if found is None:
        raise ValueError(
            f"sample.sampler must be one of {', '.join(known)}, got {name!r}; "
            "seqdiff samplers says what they do"
        )
    return found
