"""Samples from text files: one a line, or one JSON object a line."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path


def read_samples(owner: str, path: Path) -> list[str]:
    """Read every sample of a file, ``.txt`` (one a line) or ``.jsonl`` (a key ``text``).

    Either may be gzipped (``.gz``).

    Args:
        owner: Who was given the path, for the messages.
        path: The file.

    Raises:
        FileNotFoundError: If there is none.
        ValueError: If its suffix is another, it is not UTF-8, it holds no sample, or a line none.
    """
    if not path.is_file():
        raise FileNotFoundError(f"{owner} must be an existing file, got {path}; check the path")
    suffix = Path(path.name.removesuffix(".gz")).suffix
    if suffix not in (".txt", ".jsonl"):
        raise ValueError(
            f"{owner} must end in .txt (a sample a line) or .jsonl (a key text), or in those and "
            f".gz, got {path}; rename it"
        )
    content = _bytes(owner, path)
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{owner} must be UTF-8, got byte 0x{content[error.start]:02x} at offset "
            f"{error.start} of {path}; convert it"
        ) from error
    if lines[-1] == "":
        lines.pop()
    if suffix == ".txt" and re.fullmatch("--- .* ---", lines[0] if lines else ""):
        raise ValueError(
            f"{owner} must hold a sample a line, got the listing {path}, where a sample may take "
            "several; sample to a .jsonl file"
        )
    samples = [
        _text(owner, path, number, line.removesuffix("\r"), suffix)
        for number, line in enumerate(lines, start=1)
    ]
    if not samples:
        raise ValueError(f"{owner} must hold a sample, got the empty file {path}; sample first")
    return samples


def _bytes(owner: str, path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError) as error:
        raise ValueError(f"{owner} must be gzip, got {path}: {error}; copy it again") from error


def _text(owner: str, path: Path, number: int, line: str, suffix: str) -> str:
    text: object = line
    if suffix == ".jsonl":
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(
                f"{owner} must hold a JSON object a line, got: {error} in line {number} of {path}; "
                "correct that line"
            ) from error
        text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text:
        raise ValueError(
            f"{owner} must hold a sample in every line, got none in line {number} of {path}; "
            "drop that line, and say that the model drew an empty sample"
        )
    return text
