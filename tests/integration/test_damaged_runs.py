"""Runs damaged by a kill, a copy or another version: one-line errors that leave the run
unchanged.
"""

import shutil
import subprocess
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from seqdiff.cli.app import main
from seqdiff.run.start import git_revision
from seqdiff.training.callbacks import EMA
from seqdiff.training.weights import read_checkpoint
from tests.integration.conftest import TOY, same

MORE = ["--trainer.max_steps", "62"]


@pytest.fixture
def copied(trained: Path, tmp_path: Path) -> Path:
    """A finished run that a test may change."""
    return Path(shutil.copytree(trained, tmp_path / "copied"))


PLACES = [
    "global_step",
    "pytorch-lightning_version",
    "state_dict",
    "loops.fit_loop",
    "optimizer_states.0.state",
    "optimizer_states.0.param_groups",
    "lr_schedulers.0.last_epoch",
    "lr_schedulers.0.lr_lambdas",
    "callbacks",
    "callbacks.EMA.num_updates",
    "log_window",
    "log_window.totals",
    "log_window.start",
    "ToyData",
    "ToyData.position",
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("damage", ["missing", "of another type"])
def test_checkpoint_without_what_it_needs(copied: Path, fails, place: str, damage: str) -> None:
    content = torch.load(copied / "last.ckpt", weights_only=True)
    *outer, last = [int(key) if key.isdecimal() else key for key in place.split(".")]
    owner = content
    for key in outer:
        owner = owner[key]
    if damage == "missing":
        del owner[last]
    else:
        owner[last] = 1.5
    torch.save(content, copied / "last.ckpt")
    before = (copied / "run.yaml").read_bytes()
    message = fails(["train", "--resume", str(copied), *MORE])
    assert f"{copied / 'last.ckpt'} must hold {place}" in message
    assert "start again with another --output" in message
    assert (copied / "run.yaml").read_bytes() == before


DAMAGES = {
    "EMA without a weight": lambda c: c["callbacks"]["EMA"].pop("average.backbone.scores.bias"),
    "EMA of another shape": lambda c: c["callbacks"]["EMA"].update(
        {"average.backbone.scores.bias": torch.ones(9)}
    ),
    "EMA of many counts": lambda c: c["callbacks"]["EMA"].update(num_updates=torch.zeros(2)),
    "Timer of words": lambda c: c["callbacks"].update(Timer={"time_elapsed": {"train": "long"}}),
    "no optimiser": lambda c: c["optimizer_states"].clear(),
    "no optimiser state": lambda c: c["optimizer_states"][0]["state"].clear(),
    "state of nothing": lambda c: c["optimizer_states"][0]["state"].update({99: {}}),
    "state that is none": lambda c: c["optimizer_states"][0]["state"].update({0: 1.5}),
    "moment missing": lambda c: c["optimizer_states"][0]["state"][0].pop("exp_avg_sq"),
    "moment of another shape": lambda c: c["optimizer_states"][0]["state"][0].update(
        exp_avg=torch.zeros(3)
    ),
    "group missing": lambda c: c["optimizer_states"][0]["param_groups"].pop(),
    "group of nothing": lambda c: c["optimizer_states"][0]["param_groups"][0].pop("params"),
    "group cut": lambda c: c["optimizer_states"][0]["param_groups"][0]["params"].pop(),
    "position below zero": lambda c: c["ToyData"].update(position=-5),
    "step below zero": lambda c: c.update(global_step=-1),
    "another step": lambda c: c.update(global_step=59),
    "empty loop": lambda c: c["loops"].update(fit_loop={}),
    "scheduler below zero": lambda c: c["lr_schedulers"][0].update(last_epoch=-2),
    "window of another shape": lambda c: c["log_window"].update(totals=torch.zeros(3)),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_checkpoint_that_would_break_later(copied: Path, fails, damage: str) -> None:
    content = torch.load(copied / "last.ckpt", weights_only=True)
    DAMAGES[damage](content)
    torch.save(content, copied / "last.ckpt")
    before = (copied / "run.yaml").read_bytes()
    message = fails(["train", "--resume", str(copied), *MORE])
    assert message.startswith(f"seqdiff: error: {copied / 'last.ckpt'}")
    assert "RunCheckpoint" not in message and " must " in message
    assert (copied / "run.yaml").read_bytes() == before


def test_a_parameter_without_a_gradient_has_no_state(config: Path, tmp_path: Path) -> None:
    """AdamW has no moments of a parameter that never had a gradient, which is not an error."""
    flags = ["--backbone", f"{TOY}.NetWithASpare", "--trainer.max_steps"]
    assert main(["train", str(config), *flags, "2"]) == 0
    assert main(["train", "--resume", str(tmp_path / "run"), *flags[2:], "4"]) == 0


def test_run_yaml_is_signed_once_the_checkpoint_is_taken_in(
    copied: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it contains something that only Lightning or a callback can reject."""

    def refuse(self, state: dict[str, torch.Tensor]) -> None:
        raise ValueError("refused by a callback")

    monkeypatch.setattr(EMA, "load_state_dict", refuse)
    before = (copied / "run.yaml").read_bytes()
    assert "refused by a callback" in fails(["train", "--resume", str(copied), *MORE])
    assert (copied / "run.yaml").read_bytes() == before


@pytest.mark.parametrize("content", [[1, 2], {}, torch.zeros(2), None, 7])
def test_checkpoint_that_is_something_else(copied: Path, fails, content: object) -> None:
    torch.save(content, copied / "last.ckpt")
    message = fails(["train", "--resume", str(copied), *MORE])
    assert "must hold global_step of type int, got nothing" in message


def test_weights_that_are_no_tensors(copied: Path, fails) -> None:
    content = torch.load(copied / "last.ckpt", weights_only=True)
    content["state_dict"]["denoiser.backbone.scores.bias"] = [0.0] * 6
    torch.save(content, copied / "last.ckpt")
    message = fails(["train", "--resume", str(copied), *MORE])
    assert "denoiser.backbone.scores.bias of shape None where (6,) is needed" in message


@pytest.mark.parametrize("kept", [0, 1, 100, 5000, -1, -30])
def test_cut_checkpoint(copied: Path, fails, kept: int) -> None:
    path = copied / "last.ckpt"
    path.write_bytes(path.read_bytes()[:kept])
    message = fails(["train", "--resume", str(copied), *MORE])
    assert f"{path} must be a checkpoint of plain tensors, got: " in message


@pytest.mark.slow
def test_every_flipped_byte_is_found_or_harmless(trained: Path, tmp_path: Path) -> None:
    """All bytes of the headers, and a sample of the others.

    The broken twin, ``torch.load`` alone, reads other values without an error.
    """
    whole, path = (trained / "last.ckpt").read_bytes(), tmp_path / "last.ckpt"
    original = torch.load(trained / "last.ckpt", weights_only=True)
    rng = np.random.default_rng(0)
    with zipfile.ZipFile(trained / "last.ckpt") as archive:
        last = archive.infolist()[-1].header_offset
    places = [*range(200), *range(last, len(whole), 3), *rng.integers(len(whole), size=300)]
    outcomes = {"refused": 0, "harmless": 0, "missed by torch": 0}
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(damaged)
        try:
            content = read_checkpoint(path)
        except ValueError as error:
            assert f"{path} must be a checkpoint of plain tensors, got: " in str(error)
            assert "\n" not in str(error) and "start again with another --output" in str(error)
            outcomes["refused"] += 1
        else:
            assert same(content, original), place
            outcomes["harmless"] += 1
            continue
        with suppress(Exception):
            outcomes["missed by torch"] += not same(torch.load(path, weights_only=True), original)
    assert all(outcomes.values()), outcomes


def test_a_flipped_bit_of_a_weight_is_one_line(copied: Path, fails) -> None:
    path = copied / "last.ckpt"
    content, damaged = torch.load(path, weights_only=True), bytearray(path.read_bytes())
    bias = content["state_dict"]["denoiser.backbone.scores.bias"]
    damaged[damaged.index(bias.numpy().tobytes())] ^= 1
    path.write_bytes(damaged)
    before = (copied / "run.yaml").read_bytes()
    message = fails(["train", "--resume", str(copied), *MORE])
    assert f"{path} must be a checkpoint of plain tensors, got: a wrong checksum of " in message
    assert message.endswith(
        f"copy it again, or start another run from the exported weights: --start_from {copied}"
    )
    assert (copied / "run.yaml").read_bytes() == before


@pytest.mark.parametrize("torn", ["", "\r\n", "60", "60,train/lr", "60,train/lr,0.0", "\0" * 9])
def test_a_torn_last_metric_is_dropped(copied: Path, torn: str) -> None:
    path = copied / "metrics.csv"
    whole = path.read_bytes()
    path.write_bytes(whole + torn.encode())
    assert main(["train", "--resume", str(copied), *MORE]) == 0
    assert path.read_bytes().startswith(whole)
    added = path.read_bytes()[len(whole) :].decode().splitlines()
    assert {line.split(",")[0] for line in added} == {"60", "61"}
    assert all(len(line.split(",")) == 3 for line in added)


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_lost_metrics_are_said(copied: Path, kept: int, capsys) -> None:
    """The header alone, and too few rows; the training goes on."""
    path = copied / "metrics.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    assert main(["train", "--resume", str(copied), "--trainer.max_steps=70"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "warning" in line]
    assert len(said) == 1 and said[0].startswith(f"seqdiff: warning: {path} has no rows of steps ")
    assert said[0].endswith(" to 59; they were lost, and the training goes on without them")


def test_metrics_that_are_something_else(copied: Path, fails) -> None:
    path = copied / "metrics.csv"
    path.write_text("step,name,value\n0,train/lr,1.0\nwhat is this\n1,train/lr,1.0\n")
    message = fails(["train", "--resume", str(copied), *MORE])
    assert f"{path} must hold rows of step,name,value, got 'what is this'" in message
    assert path.read_text().endswith("1,train/lr,1.0\n")


def test_metrics_whose_step_is_no_number(copied: Path, fails) -> None:
    path = copied / "metrics.csv"
    path.write_text("step,name,value\nx,train/lr,1.0\n")
    message = fails(["train", "--resume", str(copied), *MORE])
    assert f"{path} must hold rows of step,name,value, got 'x,train/lr,1.0'" in message


def test_metrics_without_their_header(copied: Path, fails) -> None:
    """The first row must not be dropped as a header."""
    path = copied / "metrics.csv"
    path.write_text(path.read_text().partition("\n")[2])
    before = path.read_bytes()
    message = fails(["train", "--resume", str(copied), *MORE])
    assert f"{path} must begin with step,name,value, got '0,train/" in message
    assert "TrainerConfig" not in message and path.read_bytes() == before


def test_a_run_whose_time_is_used_up(config: Path, tmp_path: Path, fails) -> None:
    run = tmp_path / "run"
    flags = ["--trainer.max_time", "00:00:00:01", "--trainer.max_steps", "100000"]
    assert main(["train", str(config), *flags]) == 0
    before = (run / "run.yaml").read_bytes(), (run / "last.ckpt").read_bytes()
    message = fails(["train", "--resume", str(run)])
    assert "max_time must exceed the 1 s of training done, got 00:00:00:01" in message
    assert "add --trainer.max_time with more" in message
    assert ((run / "run.yaml").read_bytes(), (run / "last.ckpt").read_bytes()) == before
    step = torch.load(run / "last.ckpt", weights_only=True)["global_step"]
    more = ["--trainer.max_time", "00:01:00:00", "--trainer.max_steps", str(step + 2)]
    assert main(["train", "--resume", str(run), *more]) == 0
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] == step + 2


def test_no_time_at_all(config: Path, tmp_path: Path, fails) -> None:
    message = fails(["train", str(config), "--trainer.max_time", "00:00:00:00"])
    assert "max_time must exceed the 0 s of training done" in message
    assert not (tmp_path / "run").exists()


def test_the_revision_is_written(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, steps = tmp_path / "run", "--trainer.max_steps"
    for revision, command in (
        ("a", [str(config), steps, "1"]),
        ("b+", ["--resume", str(run), steps, "2"]),
        (None, ["--resume", str(run), steps, "3"]),
    ):
        monkeypatch.setattr("seqdiff.run.start.git_revision", lambda package, known=revision: known)
        assert main(["train", *command]) == 0
    written = yaml.safe_load((run / "run.yaml").read_text())
    assert written["provenance"]["git_revision"] == "a"
    assert [entry.get("git_revision") for entry in written["resumed"]] == ["b+", None]


def test_each_resumption_is_signed(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = yaml.safe_load((copied / "run.yaml").read_text())
    assert first["resumed"] is None
    monkeypatch.setattr("seqdiff.run.start.version", lambda name: f"later {name}")
    for steps in ("61", "62"):
        assert main(["train", "--resume", str(copied), "--trainer.max_steps", steps]) == 0
    later = yaml.safe_load((copied / "run.yaml").read_text())
    assert later["provenance"] == first["provenance"]
    assert [entry["step"] for entry in later["resumed"]] == ["60", "61"]
    assert {entry["torch"] for entry in later["resumed"]} == {"later torch"}
    again = copied.with_name("again")
    flags = ["--output", str(again), "--trainer.max_steps", "1"]
    assert main(["train", str(copied / "run.yaml"), *flags]) == 0
    fresh = yaml.safe_load((again / "run.yaml").read_text())
    assert fresh["provenance"]["torch"] == "later torch" and fresh["resumed"] is None


def _git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    command = ["git", "-C", str(folder), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_revision_is_the_one_of_the_package(tmp_path: Path, monkeypatch) -> None:
    """The revision of the package, not of the working directory or of a checkout that
    contains it.
    """
    checkout, elsewhere = tmp_path / "checkout", tmp_path / "elsewhere"
    for folder in (checkout / "package", checkout / "installed", elsewhere / "package"):
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("")
    _git(checkout, "init")
    _git(checkout, "add", "package")
    _git(checkout, "commit", "-m", "first")
    commit = _git(checkout, "rev-parse", "HEAD")
    for here in (checkout, elsewhere):
        monkeypatch.chdir(here)
        assert git_revision(checkout / "package") == commit
        assert git_revision(checkout / "installed") is None
        assert git_revision(elsewhere / "package") is None
    (checkout / "package" / "__init__.py").write_text("changed = True")
    assert git_revision(checkout / "package") == commit + "+"
