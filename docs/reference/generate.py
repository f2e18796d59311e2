"""MkDocs hook that generates the reference pages from the code, so that they stay up to date."""

from __future__ import annotations

import importlib
import inspect
import logging
import re
from pathlib import Path
from types import ModuleType

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]
# Modules of the core, beside its packages, from which users import.
MODULES = ("blocks", "losses", "rng", "schedules", "trace", "types")
log = logging.getLogger("mkdocs.hooks.reference")


class Defaults(griffe.Extension):
    """Shows the default of a sampler's option without the check of its range."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: object) -> None:
        """Replace ``option(default, ...)`` by the default."""
        value = attr.value
        if isinstance(value, griffe.ExprCall) and str(value.function) == "option":
            attr.value = value.arguments[0]


def rooms() -> list[str]:
    """List the packages and modules that export names."""
    found = [f"seqdiff.{name}" for name in MODULES]
    for top in ("seqdiff", "genomics", "text"):
        for init in sorted((ROOT / top).rglob("__init__.py")):
            name = ".".join(init.parent.relative_to(ROOT).parts)
            if getattr(importlib.import_module(name), "__all__", None):
                found.append(name)
    return sorted(found)


def exported(module: ModuleType) -> list[str]:
    """Names in ``__all__``, or else the public names that the module defines."""
    here = module.__name__
    return sorted(
        getattr(module, "__all__", None)
        or (
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and getattr(value, "__module__", here) == here
        )
    )


def first_line(value: object) -> str:
    """Return the first sentence of a docstring."""
    text = (inspect.getdoc(value) or "").partition("\n\n")[0]
    return " ".join(text.replace("``", "`").split()).partition(". ")[0].rstrip(".")


def api_page(package: str) -> str:
    """Write a page with the exports of a package or module: classes, functions, constants."""
    module = importlib.import_module(package)
    lines = [f"# {package}", "", (module.__doc__ or "").partition("\n\n")[0], ""]
    constants = []
    for name in exported(module):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            if not inspect.getdoc(value):
                log.warning("%s.%s has no docstring", package, name)
            lines += [f"::: {package}.{name}", ""]
        else:
            constants.append(f"| `{name}` | `{value!r:.80}` |".replace("\n", " "))
    if constants:
        lines += ["## Constants and types", "", "| name | value |", "|---|---|", *constants, ""]
    return "\n".join(lines)


def api_index() -> str:
    """Write a page that lists the packages and modules, with a line for each."""
    lines = ["# Python API", "", "| package or module | what it has |", "|---|---|"]
    for name in rooms():
        module = importlib.import_module(name)
        lines.append(f"| [`{name}`](api/{name}.md) | {first_line(module)} |")
    return "\n".join(lines) + "\n"


def commands_page() -> str:
    """Write a page with all commands and their options, taken from their functions."""
    from seqdiff.cli.app import build_app, commands

    lines = [
        "# Commands",
        "",
        "Options can be written with dashes or underscores. An error is one line on standard "
        "error, and the exit code is then 2; `SEQDIFF_TRACEBACK=1` shows where it came from.",
        "",
    ]
    known = commands()
    for command in known.values():
        text = build_app(known, command.name).generate_docs(output_format="markdown")
        text = text.partition(f"\n## seqdiff {command.name}\n")[2]
        text = re.sub(r"^#+ .*$", "", text, flags=re.MULTILINE)
        about, _, example = command.help.rpartition(": ")
        lines += [f"## seqdiff {command.name}", "", f"{about}.", "", f"    {example}", "", text, ""]
    return "\n".join(lines)


def configuration_page() -> str:
    """Write a page with the keys of a configuration, taken from the dataclasses."""
    from seqdiff.run import list_keys

    lines = [
        "# Configuration keys",
        "",
        "A configuration is a YAML file with these keys. Every key can follow `seqdiff train` as "
        "an option, `--optim.lr 1e-3`. A file may also have the key `base`, a file that is read "
        "first. `class_path` and `init_args` of a key name a class and its arguments; the classes "
        "are in the [Python API](api.md). `seqdiff train --keys` prints this list for the "
        "installed version, and `seqdiff train CONFIG --keys` the keys of a file with those of its "
        "classes.",
        "",
        "| key | default | meaning |",
        "|---|---|---|",
    ]
    for key in list_keys():
        default = "required" if key.value is None else f"`{key.value}`"
        lines.append(f"| `{key.name}` | {default} | {key.meaning.replace('``', '`')} |")
    return "\n".join([*lines, ""])


def on_files(files, config):
    """Add the generated pages."""
    pages = {f"api/{name}.md": api_page(name) for name in rooms()}
    pages |= {
        "api.md": api_index(),
        "commands.md": commands_page(),
        "configuration.md": configuration_page(),
    }
    for name, content in pages.items():
        files.append(File.generated(config, f"reference/{name}", content=content))
    return files
