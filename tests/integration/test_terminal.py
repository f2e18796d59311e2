"""Output on the terminal: only what concerns the user, and commands that work."""

import logging
import re
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from rich.progress import Progress

import seqdiff.progress
from seqdiff.cli.app import main
from seqdiff.cli.extensions import command_line
from seqdiff.run import engine, quieten_lightning

ROOT = Path(__file__).parents[2]

TRUST = ["--trust-code", "tests"]  # of tests/conftest.py


def _install(folder: Path) -> Path:
    """An executable with the right name, as pip would install it."""
    folder.mkdir(parents=True)
    program = folder / "seqdiff"
    program.write_text('#!/bin/sh\necho called with "$@"\n')
    program.chmod(0o755)
    return program


def _paste(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    return done.stdout


def test_a_next_step_names_the_program_as_it_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(tmp_path / "my env" / "bin")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", ["my env/bin/seqdiff", "train"])
    command = command_line("evaluate", Path("runs/my run"))
    assert shlex.split(command) == ["my env/bin/seqdiff", "evaluate", "runs/my run", *TRUST]
    assert _paste(command) == "called with evaluate runs/my run --trust-code tests\n"


def test_a_next_step_is_short_where_the_program_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _install(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(sys, "argv", [str(program), "train"])
    assert command_line("evaluate", "run") == "seqdiff evaluate run --trust-code tests"
    other = _install(tmp_path / "other")
    monkeypatch.setattr(sys, "argv", [str(other), "train"])
    assert command_line("evaluate", "run") == f"{other} evaluate run --trust-code tests"


def test_a_next_step_works_from_any_other_program() -> None:
    assert "Draw sequences, or fill gaps" in _paste(command_line("--help"))


def _where(run: Path) -> str:
    """The line that training begins with."""
    return f"seqdiff: metrics: {run / 'metrics.csv'}; tensorboard --logdir {run}\n"


def test_train_says_what_is_next(config: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", str(config)]) == 0
    run = tmp_path / "run"
    next_line = capsys.readouterr().out.strip()
    assert next_line == f"{run}: trained; next: {command_line('evaluate', run)}"


@pytest.mark.slow
def test_training_says_nothing_else(config: Path, tmp_path: Path) -> None:
    """Lightning in a new process, with validation and loader processes that could print
    warnings.
    """
    flags = ["--trainer.val_check_interval=3", "--data.num_workers=1"]
    command = [sys.executable, "-m", "seqdiff.cli", "--trust-code=tests"]
    command += ["train", str(config), *flags]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, _where(tmp_path / "run"))
    assert len(done.stdout.splitlines()) == 1


def test_progress_is_lines_where_there_is_no_terminal(
    config: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step, then every 30 s (here every second step), then the last one."""
    clock = iter(range(0, 10**6, 15))
    monkeypatch.setattr(seqdiff.progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    command = ["train", str(config), "--trainer.enable_progress_bar=true", "--trainer.max_steps=9"]
    assert main(command) == 0
    first, *lines = capsys.readouterr().err.splitlines()
    assert f"{first}\n" == _where(tmp_path / "run") and len(lines) == 5
    for found, step in zip(lines, (1, 3, 5, 7, 9), strict=True):
        line = rf"training: {step} of 9  train \d\.\d\d\d  lr 0\.0\d+  [\d,]+ tokens/s"
        left = "" if step in (1, 9) else r"  0:0\d:\d\d left"
        assert re.fullmatch(line + left, found), lines


def test_short_commands_write_no_progress_lines_and_long_ones_do(
    capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seconds, said in ((1, []), (31, ["some: 1 of 3", "some: 2 of 3", "some: 3 of 3"])):
        clock = iter(range(0, 10**6, seconds))
        fake = SimpleNamespace(monotonic=lambda clock=clock: next(clock))
        monkeypatch.setattr(seqdiff.progress, "time", fake)
        with seqdiff.progress.progress() as bar:
            task = bar.add_task("some", total=3)
            for _ in range(3):
                bar.advance(task)
        found = [line.partition("  ")[0] for line in capsys.readouterr().err.splitlines()]
        assert found == said
        with seqdiff.progress.Bar(disable=True, early=True) as bar:
            bar.advance(bar.add_task("some", total=3))
        assert capsys.readouterr().err == ""


def test_a_time_limit_says_how_far_it_came_and_how_to_continue(
    config: Path, tmp_path: Path, capsys
) -> None:
    run = tmp_path / "run"
    flags = ["--trainer.max_time=00:00:00:01", "--trainer.max_steps=100000"]
    assert main(["train", str(config), *flags]) == 0
    said = capsys.readouterr().out.strip().split("; ")
    resume = command_line("train", "--resume", run, "--trainer.max_time", "00:00:00:02")
    assert said[2:] == [f"to continue: {resume}", f"next: {command_line('evaluate', run)}"]
    step = torch.load(run / "last.ckpt", weights_only=True)["global_step"]
    assert said[:2] == [
        f"{run}: stopped",
        f"trainer.max_time ended the training after step {step:,} of 100,000",
    ]
    assert (
        main(
            [
                "train",
                "--resume",
                str(run),
                f"--trainer.max_steps={step + 1}",
                "--trainer.max_time=01:00:00:00",
            ]
        )
        == 0
    )
    assert "max_time" not in capsys.readouterr().out


@pytest.mark.slow
def test_dropping_the_average_on_resume_says_nothing(config: Path, tmp_path: Path) -> None:
    assert main(["train", str(config)]) == 0
    command = [sys.executable, "-m", "seqdiff.cli", "train", "--resume", str(tmp_path / "run")]
    command += ["--ema_decay=null", "--trainer.max_steps=8", "--trust-code=tests"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, _where(tmp_path / "run"))


def test_only_remarks_for_developers_are_silenced() -> None:
    level = logging.getLogger("lightning.pytorch").level
    kept = "GPU available but not used."
    removed = (
        "Be aware that when using `ckpt_path`, callbacks used to create the checkpoint need to be"
    )
    removed += " provided during `Trainer` instantiation. Please add the following callbacks: [{}]."
    other = removed.format("'Timer', 'Theirs'")
    said = [
        removed.format("'EMA'"),
        removed.format("'EMA', 'Timer'"),
        "`isinstance(treespec, LeafSpec)` is deprecated, use something else",
        "The 'train_dataloader' does not have many workers which may be a bottleneck.",
        other,
        kept,
    ]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        quieten_lightning()
        for place in ("lightning.pytorch.trainer", "genomics.io.fasta"):
            for message in said:
                warnings.warn_explicit(message, UserWarning, "a.py", 1, module=place)
    assert [str(warning.message) for warning in seen] == [other, kept, *said]
    logging.getLogger("lightning.pytorch").setLevel(level)


@pytest.mark.usefixtures("toy_writer")
def test_the_sampling_bar_moves_within_a_batch(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[float] = []

    class Bar(Progress):
        def update(self, task, *, completed: float, **text: str) -> None:
            shown.append(completed)

    monkeypatch.setattr(engine, "progress", Bar)
    command = ["sample", str(trained), "--num", "5", "--length", "9", "--seed", "0"]
    assert main([*command, "--batch_size", "3", "--out", str(tmp_path / "a.ring")]) == 0
    assert shown == sorted(shown) and shown[-1] == 5
    assert any(0 < completed < 3 for completed in shown) and 3 in shown


@pytest.mark.parametrize("widgets", [False, True])
def test_notebooks_without_widgets_get_lines(
    widgets: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("seqdiff.progress.find_spec", lambda name: widgets or None)
    bar = seqdiff.progress.Bar(early=True)
    task = bar.add_task("sampling", total=2)
    bar.update(task, completed=1)
    written = capsys.readouterr().err
    assert (written == "sampling: 1 of 2\n") is not widgets
    assert bar.disable is not widgets, "rich shows the widget"
