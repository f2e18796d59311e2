"""The benchmark of padding runs at small size, and does not time results that differ."""

import json
from pathlib import Path

import pytest
import torch.nn.functional as F

from benchmarks import ragged_attention
from seqdiff.backbones.transformer import packing

SIZES = [
    *("--pairs", "2", "--shape", "8x1x2x32", "--vocabulary", "7"),
    *("--sentences", "3", "--documents", "2", "--full", "2"),
]


def test_it_runs_and_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "figures.json"
    ragged_attention.main([*SIZES, "--json", str(path)])
    assert "8x1x2x32 documents 2" in capsys.readouterr().out
    results = json.loads(path.read_text())["results"]
    assert len(results) == 3 * 6
    shares = {row["case"].split()[1]: row["real_share"] for row in results}
    assert shares["sentences"] < 1 and shares["documents"] < 1 and shares["full"] == 1
    kept = [row for row in results if row["way"] == "padding kept"]
    assert all(row["ratio_of_each_pair"] == [1, 1] for row in kept)


def test_it_refuses_rows_that_see_each_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        packing.Packed, "mix", lambda self, q, k, v: F.scaled_dot_product_attention(q, k, v)
    )
    with pytest.raises(SystemExit, match="ours and padding kept: the two sides differ in"):
        ragged_attention.main(SIZES)
    assert "real" not in capsys.readouterr().out
