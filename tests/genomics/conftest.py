"""A cache of its own for every test, and short ways to write FASTA files."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep encoded genomes out of the user's cache folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SEQDIFF_CACHE", str(folder))
    return folder


@pytest.fixture
def fasta(tmp_path: Path) -> Callable[[str], Path]:
    """Write text to a new .fa file."""
    count = 0

    def write(text: str) -> Path:
        nonlocal count
        count += 1
        path = tmp_path / f"genome{count}.fa"
        path.write_bytes(text.encode())
        return path

    return write


@pytest.fixture
def unchecked() -> Iterator[None]:
    """What a user without a type checker meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
