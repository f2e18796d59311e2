"""The benchmark of experts at small size."""

import json
from pathlib import Path

import pytest

from benchmarks import experts
from seqdiff.cli.app import main
from seqdiff.experts import NGramExperts, Terms


@pytest.fixture
def run(config: Path, tmp_path: Path) -> Path:
    command = ["train", str(config), "--trainer.max_steps=2", "--experts.order=2"]
    assert main([*command, f"--output={tmp_path / 'run'}"]) == 0
    return tmp_path / "run"


def test_runs_and_records(run: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    experts.main([str(run), "--rows", "4", "--pairs", "2", "--json", str(path)])
    assert "network and experts" in capsys.readouterr().out
    found = json.loads(path.read_text())
    assert found["settings"] == {"rows": 4, "length": 12, "symbols": 6}
    assert found["results"]["ratio"] > 0


def test_another_mixture_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = NGramExperts.terms

    def broken(*arguments, **sight) -> Terms:
        found = terms(*arguments, **sight)
        return found._replace(chain=2 * found.chain) if "context" in sight else found

    monkeypatch.setattr(NGramExperts, "terms", broken)
    with pytest.raises(SystemExit, match="the two sides differ in probabilities"):
        experts.main([str(run), "--rows", "4", "--pairs", "1"])


def test_runs_without_experts_are_refused(trained: Path, tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        experts.main([str(trained)])
    assert "must be masked diffusion with n-gram experts" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        experts.main([str(tmp_path / "none")])
    assert "a run directory must hold run.yaml" in capsys.readouterr().err
