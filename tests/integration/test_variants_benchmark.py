"""The benchmark of variant scores at small size."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import variants
from genomics.variants.effects import LikelihoodRatio

SMALL = ["--pairs", "1", "--sites", "1", "--window", "8", "--d_model", "8", "--n_layer", "1"]
SMALL += ["--evaluations", "4", "--batch_size", "3"]


def test_runs_and_records(tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    variants.main([*SMALL, "--json", str(path)])
    assert "ratio (over pairs)" in capsys.readouterr().out
    document = json.loads(path.read_text())
    assert document["settings"]["sites"] == 1
    for score in ("marginal", "llr"):
        found = document["results"][score]
        assert found["variants_per_second"] == pytest.approx(3 / found["seconds"])


@pytest.mark.parametrize("score", ["marginal", "llr"])
def test_other_scores_are_refused(monkeypatch, capsys, score: str) -> None:
    def wrong(denoiser, windows, **rest):
        if score == "marginal":
            return [1.0] * len(windows)
        return [LikelihoodRatio(1.0, 0.0, 1.0, 1.0)] * len(windows)

    name = {"marginal": "masked_marginals", "llr": "likelihood_ratios"}[score]
    monkeypatch.setattr(variants, name, wrong)
    with pytest.raises(SystemExit, match=f"the two sides differ in {score}"):
        variants.main(SMALL)
    assert "one window" not in capsys.readouterr().out


def test_evaluations_go_in_pairs(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        variants.main([*SMALL, "--evaluations", "3"])
    assert "SmallK.evaluations must be even" in capsys.readouterr().err


def test_three_alternatives_at_each_site() -> None:
    pairs = variants.random_alleles(2, 8)
    assert len(pairs) == 6
    for first in (0, 3):
        site = pairs[first : first + 3]
        assert all((pair.ref == site[0].ref).all() for pair in site)
        assert all(np.flatnonzero(pair.ref != pair.alt).size == 1 for pair in site)
        assert len({pair.alt.tobytes() for pair in site}) == 3
