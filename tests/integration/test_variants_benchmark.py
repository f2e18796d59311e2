"""The benchmark of variant scores at small size."""

import json
from pathlib import Path

import pytest

from benchmarks import variants
from genomics.sequence import decode
from genomics.variants.effects import LikelihoodRatio

SMALL = ["--pairs", "1", "--sites", "1", "--window", "8", "--d_model", "8", "--n_layer", "1"]
SMALL += ["--evaluations", "4", "--batch_size", "3", "--dense_sites", "4", "--spacing", "2"]


def test_runs_and_records(tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    variants.main([*SMALL, "--json", str(path)])
    assert "ratio (over pairs)" in capsys.readouterr().out
    document = json.loads(path.read_text())
    assert document["settings"]["sites"] == 1
    counts = {"marginal": 3, "llr": 3, "marginal, dense": 12, "marginal, dense, spacing 2": 12}
    assert list(document["results"]) == list(counts)
    for score, count in counts.items():
        found = document["results"][score]
        assert found["variants_per_second"] == pytest.approx(count / found["seconds"])


@pytest.mark.parametrize("score", ["marginal", "llr", "marginal, dense, spacing 2"])
def test_other_scores_are_refused(monkeypatch, capsys, score: str) -> None:
    def wrong(denoiser, windows, **rest):
        if score == "llr":
            return [LikelihoodRatio(1.0, 0.0, 1.0, 1.0)] * len(windows)
        return [1.0] * (len(windows) if score == "marginal" else 12)

    name = {"marginal": "masked_marginals", "llr": "likelihood_ratios"}.get(
        score, "shared_marginals"
    )
    monkeypatch.setattr(variants, name, wrong)
    with pytest.raises(SystemExit, match=f"the two sides differ in {score}"):
        variants.main(SMALL)
    assert "one window" not in capsys.readouterr().out


def test_evaluations_go_in_pairs(capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        variants.main([*SMALL, "--evaluations", "3"])
    assert "SmallK.evaluations must be even" in capsys.readouterr().err


def test_three_alternatives_at_each_site() -> None:
    genome, found = variants.random_variants(2, 8, 8)
    assert [variant.pos for variant in found] == [9] * 3 + [17] * 3
    for first in (0, 3):
        ref = decode(genome.ids[found[first].start][None])
        assert {v.ref for v in found[first : first + 3]} == {ref}
        assert {v.alt for v in found[first : first + 3]} == set("ACGT") - {ref}
