"""Samples and templates in text files: one per line, one JSON object per line, or a listing.

A listing is meant for people to read. Each sample follows a line with its name and ends with an
empty line. A sample may contain line breaks, empty lines and lines that look like names. Lines that
look like names get one more ``>`` in front (mboxrd quoting), so that reading a listing returns the
same samples.
"""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from seqdiff.files import parse_json

_NAME = re.compile(r"(?m)^--- (.*) ---\n")
_LIKE_A_NAME = re.compile(r"(?m)^(>*--- .* ---)$")
_QUOTED = re.compile(r"(?m)^>(>*--- .* ---)$")


def format_listing(names: Sequence[str], sequences: Sequence[str]) -> str:
    """Format samples as a listing.

    Args:
        names: Names without line breaks.
        sequences: The samples.
    """
    quoted = (_LIKE_A_NAME.sub(r">\1", text) for text in sequences)
    return "".join(f"--- {name} ---\n{text}\n\n" for name, text in zip(names, quoted, strict=True))


def is_listing(content: str) -> bool:
    """Return whether the content of a file begins with a line that has a name."""
    return _NAME.match(content) is not None


def parse_listing(content: str) -> list[tuple[str, str]]:
    """Parse the names and the samples of a listing.

    Raises:
        ValueError: If no empty line follows a sample; the message gives its name.
    """
    _, *parts = _NAME.split(content)
    found = list(zip(parts[::2], parts[1::2], strict=True))
    for name, text in found:
        if not text.endswith("\n\n"):
            raise ValueError(f"an empty line must follow each sample, got none after {name!r}")
    return [(name, _QUOTED.sub(r"\1", text[:-2])) for name, text in found]


def write_txt(path: Path, sequences: Iterable[str], names: Iterable[str]) -> None:
    """Write a listing, see ``text.corpora.samples``. Use .jsonl if other programs read the file.

    Raises:
        OSError: If the file cannot be written.
    """
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for name, text in zip(names, sequences, strict=True):
            file.write(format_listing([name], [text]))


def write_jsonl(path: Path, sequences: Iterable[str], names: Iterable[str]) -> None:
    """Write a line ``{"name": ..., "text": ...}`` for each sample.

    Raises:
        OSError: If the file cannot be written.
    """
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for name, text in zip(names, sequences, strict=True):
            file.write(json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n")


def read_samples(owner: str, path: Path) -> list[str]:
    """Read every sample of a file, see ``read_named_samples``."""
    return [text for _, text in read_named_samples(owner, path)]


def read_templates(path: Path) -> list[tuple[str, str]]:
    """Read the names and texts of a file for ``sample --infill``, see ``read_named_samples``.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: See ``read_named_samples``.
    """
    return read_named_samples("sample.infill", path)


def read_named_samples(owner: str, path: Path) -> list[tuple[str, str]]:
    """Read the name and the text of every sample of a file.

    The file is ``.jsonl`` (with a key ``text`` and optionally ``name``) or ``.txt``: one sample per
    line, or the listing that ``seqdiff sample`` writes. Either may be compressed (``.gz``). Samples
    without a name are called ``line_1``, ``line_2``, ... by their line number.

    Args:
        owner: The argument that names the file, for error messages.
        path: The file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the suffix is unknown, the file is not UTF-8, or it has no sample or an empty
            sample.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{owner} must be an existing file, got {path}; check the path")
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in (".txt", ".jsonl"):
        raise ValueError(
            f"{owner} must end in .txt (a sample per line, or a listing) or .jsonl (a key text), "
            f"optionally with .gz, got {path}; rename it"
        )
    content = _decode(owner, path)
    if suffix == ".txt" and is_listing(content):
        return _from_listing(owner, path, content)
    lines = content.split("\n")
    if lines[-1] == "":
        lines.pop()
    samples = [
        _named(owner, path, number, line.removesuffix("\r"), suffix)
        for number, line in enumerate(lines, start=1)
    ]
    if not samples:
        raise ValueError(
            f"{owner} must hold at least one sample, got the empty file {path}; check the file"
        )
    return samples


def _decode(owner: str, path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".gz":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise ValueError(
                f"{owner} must be a gzip file, got {path}: {error}; copy it again"
            ) from error
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{owner} must be UTF-8, got byte 0x{content[error.start]:02x} at offset "
            f"{error.start} of {path}; convert it"
        ) from error


def _from_listing(owner: str, path: Path, content: str) -> list[tuple[str, str]]:
    try:
        samples = parse_listing(content)
    except ValueError as error:
        raise ValueError(
            f"{owner} must be a complete listing, got {path}: {error}; draw the samples again, or "
            "write them as .jsonl"
        ) from error
    for name, text in samples:
        if not text:
            raise ValueError(
                f"{owner} must hold text under every name, got an empty sample under {name} in "
                f"{path}; remove the sample, and mention it in your results"
            )
    return samples


def _named(owner: str, path: Path, number: int, line: str, suffix: str) -> tuple[str, str]:
    name, text = f"line_{number}", line
    if suffix == ".jsonl":
        try:
            row = parse_json(line)
        except ValueError as error:
            raise ValueError(
                f"{owner} must hold a JSON object on each line, got: {error} in line {number} of "
                f"{path}; correct that line"
            ) from error
        row = row if isinstance(row, dict) else {}
        name, text = str(row.get("name", name)), row.get("text")
    if not isinstance(text, str) or not text:
        raise ValueError(
            f"{owner} must hold a sample on each line, got none in line {number} of {path}; remove "
            "the line. If the model drew an empty sample, mention it in your results"
        )
    return name, text
