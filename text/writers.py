"""Generated text as .txt or .jsonl; what ``sample --out NAME.txt`` calls."""

from __future__ import annotations

import json
from pathlib import Path

from .listing import format_listing


def write_txt(path: Path, sequences: list[str], names: list[str]) -> None:
    """Write a listing, see ``text.listing``; other programs read .jsonl more easily.

    Raises:
        OSError: If the file cannot be written.
    """
    path.write_text(format_listing(names, sequences), encoding="utf-8", newline="\n")


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
