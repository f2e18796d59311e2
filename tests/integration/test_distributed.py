"""Two processes on one machine give the result of one process on the same global batch."""

import csv
import os
import subprocess
import sys
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
    command = [sys.executable, "-m", "seqdiff.cli", "train", str(config), *FLAGS]
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
    command = ["train", str(config), *FLAGS, "--trainer.strategy", "ddp"]
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


def test_averaging_each_process_own_mean_is_another_gradient(config: Path) -> None:
    """Broken twin: its difference exceeds the tolerance above by far."""
    from seqdiff.run.config import instantiate, parse_run

    data = instantiate(parse_run(config)).data
    counts = []
    for step in range(5):
        batches = [next(iter(data.training_loader(start=8 * step + 4 * r))) for r in range(2)]
        counts.append([int(batch.loss_mask[:4].sum()) for batch in batches])
    assert any(abs(a - b) / (a + b) > 1e-3 for a, b in counts)
