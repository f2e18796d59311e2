"""The benchmarks of block diffusion run at small size, and do not time results that differ."""

import json
from pathlib import Path

import pytest

from benchmarks import block_length, block_sampling

SMALL = "--pairs 2 --length 64 --places 2 --width 8 --layers 1 --heads 2".split()
LONG = "--pairs 2 --bases 20000 --block_size 400 --steps 1 --width 6 --layers 1 --blocks 2".split()


def test_the_cache_is_measured(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a.json"
    block_sampling.main([*SMALL, "--json", str(path)])
    said = capsys.readouterr().out
    assert said.count("x (") == 4 and "asked: at least 5x at 1,024 tokens" in said
    record = json.loads(path.read_text())
    assert [(row["block_size"], row["batch"]) for row in record["results"]] == [
        *((4, 1), (4, 16)),
        *((16, 1), (16, 16)),
    ]
    for row in record["results"]:
        assert row["ratio"] > 0 and row["tokens_that_differ"] < 0.02


def test_sides_that_draw_other_tokens_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_sampling.TokensOnly, "append", lambda self, x0: None)
    with pytest.raises(SystemExit, match=r"% of the tokens differ with and without cache"):
        block_sampling.main(SMALL)
    with pytest.raises(SystemExit) as stop:
        block_sampling.main([*SMALL, "--places", "40"])
    assert stop.value.code == 2


def test_every_place_of_a_long_row_is_measured(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a.json"
    block_length.main([*LONG, "--json", str(path)])
    said = capsys.readouterr().out
    assert "memory from 1,000 bases to the last" in said and "all 20,000 bases: " in said
    record = json.loads(path.read_text())
    assert [row["place"] for row in record["results"]] == [1000, 10_000, 20_000]
    times = [row["seconds_at"] for row in record["results"]]
    assert times == sorted(times) and all(row["bytes"] > 2**20 for row in record["results"])
    with pytest.raises(SystemExit) as stop:
        block_length.main(["--bases", "9999"])
    assert stop.value.code == 2
