"""Samples as a person reads them: each under a line with its name, and an empty line after it.

A sample may hold line breaks, empty lines and even lines like those with names: such a line gets
one ``>`` more in front (the quoting of mboxrd), so that a listing is read back to the same samples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_NAME = re.compile(r"(?m)^--- (.*) ---\n")
_LIKE_A_NAME = re.compile(r"(?m)^(>*--- .* ---)$")
_QUOTED = re.compile(r"(?m)^>(>*--- .* ---)$")


def format_listing(names: Sequence[str], sequences: Sequence[str]) -> str:
    """Spell samples.

    Args:
        names: Without line breaks.
        sequences: The samples.
    """
    quoted = (_LIKE_A_NAME.sub(r">\1", text) for text in sequences)
    return "".join(f"--- {name} ---\n{text}\n\n" for name, text in zip(names, quoted, strict=True))


def is_listing(content: str) -> bool:
    """Whether a file begins with the line of a name."""
    return _NAME.match(content) is not None


def parse_listing(content: str) -> list[tuple[str, str]]:
    """Read the names and the samples that ``format_listing`` spelled.

    Raises:
        ValueError: If a sample lacks the empty line after it, with its name.
    """
    _, *parts = _NAME.split(content)
    found = list(zip(parts[::2], parts[1::2], strict=True))
    for name, text in found:
        if not text.endswith("\n\n"):
            raise ValueError(f"an empty line must follow each sample, got none after {name!r}")
    return [(name, _QUOTED.sub(r"\1", text[:-2])) for name, text in found]
