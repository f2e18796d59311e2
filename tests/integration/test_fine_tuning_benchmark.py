"""The benchmark of a fine-tuning step at small size."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks import fine_tuning
from benchmarks.fine_tuning import FineTuningStep

TOY = ["--pairs", "1", "--batch", "4", "--length", "24", "--d_model", "8", "--n_layer", "2"]


def test_runs_and_records(tmp_path: Path, capsys) -> None:
    path = tmp_path / "figures.json"
    fine_tuning.main([*TOY, "--json", str(path)])
    assert "ratio (over pairs)" in capsys.readouterr().out
    found = json.loads(path.read_text())["results"]
    assert found["sequences_per_second"] == pytest.approx(4 / found["seconds"])
    assert found["largest_gap"] < 1e-3


def test_other_gradients_are_refused(monkeypatch, capsys) -> None:
    honest = FineTuningStep.numbers

    calls = iter([1.0, 1.01])

    def scaled(step: FineTuningStep) -> dict[str, torch.Tensor]:
        found = honest(step)
        return {**found, "loss": found["loss"] * next(calls)}

    monkeypatch.setattr(FineTuningStep, "numbers", scaled)
    with pytest.raises(SystemExit, match="the two sides differ in loss"):
        fine_tuning.main(TOY)
    assert "sequences/s" not in capsys.readouterr().out


def test_a_step_learns() -> None:
    step = FineTuningStep(fine_tuning.make_network(8, 1), 8, 24)
    first = step.loss().item()
    for _ in range(60):
        step()
    assert step.loss().item() < first - 0.01
