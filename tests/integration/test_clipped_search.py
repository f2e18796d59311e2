"""The search for the interval of mask rates during training changes nothing else."""

import csv
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import nn

from seqdiff.cli.app import main
from seqdiff.objectives import BlockNELBO, WeightedMLM, validation_objective
from seqdiff.rng import CounterNoise
from seqdiff.run import load
from seqdiff.training.callbacks import EMA, ClippedScheduleSearch, RunCheckpoint
from seqdiff.training.clipping import ClippedEstimates, clipping_grid
from tests.integration.toy_domain import ToyBlockNet

ROOT = Path(__file__).parents[2]
PLAIN = ["--backbone", f"{__name__}.DropoutBlockNet", "--objective", "BlockNELBO"]
PLAIN += ["--block_size", "3", "--checkpoint_every_n_steps", "4"]
SEARCH = [*PLAIN, "--objective.search_batches", "4"]


class DropoutBlockNet(ToyBlockNet):
    """Shows whether the network returns to training mode."""

    def __init__(self, *, num_embeddings: int, num_logits: int) -> None:
        super().__init__(num_embeddings=num_embeddings, num_logits=num_logits)
        self.norm = nn.Sequential(nn.Dropout(0.2), nn.LayerNorm(16))


class _Killed(Exception):
    pass


def train(config: Path, run: Path, *flags: str) -> Path:
    assert main(["train", str(config), *flags, "--output", str(run)]) == 0
    return run


def rows(run: Path, name: str) -> dict[int, float]:
    with (run / "metrics.csv").open(newline="") as file:
        return {
            int(r["step"]): float(r["value"]) for r in csv.DictReader(file) if r["name"] == name
        }


def final(run: Path) -> tuple[bytes, dict]:
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    return (run / "model.safetensors").read_bytes(), checkpoint


