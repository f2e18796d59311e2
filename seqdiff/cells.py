"""Text from files in tables and on the terminal, where it must not act as a formula or a command.

A spreadsheet computes a cell that begins with ``=``, ``+``, ``-`` or ``@``, and a terminal obeys
control characters. Both may be in the name of a record that somebody else wrote.
"""

from __future__ import annotations

import re
import sys

_FORMULA = ("=", "+", "-", "@")
# Control characters; marks that reverse the direction of text, which hide what a line says; and
# line separators.
_CONTROLS = r"\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069"
_WRITTEN = re.compile(rf"[{_CONTROLS}\\]")
_SHOWN = re.compile(rf"[{_CONTROLS}]")
_READ = re.compile(r"\\(\\|x[0-9a-f]{2}|u[0-9a-f]{4})")


def write_cell(text: str) -> str:
    r"""Write a text as a cell of a table, from which ``read_cell`` reads it again.

    Control characters become ``\x1b`` or ``\u202e`` by their number, and a backslash becomes two.
    A quote ``'`` comes before a text that begins with ``=``, ``+``, ``-``, ``@`` or a quote, unless
    this is its only character.

    Args:
        text: For example the name of a record.
    """
    text = _WRITTEN.sub(lambda found: _escape(found[0]), text)
    return f"'{text}" if text.startswith("'") or (text[1:] and text[0] in _FORMULA) else text


def read_cell(cell: str) -> str:
    """Read a text that ``write_cell`` wrote.

    Args:
        cell: A cell of a table.
    """
    return _READ.sub(lambda found: _unescape(found[1]), cell.removeprefix("'"))


def printable(text: str) -> str:
    """Escape the control characters of a text for a terminal, line breaks too.

    Args:
        text: For example an error message that quotes a file.
    """
    return _SHOWN.sub(lambda found: _escape(found[0]), text)


def say(text: str, *, error: bool = False) -> None:
    """Print a line, in which the control characters of names and paths are escaped.

    Args:
        text: The line.
        error: Whether to print to standard error.
    """
    print(printable(text), file=sys.stderr if error else None)


def describe_error(error: BaseException) -> str:
    """Word an exception in one line; one without a text, such as a MemoryError, by its name.

    Args:
        error: The exception, as a part of another message.
    """
    named = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(error).__name__).lower()
    return " ".join(str(error).split()) or named


def _escape(character: str) -> str:
    if character == "\\":
        return r"\\"
    number = ord(character)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def _unescape(written: str) -> str:
    return "\\" if written == "\\" else chr(int(written[1:], 16))
