"""A run that stops and resumes equals, byte for byte, a run that never stopped."""

import csv
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import timer
from safetensors.torch import load_file, save_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.optim import AdamW

from seqdiff.cli.app import main
from seqdiff.cli.extensions import command_line
from seqdiff.experts import mixture
from seqdiff.run import load, start
from seqdiff.training.callbacks import RunCheckpoint
from seqdiff.training.module import DiffusionModule
from tests.integration.conftest import same

WAYS = {
    "plain": [],
    "accumulating": ["--trainer.accumulate_grad_batches", "3"],
    "workers": ["--data.init_args.num_workers", "2"],
    "muon": ["--optim.muon_lr", "0.02"],
    "experts": ["--experts.order", "2"],
    "cosine": ["--optim.schedule", "cosine", "--optim.min_lr", "1e-3"],
    "no average": ["--ema_decay", "null"],
    "validating": ["--trainer.val_check_interval", "2"],
    "dropout": ["--backbone", "tests.integration.toy_domain.DropoutNet"],
}


def _final(run: Path) -> tuple[bytes, dict]:
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    return (run / "model.safetensors").read_bytes(), checkpoint


class _Killed(Exception):
    pass


def _kill_after_batch(monkeypatch: pytest.MonkeyPatch, batches: int) -> None:
    """Stop the process between two batches without saving, like a failing machine."""
    seen = 0
    original = RunCheckpoint.on_train_batch_end

    def dying(self, *args: object) -> None:
        nonlocal seen
        original(self, *args)
        seen += 1
        if seen == batches:
            raise _Killed

    monkeypatch.setattr(RunCheckpoint, "on_train_batch_end", dying)


