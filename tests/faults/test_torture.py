"""Damaged files and killed commands, a small part of ``make torture``."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.faults import torture

pytestmark = pytest.mark.slow

SEEDS = range(2)  # of each reader, besides the sound file and garbage


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs and sound files for all readers."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("torture") / "world"
    folder.mkdir()
    torture.build_world(folder)
    return folder


@pytest.mark.parametrize("kind", torture.READERS)
def test_damaged_files_are_read_or_refused(world: Path, kind: str, monkeypatch) -> None:
    """The sound file is read; a damaged one may be, or gives one line and exit code 2."""
    with monkeypatch.context() as patched:
        patched.setattr(torture, "damage", lambda content, draw: content)
        assert torture.fuzz(world, kind, 0) == "read"
        patched.setattr(torture, "damage", lambda content, draw: b"\xff\xfe\x00 no such file\n")
        assert torture.fuzz(world, kind, 0) == "refused"  # else the command does not read it
    for seed in SEEDS:
        assert torture.fuzz(world, kind, seed) in ("read", "refused")


@pytest.fixture(scope="module")
def jobs(world: Path) -> dict[str, tuple[bytes, float]]:
    """Results of undisturbed commands."""
    return torture.build_jobs(world)


@pytest.mark.parametrize("name", torture.KILLED)
def test_killed_commands_go_on(world: Path, jobs, name: str) -> None:
    """One after another, until one was killed before its end."""
    assert any(torture.kill(world, name, seed, *jobs[name]) for seed in range(8))


def _raises(words: list[str]) -> int:
    raise RuntimeError("not expected")


def _says_two(words: list[str]) -> int:
    print("seqdiff: error: one\nseqdiff: error: two")
    return 2


def _says_more(words: list[str]) -> int:
    print("seqdiff: error: one\nand more")
    return 2


def _writes(words: list[str]) -> int:
    Path("out.tsv").write_text("half")
    print("seqdiff: error: one")
    return 2


def _hangs(words: list[str]) -> int:
    time.sleep(60)
    return 0


TWINS = {
    _raises: "Traceback",
    _says_two: "2 lines of errors",
    _says_more: "text after the error",
    _writes: r"it wrote \['out.tsv'\]",
    _hangs: "it took more than",
    (lambda words: 1): "exit code 1",
}


@pytest.mark.parametrize("twin", TWINS)
def test_what_a_case_finds(world: Path, twin: Callable, monkeypatch) -> None:
    """Commands with a fault fail."""
    monkeypatch.setattr(torture, "seqdiff_main", twin)
    monkeypatch.setattr(torture, "_SECONDS", 2.0)
    with pytest.raises(AssertionError, match=TWINS[twin]):
        torture.fuzz(world, "FASTA", 0)


def test_a_command_that_loses_its_work_is_found(world: Path, monkeypatch) -> None:
    """One that writes in place, and goes on from what it finds."""

    def careless(words: list[str]) -> int:
        with Path("out.fa").open("a") as file:
            for _ in range(20):
                time.sleep(0.02)
                file.write("x")
                file.flush()
        return 0

    monkeypatch.setattr(torture, "seqdiff_main", careless)
    with pytest.raises(AssertionError, match="another result"):
        for seed in range(8):
            torture.kill(world, "sample", seed, b"x" * 20, 0.4)
