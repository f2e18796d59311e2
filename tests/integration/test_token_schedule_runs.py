"""Runs with learned schedules of tokens: trained, averaged, resumed, evaluated, sampled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.cli.app import main
from seqdiff.denoiser import ByContextDenoiser, BySymbolDenoiser
from seqdiff.run import load

Fails = Callable[[list[str]], str]
SETTINGS = {
    "data": {
        "class_path": "tests.ring_process.EasyData",
        "init_args": {"length": 8, "batch_size": 16},
    },
    "preset": "genmd4",
    "backbone": {
        "class_path": "seqdiff.backbones.Transformer",
        "init_args": {"d_model": 16, "n_layer": 1, "n_heads": 2, "cond_dim": 8},
    },
    "optim": {"lr": 1e-2, "warmup_steps": 0, "schedule": "constant"},
    "trainer": {
        "val_check_interval": 3,
        "accelerator": "cpu",
        "enable_progress_bar": False,
        "log_every_n_steps": 1,
    },
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> None:
    torch.set_num_threads(1)


def train(folder: Path, steps: int, *flags: str, **keys: object) -> Path:
    folder.mkdir(exist_ok=True)
    path, run = folder / "toy.yaml", folder / "run"
    path.write_text(yaml.safe_dump(SETTINGS | {"output": str(run)} | keys))
    assert main(["train", str(path), "--trainer.max_steps", str(steps), *flags]) == 0
    return run


def powers(run: Path) -> torch.Tensor:
    denoiser = load(run).denoiser
    assert isinstance(denoiser, BySymbolDenoiser)
    return denoiser.process.powers.detach()


def evaluate_and_sample(run: Path, estimators: list[str], samplers: list[str]) -> None:
    for estimator in estimators:
        words = ["--estimator", estimator, "--evaluations", "4", "--device", "cpu"]
        assert main(["evaluate", str(run), *words]) == 0
    for sampler in samplers:
        drawn = run / f"{sampler}.ring"
        words = ["--num", "2", "--length", "8", "--seed", "1", "--out", str(drawn)]
        words += ["--sampler", sampler, "--num-steps", "4", "--device", "cpu"]
        assert main(["sample", str(run), *words]) == 0
        assert all(len(line.split()[1]) == 8 for line in drawn.read_text().splitlines())


def test_powers_are_trained_averaged_resumed_and_used(tmp_path: Path, toy_writer: None) -> None:
    assert torch.equal(powers(train(tmp_path / "start", 0)), torch.ones(6).double())
    last = train(tmp_path / "last", 6, ema_decay=None)
    moved = powers(last)
    assert (moved - 1).abs().max() > 0.02
    mean = powers(train(tmp_path / "mean", 6, ema_decay=0.9))
    assert not torch.allclose(mean, moved)
    resumed = train(tmp_path / "resumed", 3, ema_decay=None)
    assert main(["train", "--resume", str(resumed), "--trainer.max_steps", "6"]) == 0
    weights, again = (load(run).denoiser.state_dict() for run in (last, resumed))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    samplers = ["ancestral", "tau_leaping"]
    evaluate_and_sample(last, ["time-integral", "discrete-steps"], samplers)


def test_scores_are_trained_resumed_and_used(tmp_path: Path, toy_writer: None) -> None:
    scores = "scores.last.weight"
    start = load(train(tmp_path / "start", 0, preset="lomdm")).denoiser
    assert isinstance(start, ByContextDenoiser)
    assert not start.state_dict()[scores].any()
    last = train(tmp_path / "last", 6, ema_decay=None, preset="lomdm")
    resumed = train(tmp_path / "resumed", 3, ema_decay=None, preset="lomdm")
    assert main(["train", "--resume", str(resumed), "--trainer.max_steps", "6"]) == 0
    weights, again = (load(run).denoiser.state_dict() for run in (last, resumed))
    assert weights[scores].any()
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    evaluate_and_sample(last, ["time-integral"], ["ancestral"])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--objective", "seqdiff.objectives.ContinuousNELBO"],
            "got ContinuousNELBO; choose TokenScheduleNELBO",
        ),
        (["--parameterization", "seqdiff.parameterization.Subs"], "got absorbing-by-symbol"),
        (["--backbone.time_conditioned", "false"], "must be told the noise level"),
        (["--block_size", "2"], "block_size must be null with the process absorbing-by-symbol"),
        (["--experts.order", "2"], "experts must be None for the process absorbing-by-symbol"),
    ],
)
def test_parts_that_do_not_fit_are_an_error_in_one_line(
    flags: list[str], said: str, tmp_path: Path, fails: Fails
) -> None:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(SETTINGS | {"output": str(tmp_path / "run")}))
    assert said in fails(["train", str(path), *flags])
    assert not (tmp_path / "run").exists()
