"""The ledger: results of any writer are found again, and the file is whole after a kill."""

import os
from pathlib import Path

import pytest

from seqdiff import files
from seqdiff.training import Ledger

CELLS = 60


def test_the_ledger_keeps_what_others_write(tmp_path: Path) -> None:
    one, two = Ledger(tmp_path / "r.jsonl"), Ledger(tmp_path / "r.jsonl")
    one.add({"b": 1, "a": 2}, {"x": 1})
    two.add({"a": 3}, {"x": 2})
    again = Ledger(tmp_path / "r.jsonl")
    assert again.find({"a": 2, "b": 1}) == {"x": 1} and again.find({"a": 3}) == {"x": 2}
    assert again.find({"a": 2}) is None


def test_two_writers_at_once_keep_all_cells(tmp_path: Path) -> None:
    """Without the lock a writer loses what the other wrote between its reading and writing."""
    path, writers = tmp_path / "r.jsonl", []
    for writer in range(2):
        process = os.fork()
        if process == 0:
            code = 1
            try:
                ledger = Ledger(path)
                for cell in range(CELLS):
                    ledger.add({"writer": writer, "cell": cell}, {"x": cell})
                code = 0
            finally:
                os._exit(code)
        writers.append(process)
    assert [os.waitpid(process, 0)[1] for process in writers] == [0, 0]
    found = Ledger(path)
    for writer in range(2):
        for cell in range(CELLS):
            assert found.find({"writer": writer, "cell": cell}) == {"x": cell}


def test_a_writer_that_dies_lets_go_and_leaves_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it writes: the file is unchanged, and the next writer need not wait."""
    path = tmp_path / "r.jsonl"
    Ledger(path).add({"a": 1}, {"x": 1})
    before = path.read_bytes()
    process = os.fork()
    if process == 0:
        real = os.fsync

        def dies(descriptor: int) -> None:
            real(descriptor)
            os.kill(os.getpid(), 9)

        monkeypatch.setattr(files.os, "fsync", dies)
        Ledger(path).add({"a": 2}, {"x": 2})
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -9
    assert path.read_bytes() == before
    Ledger(path).add({"a": 3}, {"x": 3})
    assert len(path.read_text().splitlines()) == 2


def test_a_file_is_replaced_and_never_written_in_place(tmp_path: Path) -> None:
    path, kept = tmp_path / "r.jsonl", tmp_path / "kept"
    Ledger(path).add({"a": 1}, {"x": 1})
    kept.hardlink_to(path)
    before = path.read_bytes()
    Ledger(path).add({"a": 2}, {"x": 2})
    assert kept.read_bytes() == before and path.read_bytes().startswith(before)


def test_a_damaged_ledger_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    Ledger(path).add({"a": 1}, {"x": 1})
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(ValueError, match=r"r\.jsonl:2: must be a finished cell"):
        Ledger(path)
