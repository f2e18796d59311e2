"""Configuration files and the files they build on."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from jsonargparse import Namespace

_QUOTED = re.compile(r"""(["'])([\[{].*[\]}])\1""")


def config_files(path: Path) -> list[Path]:
    """List a configuration file after its bases, the outermost base first.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is not a mapping, or a file is its own base.
    """
    chain: list[Path] = []
    current: Path | None = path
    while current is not None:
        if not current.is_file():
            origin = f" (base of {chain[-1]})" if chain else ""
            raise FileNotFoundError(
                f"CONFIG must be an existing file, got {current}{origin}; check the path"
            )
        if current.resolve() in {file.resolve() for file in chain}:
            raise ValueError(f"{current} must not be its own base, got a circle; drop one `base`")
        chain.append(current)
        try:
            content = yaml.safe_load(current.read_text())
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(
                f"{current} must be YAML, got: {one_line(str(error))}; correct that line"
            ) from error
        if not isinstance(content, dict):
            raise ValueError(f"{current} must hold `key: value` lines, got {content!r}; add some")
        base = content.get("base")
        current = None if base is None else current.parent / str(base)
    return chain[::-1]


def unquote(parsed: Namespace) -> None:
    """Take the second pair of quotes off strings such as ``"[CLS]"``, which keeps them from lists.

    Args:
        parsed: A configuration; changed.
    """
    for key, value in vars(parsed).items():
        if isinstance(value, Namespace):
            unquote(value)
        elif isinstance(value, str) and (match := _QUOTED.fullmatch(value)):
            parsed[key] = match[2]


def one_line(message: str) -> str:
    """Join the lines of a message."""
    return re.sub(r"\s*\n[\s-]*", " ", message.strip()).replace(": ;", ":")
