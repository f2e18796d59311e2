"""Generated text as .txt or .jsonl; what ``sample --out NAME.txt`` calls."""

from __future__ import annotations

import json
from pathlib import Path


def write_txt(path: Path, sequences: list[str], names: list[str]) -> None:
    """Write each sample under a line with its name, and an empty line after it.

    A sample may hold line breaks and empty lines of its own: use .jsonl for a program to read.

    Raises:
        OSError: If the file cannot be written.
    """
    blocks = [f"--- {name} ---\n{s}\n\n" for name, s in zip(names, sequences, strict=True)]
    path.write_text("".join(blocks), encoding="utf-8", newline="\n")


def write_jsonl(path: Path, sequences: list[str], names: list[str]) -> None:
    """Write a line ``{"name": ..., "text": ...}`` for each sample.

    Raises:
        OSError: If the file cannot be written.
    """
    lines = [
        json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n"
        for name, text in zip(names, sequences, strict=True)
    ]
    path.write_text("".join(lines), encoding="utf-8", newline="\n")
