"""A separate cache for every test, and small corpora."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDIFF_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, object], Path]:
    """Write a file: bytes, a string, or the texts of a .jsonl."""

    def put(name: str, content: object) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "".join(json.dumps({"text": text}) + "\n" for text in content)
        path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
        return path

    return put
