"""The benchmark of workers of Ray at small size, with commands in this process."""

import json
from pathlib import Path

import pytest

from benchmarks import ray_workers
from seqdiff.cli.app import main

SMALL = ["--pairs", "1", "--rows", "20", "--window", "8", "--d_model", "8", "--n_layer", "1"]


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The number of workers of each command on Ray, which runs without them."""
    found = []

    def call(*words: str) -> None:
        found.extend(word for word in words if word.startswith("--num-workers"))
        assert main([word for word in words if word[:5] not in ("--eng", "--num")]) == 0

    monkeypatch.setattr(ray_workers, "call", call)
    return found


def test_runs_and_records(tmp_path: Path, capsys, workers: list[str]) -> None:
    path = tmp_path / "figures.json"
    ray_workers.main([*SMALL, "--json", str(path)])
    assert workers == ["--num-workers=2", "--num-workers=1"] * 2
    said = capsys.readouterr().out
    assert "ratio (over pairs)" in said and "load average" in said
    found = json.loads(path.read_text())["results"]
    assert found["rows_per_second"] == pytest.approx(20 / found["seconds"])


def test_another_table_is_an_error(monkeypatch, capsys, workers: list[str]) -> None:
    honest = ray_workers.call

    def call(*words: str) -> None:
        honest(*words)
        if workers:
            out = next(word for word in words if word.startswith("--out="))
            Path(out.removeprefix("--out=")).write_text("other")

    monkeypatch.setattr(ray_workers, "call", call)
    with pytest.raises(SystemExit, match="2 workers and one process differ"):
        ray_workers.main(SMALL)
    assert "rows/s" not in capsys.readouterr().out
