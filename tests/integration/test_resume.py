"""A run that stops and resumes equals, byte for byte, a run that never stopped."""

import csv
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from seqdiff.cli.app import main
from seqdiff.training.callbacks import RunCheckpoint
from seqdiff.training.module import DiffusionModule

WAYS = {
    "plain": [],
    "accumulating": ["--trainer.accumulate_grad_batches", "3"],
    "workers": ["--data.init_args.num_workers", "2"],
    "cosine": ["--optim.schedule", "cosine", "--optim.min_lr", "1e-3"],
    "no average": ["--ema_decay", "null"],
    "validating": ["--trainer.val_check_interval", "2"],
    "dropout": ["--backbone", "tests.integration.toy_domain.DropoutNet"],
}


def _final(run: Path) -> tuple[bytes, dict]:
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    return (run / "model.safetensors").read_bytes(), checkpoint


def _same(left: object, right: object) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right


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

    (weights, checkpoint), (resumed_weights, resumed) = _final(straight), _final(broken)
    assert resumed_weights == weights
    for key in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "ToyData"):
        assert _same(checkpoint[key], resumed[key]), key
    assert checkpoint["ToyData"] == {"position": 9 * 8 * each}

    logs = [(run / "metrics.csv").read_text().splitlines() for run in (straight, broken)]
    columns = [[r for r in rows if "per_second" not in r] for rows in logs]
    missing = set(columns[0]) - set(columns[1])
    assert {row.split(",")[1].split("/")[0] for row in missing} <= {"val"}
    assert set(columns[1]) <= set(columns[0]) and len(set(columns[1])) == len(columns[1])


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


def test_resume_continues_past_the_end_when_told(trained: Path, fails, tmp_path: Path) -> None:
    message = fails(["train", "--resume", str(trained)])
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
