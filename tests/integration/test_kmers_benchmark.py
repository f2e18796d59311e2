"""The benchmark of k-mer counting at small size."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import kmers
from benchmarks.kmers import count_plainly, random_genome
from genomics.sequence.alphabet import encode


def test_runs_and_records(tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    kmers.main(["--pairs", "1", "--bases", "5000", "--json", str(path)])
    assert "ratio (over pairs)" in capsys.readouterr().out
    found = json.loads(path.read_text())["results"]
    assert found["bases_per_second"] == pytest.approx(5000 / found["seconds"])
    assert found["target"] == 100e6


def test_other_counts_are_refused(monkeypatch, capsys) -> None:
    def one_short(ids):
        counts = count_plainly(ids)
        counts[5][0] += 1
        return counts

    monkeypatch.setattr(kmers, "count_kmers", one_short)
    with pytest.raises(SystemExit, match="the two sides differ in 6-mers"):
        kmers.main(["--pairs", "1", "--bases", "5000"])
    assert "MB/s" not in capsys.readouterr().out


def test_the_plain_side() -> None:
    counts = count_plainly(encode("ACNAC"))
    assert counts[0].tolist() == [2, 2, 0, 0]
    assert np.flatnonzero(counts[1]).tolist() == [1] and counts[1][1] == 2
    assert counts[2].sum() == 0 and (random_genome(1000) == 4).any()
