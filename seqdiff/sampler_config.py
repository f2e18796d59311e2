"""Build a sampler from its name and flags: its constructor is the schema."""

from __future__ import annotations

import inspect
import re
from argparse import ArgumentError
from collections.abc import Sequence
from importlib import import_module
from typing import get_type_hints

from jsonargparse import ArgumentParser

from seqdiff.config_files import one_line
from seqdiff.samplers import Sampler, find_sampler, named_samplers


def choose_sampler(name: str) -> type[Sampler]:
    """Find a sampler by its name, or an outside one by its import path.

    Raises:
        ValueError: If there is none.
    """
    module, _, attribute = name.rpartition(".")
    if not module:
        return find_sampler(name)
    try:
        cls = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"sample.sampler must be importable, got {name!r}: {one_line(str(error))}; "
            "check the path"
        ) from error
    if not (inspect.isclass(cls) and issubclass(cls, Sampler) and not inspect.isabstract(cls)):
        raise ValueError(
            f"sample.sampler must be a seqdiff.samplers.Sampler, got {name!r}; derive it from that"
        )
    return cls


def build_sampler(name: str, flags: Sequence[str] = ()) -> Sampler:
    """Build a sampler.

    Args:
        name: As ``seqdiff samplers`` lists it, or an import path.
        flags: Its options, ``--key value`` or ``--key=value``; a sampler within it by its name.

    Raises:
        ValueError: In one line, if there is no such sampler or option (with the choices), or a
            value does not fit.
    """
    cls = choose_sampler(name)
    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
    parser.add_class_arguments(cls)
    try:
        parsed = parser.parse_args([_import_path(part) for part in flags])
    except ArgumentError as error:
        message = re.sub(r"^error: ", "", one_line(str(error)))
        raise ValueError(
            f"sample.sampler {name}: {message}; its options are {_options(cls)}; "
            "see: seqdiff sample --help for the others"
        ) from error
    built = parser.instantiate(parsed)
    return cls(**{option: built[option] for option in inspect.signature(cls).parameters})


def _options(cls: type[Sampler]) -> str:
    """List a sampler's options, and how those of a sampler within it are spelled."""
    hints = get_type_hints(cls.__init__)
    inner = [name for name, hint in hints.items() if hint is Sampler]
    within = [f"those of its {name} sampler as in --{name}.temperature" for name in inner]
    return ", ".join([*(f"--{name}" for name in inspect.signature(cls).parameters), *within])


def _import_path(part: str) -> str:
    """Spell the name of a sampler so that the parser can import it."""
    key, equals, value = part.rpartition("=")
    cls = named_samplers().get(value.replace("-", "_"))
    return part if cls is None else f"{key}{equals}{cls.__module__}.{cls.__qualname__}"