@pytest.mark.parametrize("way", WAYS)
def test_resume_is_bit_identical(
    way: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9 steps, against a kill in the 6th (during accumulation, if any) after a save at 4."""
    flags = [*WAYS[way], "--trainer.max_steps", "9", "--checkpoint_every_n_steps", "4"]
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert main(["train", str(config), *flags, "--output", str(straight)]) == 0

    each = 3 if way == "accumulating" else 1
    with monkeypatch.context() as patch:
        _kill_after_batch(patch, 5 * each + each // 2)
        with pytest.raises(_Killed):
            main(["train", str(config), *flags, "--output", str(broken)])
    assert torch.load(broken / "last.ckpt", weights_only=True)["global_step"] == 4
    assert main(["train", "--resume", str(broken)]) == 0

    checkpoint = _assert_same(straight, broken)
    assert checkpoint["ToyData"] == {"position": 9 * 8 * each}

    logs = [(run / "metrics.csv").read_text().splitlines() for run in (straight, broken)]
    columns = [[r for r in rows if "per_second" not in r] for rows in logs]
    missing = set(columns[0]) - set(columns[1])
    assert {row.split(",")[1].split("/")[0] for row in missing} <= {"val"}
    assert set(columns[1]) <= set(columns[0]) and len(set(columns[1])) == len(columns[1])


def _assert_same(straight: Path, broken: Path) -> dict[str, Any]:
    """Compare the weights and checkpoints of two runs; returns a checkpoint."""
    (weights, checkpoint), (resumed_weights, resumed) = _final(straight), _final(broken)
    assert resumed_weights == weights
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "ToyData"):
        assert same(checkpoint[key], resumed[key]), key
    return checkpoint


def _send(monkeypatch: pytest.MonkeyPatch, number: int, batches: list[int]) -> None:
    """Send a signal to this process during training batches, counted from 1."""
    seen = 0
    original = DiffusionModule.training_step

    def signalled(self, *args: object) -> torch.Tensor:
        nonlocal seen
        seen += 1
        if seen in batches:
            os.kill(os.getpid(), number)
        return original(self, *args)

    monkeypatch.setattr(DiffusionModule, "training_step", signalled)


@pytest.mark.parametrize(
    ("way", "number"),
    [("plain", signal.SIGTERM), ("accumulating", signal.SIGINT), ("validating", signal.SIGHUP)],
)
def test_a_signal_saves_the_step_and_nothing_is_lost(
    way: str, number: int, config: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the 4th step (in its first of three batches, or before a validation), before any save."""
    flags, each = [*WAYS[way], "--trainer.max_steps", "7"], 3 if way == "accumulating" else 1
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert main(["train", str(config), *flags, "--output", str(straight)]) == 0
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    with monkeypatch.context() as patch:
        _send(patch, number, [3 * each + 1])
        assert main(["train", str(config), *flags, "--output", str(broken)]) == 130
    after = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert after == before
    *_, first, last = capfd.readouterr().err.splitlines()
    assert first == "seqdiff: saving after this step; a second signal stops at once"
    resume = command_line("train", "--resume", broken)
    assert last == f"seqdiff: interrupted; to continue: {resume}"
    assert torch.load(broken / "last.ckpt", weights_only=True)["global_step"] == 4
    assert main(["train", "--resume", str(broken)]) == 0
    _assert_same(straight, broken)
    logs = [(run / "metrics.csv").read_text().splitlines() for run in (straight, broken)]
    columns = [sorted(r for r in rows if "per_second" not in r) for rows in logs]
    assert columns[0] == columns[1]


def test_a_command_can_be_repeated(
    config: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a batch system repeats it: after a signal it continues, and at the end it does nothing."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    command = ["train", str(config), "--trainer.max_steps", "7", "--output"]
    assert main([*command, str(straight)]) == 0
    with monkeypatch.context() as patch:
        _send(patch, signal.SIGTERM, [4])
        assert main([*command, str(broken)]) == 130
    capsys.readouterr()
    assert main([*command, str(broken)]) == 0
    _assert_same(straight, broken)
    before = {path: path.stat().st_mtime_ns for path in broken.glob("[a-z]*")}
    for words in (command, ["train", "--resume"]):
        assert main([*words, str(broken)]) == 0
        assert f"{broken}: trained; next: " in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in broken.glob("[a-z]*")} == before


def test_a_second_signal_stops_at_once(
    config: Path, tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both come in the first step, so that nothing is saved and the same command starts again."""
    command = ["train", str(config), "--trainer.accumulate_grad_batches", "3"]
    with monkeypatch.context() as patch:
        _send(patch, signal.SIGINT, [1, 2])
        assert main(command) == 130
    said = capfd.readouterr().err.splitlines()[-1]
    assert said == "seqdiff: interrupted; nothing was saved yet; the same command starts again"
    assert not (tmp_path / "run" / "last.ckpt").exists()
    assert main(command) == 0


def test_a_signal_in_the_last_step_finishes_the_run(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _send(monkeypatch, signal.SIGTERM, [6])
    assert main(["train", str(config)]) == 0


def test_a_signal_that_the_parent_ignores_is_ignored(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        _send(monkeypatch, signal.SIGHUP, [3])
        assert main(["train", str(config)]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("name", ["run.yaml", "last.ckpt", "model.safetensors"])
def test_a_run_killed_while_it_writes_a_file_resumes_or_starts_again(
    name: str, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before it renames a file, in a run whose first save is its last."""
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert main(["train", str(config), "--output", str(straight)]) == 0
    command, rename = ["train", str(config), "--output", str(broken)], Path.replace

    def replace(self: Path, target: Path) -> Path:
        if target.name == name:
            raise _Killed
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace)
        patch.setattr(Path, "unlink", lambda self, missing_ok=False: None)
        with pytest.raises(_Killed):
            main(command)
    assert any(path.name.startswith(".") and path.suffix for path in broken.iterdir())
    assert (broken / "last.ckpt").exists() == (name == "model.safetensors")
    assert main(command) == 0
    assert (broken / "model.safetensors").read_bytes() == _final(straight)[0]
    assert same(_final(broken)[1]["state_dict"], _final(straight)[1]["state_dict"])
    left = [path.name for path in broken.iterdir() if path.name.startswith(".")]
    assert left == [".lock"]


def test_steps_done_twice_are_shown_once(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TensorBoard drops the points of steps 4 and 5, which the killed run had logged."""
    run, flags = tmp_path / "run", ["--checkpoint_every_n_steps", "4"]
    with monkeypatch.context() as patch:
        _kill_after_batch(patch, 6)
        with pytest.raises(_Killed):
            main(["train", str(config), *flags, "--trainer.max_steps", "9"])
    assert main(["train", "--resume", str(run)]) == 0
    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/lr")] == list(range(9))


def test_a_run_that_forgets_its_position_is_not_identical(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twin: the data stream starts again at 0."""
    from seqdiff.training.module import DataLoaders

    flags = ["--trainer.max_steps", "6", "--checkpoint_every_n_steps", "3"]
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    assert main(["train", str(config), *flags, "--output", str(straight)]) == 0
    assert (
        main(["train", str(config), *flags, "--output", str(broken), "--trainer.max_steps=3"]) == 0
    )
    monkeypatch.setattr(DataLoaders, "load_state_dict", lambda self, state: None)
    assert main(["train", "--resume", str(broken), "--trainer.max_steps", "6"]) == 0
    assert _final(straight)[0] != _final(broken)[0]


def test_resume_with_another_batch_shape_reads_on_at_the_next_example(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """3 steps of 8, then 4 steps of 2 x 5 (mid-group by the old count), then 2 steps of 8."""
    run, seen = tmp_path / "run", []
    original = DiffusionModule.training_step

    def recording(self, batch, batch_idx):
        seen.extend(batch.index.tolist())
        return original(self, batch, batch_idx)

    monkeypatch.setattr(DiffusionModule, "training_step", recording)
    shapes = [(3, 8, 1), (7, 5, 2), (9, 8, 1)]
    for steps, batch_size, accumulate in shapes:
        flags = ["--trainer.max_steps", str(steps), "--data.init_args.batch_size", str(batch_size)]
        flags += ["--trainer.accumulate_grad_batches", str(accumulate)]
        first = ["train", str(config)] if not seen else ["train", "--resume", str(run)]
        assert main([*first, *flags]) == 0
    assert seen == list(range(3 * 8 + 4 * 10 + 2 * 8))
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    assert checkpoint["ToyData"] == {"position": len(seen)}


def test_stop_waits_for_the_accumulated_gradient(config: Path, tmp_path: Path) -> None:
    """A time limit of one second, which passes inside of a group, ends between two steps."""
    run = tmp_path / "run"
    flags = ["--trainer.accumulate_grad_batches", "7", "--trainer.max_time", "00:00:00:01"]
    assert main(["train", str(config), *flags, "--trainer.max_steps", "100000"]) == 0
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    batches = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"]
    assert batches == 7 * checkpoint["global_step"] > 0
    with (run / "metrics.csv").open(newline="") as file:
        last = max(int(row["step"]) for row in csv.DictReader(file))
    assert last == checkpoint["global_step"] - 1


def _count_time_by_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every optimizer step take ten seconds."""
    steps = 0
    original = AdamW.step

    def step(self, *args: object, **kwargs: object) -> object:
        nonlocal steps
        steps += 1
        return original(self, *args, **kwargs)

    monkeypatch.setattr(AdamW, "step", step)
    monkeypatch.setattr(timer, "time", SimpleNamespace(monotonic=lambda: 10.0 * steps))


def test_the_learning_rate_follows_the_time(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine steps in 90 seconds decay as nine steps do, and resume to the same bits."""
    _count_time_by_steps(monkeypatch)
    schedule = ["--optim.schedule=cosine", "--optim.min_lr=1e-3", "--optim.warmup_steps=0"]
    schedule += ["--checkpoint_every_n_steps=4"]
    counted = [*schedule, "--trainer.max_steps=9"]
    timed = [*schedule, "--trainer.max_steps=null", "--trainer.max_time=00:00:01:30"]
    steps, straight, broken = (tmp_path / name for name in ("steps", "straight", "broken"))
    assert main(["train", str(config), *counted, f"--output={steps}"]) == 0
    assert main(["train", str(config), *timed, f"--output={straight}"]) == 0
    assert _final(straight)[0] == _final(steps)[0]
    with monkeypatch.context() as patch:
        _kill_after_batch(patch, 6)
        with pytest.raises(_Killed):
            main(["train", str(config), *timed, f"--output={broken}"])
    assert torch.load(broken / "last.ckpt", weights_only=True)["global_step"] == 4
    for _ in range(2):  # the second finds a finished run
        assert main(["train", str(config), *timed, f"--output={broken}"]) == 0
        assert _final(broken)[0] == _final(straight)[0]
    assert _final(broken)[1]["time_fraction"] == 1.0


def test_a_run_has_an_end(config: Path, fails) -> None:
    message = fails(["train", str(config), "--trainer.max_steps=null"])
    assert "TrainerConfig.max_steps must be a number without a max_time, got null" in message


def test_resume_continues_past_the_end_when_told(trained: Path, fails, tmp_path: Path) -> None:
    message = fails(["train", "--resume", str(trained), "--trainer.max_steps=60"])
    assert "resume.trainer.max_steps must exceed the 60 steps done, got 60" in message
    assert "--resume must" not in message


def test_resuming_with_other_optimiser_flags_obeys_them(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", str(config), "--output", str(run)]) == 0
    flags = ["--trainer.max_steps=8", "--optim.lr=0.001", "--optim.weight_decay=0.25"]
    assert main(["train", "--resume", str(run), *flags, "--optim.betas=[0.5,0.75]"]) == 0
    with (run / "metrics.csv").open(newline="") as file:
        rates = [float(r["value"]) for r in csv.DictReader(file) if r["name"] == "train/lr"]
    assert rates[-2:] == pytest.approx([0.001, 0.001]) and rates[-3] == pytest.approx(0.02)
    groups = torch.load(run / "last.ckpt", weights_only=True)["optimizer_states"][0]["param_groups"]
    assert max(group["weight_decay"] for group in groups) == 0.25
    assert {tuple(group["betas"]) for group in groups} == {(0.5, 0.75)}


def test_experts_follow_a_finished_run(config: Path, tmp_path: Path, fails) -> None:
    """They are counted at the end; others can be counted then, and do not change the network."""
    run, plain = tmp_path / "run", tmp_path / "plain"
    command = ["train", str(config), "--trainer.max_steps=2"]
    assert main([*command, "--experts.order=2", f"--output={run}"]) == 0
    assert main([*command, f"--output={plain}"]) == 0
    checkpoints = [torch.load(folder / "last.ckpt", weights_only=True) for folder in (run, plain)]
    assert same(*(content["state_dict"] for content in checkpoints))
    for order in (1, 3):
        assert main(["train", "--resume", str(run), f"--experts.order={order}"]) == 0
        experts, network = load(run).denoiser.experts, load(run).denoiser.backbone.state_dict()
        assert experts is not None and experts.counted
        assert experts.order == order
        assert same(network, load(plain).denoiser.backbone.state_dict())
    kept = (run / "model.safetensors").read_bytes()
    assert main(["train", "--resume", str(run)]) == 0
    assert (run / "model.safetensors").read_bytes() == kept
    assert main(["train", "--resume", str(run), "--experts=null"]) == 0
    assert load(run).denoiser.experts is None
    said = fails(["train", "--resume", str(run), "--experts.order=1", "--optim.lr=0.5"])
    assert "resume.trainer.max_steps must exceed the 2 steps done" in said
    assert main(["train", "--resume", str(run), "--experts.order=1", "--trainer.max_steps=3"]) == 0
    experts = load(run).denoiser.experts
    assert experts is not None and experts.counted


@pytest.mark.parametrize("version", ["sides", "one scale"])
def test_experts_of_an_older_version_are_named_and_counted_again(
    config: Path, tmp_path: Path, fails, version: str
) -> None:
    """They had gates for the length of each side, and later one scale."""
    run = tmp_path / "run"
    command = ["train", str(config), "--trainer.max_steps=2", "--experts.order=2"]
    assert main([*command, f"--output={run}"]) == 0
    weights = load_file(run / "model.safetensors")
    if version == "sides":
        weights["experts.left"] = weights.pop("experts.gates")[:, :3].contiguous()
    else:
        weights["experts.scale"] = weights["experts.scale"][:, 0].contiguous()
        weights["experts.gates"] = weights["experts.gates"][:, :5].contiguous()
    save_file(weights, run / "model.safetensors")
    said = fails(["evaluate", str(run)])
    assert "must have n-gram experts of this version, got older ones; count them again" in said
    again = ["train", "--resume", str(run), "--experts.order", "2"]
    assert " ".join(again) in said
    assert main(again) == 0
    experts = load(run).denoiser.experts
    assert experts is not None and experts.counted


def test_damaged_experts_are_counted_again(config: Path, tmp_path: Path, fails) -> None:
    run = tmp_path / "run"
    command = ["train", str(config), "--trainer.max_steps=2", "--experts.order=2"]
    assert main([*command, f"--output={run}"]) == 0
    weights = load_file(run / "model.safetensors")
    weights["experts._extra_state"][100:200] ^= 0xFF
    save_file(weights, run / "model.safetensors")
    again = ["train", "--resume", str(run), "--experts.order", "2"]
    said = fails(["evaluate", str(run)])
    assert f"{run / 'model.safetensors'}: a damaged table of n-grams (" in said
    assert f"count it again: seqdiff {' '.join(again)}" in said
    assert main(again) == 0
    experts = load(run).denoiser.experts
    assert experts is not None and experts.counted


def test_too_few_validation_rows_are_named(
    config: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    for module in (start, mixture):
        monkeypatch.setattr(module, "FOLDS", 99)
    command = ["train", str(config), "--trainer.max_steps=2", "--experts.order=2"]
    assert main([*command, f"--output={tmp_path / 'run'}"]) == 0
    assert "n-gram experts need at least 99 validation rows, got 13, so" in capsys.readouterr().err


def _files(run: Path) -> dict[str, bytes]:
    return {name: (run / name).read_bytes() for name in ("run.yaml", "model.safetensors")}


def test_experts_that_cannot_be_fitted_change_nothing(
    config: Path, tmp_path: Path, fails, monkeypatch
) -> None:
    run = tmp_path / "run"
    command = ["train", str(config), "--trainer.max_steps=2", f"--output={run}"]
    assert main([*command, "--experts.order=2"]) == 0
    kept = _files(run)
    for name, error in (("fit_experts", MemoryError()), ("_check_for_experts", ValueError("no"))):
        with monkeypatch.context() as patch:

            def fail(*arguments: object, **options: object) -> None:
                raise error  # noqa: B023

            patch.setattr(start, name, fail)
            fails(["train", "--resume", str(run), "--experts.order=1"])
        assert _files(run) == kept


@pytest.mark.parametrize("order", ["--experts.order=1", "--experts=null"])
@pytest.mark.parametrize("writes", [1, 2])
def test_a_kill_while_experts_are_exchanged_leaves_a_run_that_opens(
    config: Path, tmp_path: Path, monkeypatch, order: str, writes: int
) -> None:
    """After each file that is written; the same command, or a plain one, goes on from there."""
    run = tmp_path / "run"
    command = ["train", str(config), "--trainer.max_steps=2", f"--output={run}"]
    assert main([*command, "--experts.order=2"]) == 0
    before = _files(run)
    assert main(["train", "--resume", str(run), order]) == 0
    after = _files(run)
    for name, content in before.items():
        (run / name).write_bytes(content)
    real, left = start.write_bytes, [writes]

    def write(path: Path, content: bytes) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        real(path, content)
        left[0] -= 1

    with monkeypatch.context() as patch:
        patch.setattr(start, "write_bytes", write)
        killed = main(["train", "--resume", str(run), order])
    assert killed == (0 if order == "--experts=null" and writes == 2 else 130)
    experts = load(run).denoiser.experts
    assert experts is None or not experts.counted
    kept = _files(run)
    assert main(["train", "--resume", str(run), order]) == 0
    assert _files(run) == after
    for name, content in kept.items():
        (run / name).write_bytes(content)
    assert main(["train", "--resume", str(run)]) == 0
    assert _files(run) == (before if writes == 1 else after)


def test_a_killed_run_counts_its_experts_when_it_goes_on(config: Path, tmp_path: Path) -> None:
    """The weights of a run that has not ended are those of the network."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    command = ["train", str(config), "--experts.order=2", "--trainer.max_steps=2"]
    assert main([*command, f"--output={whole}"]) == 0
    assert main([*command, f"--output={run}"]) == 0
    weights = load_file(run / "model.safetensors")
    network = {name: w for name, w in weights.items() if not name.startswith("experts.")}
    assert len(network) < len(weights)
    save_file(network, run / "model.safetensors")  # as after a kill before the count
    denoiser = load(run).denoiser
    assert denoiser.experts is not None and not denoiser.experts.counted
    assert "experts alone" not in {row.name for row in load(run).evaluate(evaluations=2).rows}
    assert main([*command, f"--output={run}"]) == 0
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    tables = [load(run).evaluate(split=name, evaluations=2) for name in ("test", "valid")]
    assert all("experts alone" in {row.name for row in table.rows} for table in tables)
    noted = ["the gates of the n-gram experts were" in str(table.table.caption) for table in tables]
    assert noted == [False, True]
