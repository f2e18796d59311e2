"""The benchmark of block attention at small size; it does not time results that differ."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import block_attention
from seqdiff.backbones.transformer.block_diffusion import dense_pass, structured_pass

ROOT = Path(__file__).parents[2]
SMALL = ["--pairs", "2", "--shape", "8x2x2x24", "--vocabulary", "9", "--batch", "2"]


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """No separate process and no compilation: a second dense mask replaces FlexAttention."""
    monkeypatch.setattr(block_attention, "in_fresh_process", lambda module, way, *rest: len(way))
    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setitem(block_attention.WAYS, "flex", dense_pass)


def test_it_runs_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    block_attention.main([*SMALL, "--block", "4", "24", "--json", str(path)])
    assert "2 rows, vocabulary 9; flex has no backward on the CPU" in capsys.readouterr().out
    results = json.loads(path.read_text())["results"]
    assert [(row["block_size"], row["what"], row["way"]) for row in results] == [
        *((size, what, way) for size in (4, 24) for what, way in ROWS)
    ]
    assert [row["peak_bytes"] for row in results[:5]] == [5, 10, None, None, None]
    assert all(row["ratio_of_each_pair"] == [1, 1] for row in results if row["way"] == "dense")


ROWS = [
    *(("step", way) for way in ("dense", "structured")),
    *(("forward", way) for way in ("dense", "structured", "flex")),
]


def test_it_refuses_ways_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    def blind(body, pair):
        return structured_pass(body, pair._replace(x0=pair.x0.flip(1)))

    monkeypatch.setitem(block_attention.WAYS, "structured", blind)
    with pytest.raises(
        SystemExit, match=r"4, structured and dense: the two sides differ in .*noth"
    ):
        block_attention.main([*SMALL, "--block", "4"])


def test_a_block_longer_than_the_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        block_attention.main([*SMALL, "--block", "4", "25"])
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith("--block must be at most the length 24, got 25\n")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells")
def test_memory_is_that_of_a_process_of_its_own() -> None:
    """The mask [2,048, 2,048] in float32 takes 16 MiB; the structured form has no mask."""
    at = ("8x1x2x1024", "4", "9", "1")
    peaks = [
        int(
            subprocess.check_output(
                [sys.executable, "-m", block_attention.__name__, way, *at], cwd=ROOT
            )
        )
        for way in ("dense", "structured")
    ]
    assert peaks[0] > peaks[1] + 2**24