def kill_in_the_sixth_step(monkeypatch: pytest.MonkeyPatch, config: Path, run: Path, *flags: str):
    original, seen = RunCheckpoint.on_train_batch_end, []

    def dying(self, *args: object) -> None:
        original(self, *args)
        seen.append(1)
        if len(seen) == 5:
            raise _Killed

    with monkeypatch.context() as patch:
        patch.setattr(RunCheckpoint, "on_train_batch_end", dying)
        with pytest.raises(_Killed):
            main(["train", str(config), *flags, "--output", str(run)])
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("every", ["2", "3"], ids=["where it is saved", "before it is saved"])
def test_resume_is_bit_identical(
    every: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = [*SEARCH, "--trainer.max_steps", "9", "--trainer.val_check_interval", every]
    straight, broken = train(config, tmp_path / "straight", *flags), tmp_path / "broken"
    kill_in_the_sixth_step(monkeypatch, config, broken, *flags)
    assert main(["train", "--resume", str(broken)]) == 0
    (weights, checkpoint), (resumed_weights, resumed) = final(straight), final(broken)
    assert resumed_weights == weights
    assert (
        resumed["callbacks"]["ClippedScheduleSearch"]
        == (checkpoint["callbacks"]["ClippedScheduleSearch"])
    )
    for name in ("train/beta", "train/omega", "train/loss_variance", "train/nats_per_token"):
        assert rows(broken, name) == rows(straight, name) != {}


@pytest.mark.slow
def test_a_run_that_forgets_its_interval_is_not_identical(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twin of the test above."""
    flags = [*SEARCH, "--trainer.max_steps", "6", "--trainer.val_check_interval", "3"]
    straight, broken = train(config, tmp_path / "straight", *flags), tmp_path / "broken"
    kill_in_the_sixth_step(monkeypatch, config, broken, *flags)
    monkeypatch.setattr(ClippedScheduleSearch, "load_state_dict", lambda self, state: None)
    assert main(["train", "--resume", str(broken)]) == 0
    assert final(straight)[0] != final(broken)[0]


def test_the_choice_is_logged_used_and_saved(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[float, float]] = []
    original = BlockNELBO.terms

    def recording(self, denoiser, *rest: object) -> torch.Tensor:
        if torch.is_grad_enabled():
            used.append((self.beta, self.omega))
        return original(self, denoiser, *rest)

    monkeypatch.setattr(BlockNELBO, "terms", recording)
    flags = ["--trainer.max_steps", "7", "--trainer.val_check_interval", "3"]
    run = train(config, tmp_path / "run", *SEARCH, *flags)
    beta, omega = rows(run, "train/beta"), rows(run, "train/omega")
    assert list(beta) == list(omega) == [3, 6]
    chosen = {step: (beta[step], omega[step]) for step in beta}
    assert set(chosen.values()) <= set(clipping_grid()) - {(0.0, 1.0)}
    assert used == [(0.0, 1.0)] * 3 + [chosen[3]] * 3 + [chosen[6]]
    saved = final(run)[1]["callbacks"]["ClippedScheduleSearch"]
    assert saved == {"beta": beta[6], "omega": omega[6]}
    least, whole = rows(run, "train/loss_variance"), rows(run, "train/loss_variance_unclipped")
    assert all(0 < least[step] < whole[step] for step in least)


@pytest.mark.slow
def test_a_search_changes_nothing_but_the_interval(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changes neither weights, average, dropout noise nor validation results."""
    flags = ["--trainer.max_steps", "7", "--trainer.val_check_interval", "2"]
    plain = train(config, tmp_path / "plain", *PLAIN, *flags)
    with monkeypatch.context() as patch:
        patch.setattr(ClippedScheduleSearch, "_use", lambda self, module, interval: None)
        searched = train(config, tmp_path / "searched", *SEARCH, *flags)
    assert final(plain)[0] == final(searched)[0]
    assert rows(plain, "val/nats_per_token") == rows(searched, "val/nats_per_token")
    other = train(config, tmp_path / "other", *SEARCH, *flags)
    assert final(plain)[0] != final(other)[0]
    first = [rows(run, "val/nats_per_token")[1] for run in (plain, other)]
    assert first[0] == first[1]
    run = load(other)
    assert isinstance(validation_objective(run.config.objective, run.denoiser), WeightedMLM)


def variances_of(run: Path, objective: BlockNELBO) -> tuple[list[float], tuple[float, float]]:
    """The expected result of a search with the exported weights."""
    loaded = load(run)
    estimates = ClippedEstimates(objective, loaded.denoiser, CounterNoise(7))
    batches = islice(loaded.datamodule.training_loader("valid"), 4)
    found = estimates.variances(torch.stack([estimates.totals(batch) for batch in batches]))
    return found.values.tolist(), found.intervals[found.least]


class ByValidation(BlockNELBO):
    """Broken: always the validation objective, whatever the interval."""

    def terms(self, *arguments: object) -> torch.Tensor:
        return WeightedMLM().terms(*arguments)


@pytest.mark.slow
def test_it_measures_the_average_by_what_training_computes(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run of 4 steps exports its average; when it continues, step 4 searches with
    those weights.
    """
    flags = [*SEARCH, "--trainer.val_check_interval", "4", "--ema_decay", "0.5"]
    run = train(config, tmp_path / "run", *flags, "--trainer.max_steps", "4")
    (values, least), (wrong, _) = (variances_of(run, kind()) for kind in (BlockNELBO, ByValidation))
    assert main(["train", "--resume", str(run), "--trainer.max_steps", "5"]) == 0
    assert (rows(run, "train/beta")[4], rows(run, "train/omega")[4]) == least
    logged = [rows(run, f"train/loss_variance{which}")[4] for which in ("", "_unclipped")]
    assert logged == pytest.approx([min(values), values[-1]], rel=1e-9)
    assert logged != pytest.approx([min(wrong), wrong[-1]], rel=0.1)

    again = train(config, tmp_path / "again", *flags, "--trainer.max_steps", "4")
    # broken: the parameters themselves
    monkeypatch.setattr(EMA, "apply", lambda self, network: None)
    monkeypatch.setattr(EMA, "restore", lambda self, network: None)
    assert main(["train", "--resume", str(again), "--trainer.max_steps", "5"]) == 0
    assert rows(again, "train/loss_variance")[4] != pytest.approx(min(values), rel=1e-6)


@pytest.mark.slow
def test_two_processes_find_what_one_finds(config: Path, tmp_path: Path) -> None:
    flags = [*SEARCH, "--trainer.max_steps", "4", "--trainer.val_check_interval", "2"]
    flags[1] = "tests.integration.toy_domain.ToyBlockNet"
    alone = train(config, tmp_path / "alone", *flags)
    command = [sys.executable, "-m", "seqdiff.cli", "train", str(config), *flags]
    command += ["--output", str(tmp_path / "together"), "--data.init_args.batch_size", "4"]
    command += ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for name in ("train/beta", "train/omega", "train/loss_variance"):
        one, two = rows(alone, name), rows(tmp_path / "together", name)
        assert list(one) == [2] and one == pytest.approx(two, rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--objective.search_batches", "4"], "search_batches must go with validation, after"),
        (["--objective.search_batches", "1"], "search_batches must be at least 2, got 1; 64"),
        (["--objective.search_batches", "x"], "objective.search_batches must be an integer, got x"),
        (
            [
                "--objective.search_batches=4",
                "--trainer.val_check_interval=2",
                "--trainer.strategy=fsdp",
                "--ema_decay=null",
            ],
            "RunConfig.objective.search_batches must be null with sharded weights, got 4",
        ),
        (["--objective", "ContinuousNELBO", "--objective.search_batches", "4"], "search_batches"),
    ],
)
def test_what_does_not_fit_is_refused(
    config: Path, tmp_path: Path, fails, flags: list[str], said: str
) -> None:
    assert said in fails(["train", str(config), *PLAIN, *flags])
    assert not (tmp_path / "run").exists()


def test_a_damaged_choice_is_refused(config: Path, tmp_path: Path, fails) -> None:
    flags = [*SEARCH, "--trainer.max_steps", "4", "--trainer.val_check_interval", "2"]
    run = train(config, tmp_path / "run", *flags)
    content = torch.load(run / "last.ckpt", weights_only=True)
    for damage, said in (
        ({"beta": 0.5}, "ClippedScheduleSearch.omega of type float, got nothing"),
        ({"beta": 0.5, "omega": 0.25}, "BlockNELBO.beta and omega must satisfy"),
    ):
        content["callbacks"]["ClippedScheduleSearch"] = damage
        torch.save(content, run / "last.ckpt")
        assert said in fails(["train", "--resume", str(run), "--trainer.max_steps", "6"])
