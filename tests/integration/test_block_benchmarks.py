"""The benchmarks of block diffusion run at small size, and do not time results that differ."""

import json
from pathlib import Path

import pytest
import yaml

from benchmarks import block_decoding, block_length, block_sampling
from seqdiff.cli.app import main
from tests.integration.conftest import write_config

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


def untrained(folder: Path, net: str, **content: object) -> Path:
    path = write_config(folder)
    sizes = {"d_model": 8, "n_layer": 1, "n_heads": 2}
    backbone = {"class_path": f"seqdiff.backbones.{net}", "init_args": sizes}
    path.write_text(
        yaml.safe_dump(yaml.safe_load(path.read_text()) | content | {"backbone": backbone})
    )
    assert main(["train", str(path), "--trainer.max_steps", "0"]) == 0
    return folder / "run"


def test_decoding_of_blocks_is_measured(tmp_path: Path, capsys) -> None:
    blocks = {"block_size": 4, "objective": "seqdiff.objectives.BlockNELBO"}
    run = untrained(tmp_path / "blocks", "Transformer", **blocks)
    judge = untrained(tmp_path / "judge", "AutoregressiveTransformer", preset="ar")
    path, small = tmp_path / "a.json", "--pairs 2 --rows 3 --length 8 --thresholds 1 0.01".split()
    block_decoding.main([str(run), "--judge", str(judge), *small, "--json", str(path)])
    assert "asked: at least 3x" in capsys.readouterr().out
    found = {row["side"]: row for row in json.loads(path.read_text())["results"]}
    spent = {name: row["evaluations_per_token"] for name, row in found.items()}
    assert spent == {
        **{"plain": 9 / 8, "plain, 2 steps": 5 / 8, "plain, 1 steps": 3 / 8},
        **{"threshold 1.0": 9 / 8, "threshold 1.0, refresh 4": 9 / 8},
        **{"threshold 0.01": 3 / 8, "threshold 0.01, refresh 4": 3 / 8},
    }
    symbols = len(found["plain"]) and 6
    assert all(abs(row["perplexity"] - symbols) < 1e-3 for row in found.values()), "uniform"
    for swapped in ([str(judge), "--judge", str(judge)], [str(run), "--judge", str(run)]):
        with pytest.raises(SystemExit) as stop:
            block_decoding.main(swapped)
        assert stop.value.code == 2
