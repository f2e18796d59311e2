"""Two processes on one machine give the result of one process on the same global batch."""

import csv
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqdiff.cli.app import main

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FLAGS = ["--trainer.max_steps", "5", "--trainer.val_check_interval", "5"]


def _losses(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["name"] == name]


def test_two_processes_equal_one(config: Path, tmp_path: Path) -> None:
    """Rows with unknown symbols give the two halves of a batch different numbers of tokens.

    The broken twin below, which averages the means of the processes, gives other weights.
    """
    alone, together = tmp_path / "alone", tmp_path / "together"
    assert main(["train", str(config), *FLAGS, "--output", str(alone)]) == 0
    command = [sys.executable, "-m", "seqdiff.cli", "--trust-code=tests"]
    command += ["train", str(config), *FLAGS]
    command += ["--output", str(together), "--data.init_args.batch_size", "4"]
    command += ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    for name in ("train/nats_per_token", "val/nats_per_token"):
        one, two = _losses(alone, name), _losses(together, name)
        assert len(one) == (5 if name.startswith("train") else 1)
        assert two == pytest.approx(one, rel=2e-6)
    one, two = load_file(alone / "model.safetensors"), load_file(together / "model.safetensors")
    for name, weights in one.items():
        torch.testing.assert_close(two[name], weights, rtol=1e-4, atol=1e-6)
    checkpoint = torch.load(together / "last.ckpt", weights_only=True)
    assert checkpoint["ToyData"] == {"position": 5 * 8}


def test_no_process_group_outlives_the_training(config: Path, tmp_path: Path) -> None:
    """Otherwise its threads sometimes abort the interpreter at exit, with code -6."""
    command = ["--trust-code=tests", "train", str(config), *FLAGS, "--trainer.strategy", "ddp"]
    lines = [
        "import torch",
        "from seqdiff.cli.app import main",
        f"assert main({[*command, '--output', str(tmp_path / 'run')]}) == 0",
        "assert not torch.distributed.is_initialized()",
    ]
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "GLOBAL_RANK: 0" in done.stderr


@pytest.mark.parametrize("dead", [0, 1])
def test_the_end_of_another_process_is_one_line(config: Path, tmp_path: Path, dead: int) -> None:
    """With processes that are started as torchrun does; the other one ends within seconds."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "seqdiff.cli", "--trust-code=tests"]
    command += ["train", str(config), "--output", str(run)]
    command += ["--trainer.max_steps", "999999999", "--checkpoint_every_n_steps", "10"]
    command += ["--trainer.devices", "2", "--trainer.strategy", "ddp"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **shared, "OMP_NUM_THREADS": "1", "LOCAL_RANK": rank, "RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        while not (run / "last.ckpt").exists() and all(p.poll() is None for p in processes):
            time.sleep(0.1)
        processes[dead].kill()
        lines = processes[1 - dead].communicate(timeout=60)[1].splitlines()
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    said = "seqdiff: error: a distributed run must keep all its processes, got the end of another "
    assert [line for line in lines if "Initializing distributed" not in line] == [lines[-1]]
    assert lines[-1].startswith(said) and "GLHF" not in lines[-1]
    assert lines[-1].endswith(f"see what it printed, then continue: seqdiff train --resume {run}")
    assert processes[1 - dead].returncode == 2


def test_averaging_each_process_own_mean_is_another_gradient(config: Path) -> None:
    """Broken twin: its difference exceeds the tolerance above by far."""
    from seqdiff.run.config import instantiate, parse_run

    data = instantiate(parse_run(config)).data
    counts = []
    for step in range(5):
        batches = [next(iter(data.training_loader(start=8 * step + 4 * r))) for r in range(2)]
        counts.append([int(batch.loss_mask[:4].sum()) for batch in batches])
    assert any(abs(a - b) / (a + b) > 1e-3 for a, b in counts)
