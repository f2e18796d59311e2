"""Single optimiser steps: the logged loss, learning rate, average and speed."""

import csv
import math
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import seqdiff.run.start
import seqdiff.training.callbacks
import seqdiff.training.trainer
from seqdiff.cli.app import main
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.objectives import WeightedMLM
from seqdiff.rng import CounterNoise
from seqdiff.run import load
from seqdiff.run.config import instantiate, parse_run
from seqdiff.training import OptimConfig, lr_factor
from seqdiff.training.module import DiffusionModule
from tests.integration.conftest import override
from tests.integration.toy_domain import ToyData


def logged(run: Path, name: str) -> list[float]:
    with (run / "metrics.csv").open(newline="") as file:
        return [float(row["value"]) for row in csv.DictReader(file) if row["name"] == name]


def test_loss_is_per_counted_token(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """AdamW ignores the scale of a loss, so the test reads the result of ``training_step``."""
    seen = []
    original = DiffusionModule.training_step

    def recording(self, batch, batch_idx):
        loss = original(self, batch, batch_idx)
        seen.append((batch, loss.item()))
        return loss

    monkeypatch.setattr(DiffusionModule, "training_step", recording)
    assert main(["train", str(config), "--trainer.max_steps", "1"]) == 0
    [(batch, loss)] = seen
    built = instantiate(parse_run(config))
    denoiser = Denoiser(built.backbone, built.process)
    terms = built.objective.terms(denoiser, batch, CounterNoise(built.seed))
    counted = int(batch.loss_mask.sum())
    assert counted < batch.tokens.numel(), "the row with an unknown symbol is in the batch"
    assert loss == pytest.approx(float(terms.sum()) / counted, rel=1e-6)
    assert loss != pytest.approx(float(terms.mean()), rel=1e-3), "the broken twin would pass"


@pytest.mark.parametrize("shape", ["constant", "cosine"])
def test_the_logged_rate_is_the_one_of_its_step(shape: str, config: Path, tmp_path: Path) -> None:
    flags = ["--optim.schedule", shape, "--optim.warmup_steps", "3"]
    assert main(["train", str(config), *flags]) == 0
    optim = OptimConfig(lr=0.02, warmup_steps=3, schedule=shape)
    rates = [0.02 * lr_factor(optim, step, 6) for step in range(6)]
    assert logged(tmp_path / "run", "train/lr") == pytest.approx(rates, rel=1e-6)
    assert rates[1:] + rates[:1] != pytest.approx(rates, rel=1e-2), "the broken twin would pass"


def test_validation_scores_the_average(config: Path, tmp_path: Path) -> None:
    """Validation after the last step agrees with the exported average, not with the
    last weights.
    """
    run = tmp_path / "run"
    flags = ["--trainer.val_check_interval", "6", "--data.init_args.eval_batch_size", "5"]
    assert main(["train", str(config), *flags]) == 0
    [value] = logged(run, "val/nats_per_token")
    loaded = load(run)
    last = torch.load(run / "last.ckpt", weights_only=True)["state_dict"]
    average = {f"denoiser.{k}": v.clone() for k, v in loaded.denoiser.state_dict().items()}
    scores = []
    for weights in (average, last):
        loaded.denoiser.load_state_dict({k.removeprefix("denoiser."): weights[k] for k in last})
        total, count = 0.0, 0
        with torch.no_grad():
            for batch in loaded.datamodule.evaluation_loader("valid"):
                noise = CounterNoise(0)
                total += float(WeightedMLM().terms(loaded.denoiser, batch, noise).sum())
                count += int(batch.loss_mask.sum())
        scores.append(total / count)
    assert value == pytest.approx(scores[0], rel=1e-5)
    assert value != pytest.approx(scores[1], rel=1e-3), "the broken twin would pass"


def test_throughput_counts_each_token_once(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a clock that advances at every reading: at the start, then at each log step."""
    ticks = iter(range(10**6))
    clock = SimpleNamespace(perf_counter=lambda: float(next(ticks)))
    monkeypatch.setattr(seqdiff.training.callbacks, "time", clock)
    flags = ["--trainer.log_every_n_steps", "3", "--trainer.accumulate_grad_batches", "2"]
    assert main(["train", str(config), *flags]) == 0
    rates = logged(tmp_path / "run", "train/tokens_per_second")
    assert rates == [3 * 2 * 8 * 12] * 2


def test_an_average_added_later_takes_one_update_a_step(config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    flags = ["--trainer.accumulate_grad_batches", "2", "--ema_decay", "null"]
    assert main(["train", str(config), *flags]) == 0
    assert main(["train", "--resume", str(run), "--trainer.max_steps=9", "--ema_decay=0.5"]) == 0
    checkpoint = torch.load(run / "last.ckpt", weights_only=True)
    assert int(checkpoint["callbacks"]["EMA"]["num_updates"]) == 3


@pytest.mark.parametrize("split", ["train", "valid"])
def test_the_first_process_opens_the_data_before_lightning_starts_others(
    split: str, config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process encodes the data once; then each process opens the encoded data."""
    original = ToyData.dataset

    def dataset(self, wanted):
        if wanted == split:
            raise ValueError(f"there is no {split}")
        return original(self, wanted)

    def fit(self, *args: object, **arguments: object) -> None:
        raise ValueError("Lightning was started")

    monkeypatch.setattr(ToyData, "dataset", dataset)
    monkeypatch.setattr(seqdiff.training.trainer.Trainer, "fit", fit)
    command = ["train", str(config)]
    assert (split == "train") == (f"there is no {split}" in fails(command))
    command += ["--trainer.val_check_interval", "2"]
    assert f"there is no {split}" in fails(command)
    monkeypatch.setattr(seqdiff.run.start, "is_first_process", lambda: False)
    assert "Lightning was started" in fails(command)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_whole_precisions_train(precision: str, config: Path, tmp_path: Path) -> None:
    """Lightning converts a batch for these; the first loss is that of single precision."""
    assert main(["train", str(config), "--output", str(tmp_path / "single")]) == 0
    assert main(["train", str(config), "--trainer.precision", precision]) == 0
    first = [logged(tmp_path / run, "train/nats_per_token")[0] for run in ("run", "single")]
    assert math.isfinite(first[0]) and first[0] == pytest.approx(first[1], rel=0.05)
    weights = load(tmp_path / "run").denoiser.state_dict()
    assert all(bool(weight.isfinite().all()) for weight in weights.values())


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--block_size=4", "--objective=BlockNELBO", "--objective.search_batches=8"],
            "objective.search_batches must be null with sharded weights, got 8",
        ),
        (
            ["--trainer.strategy=fsdp_cpu_offload"],
            "strategy must be fsdp for sharded weights, got fsdp_cpu_offload; set trainer.strategy",
        ),
        (["--trainer.precision=16-mixed"], "must describe what this machine has, got: "),
    ],
)
def test_what_sharding_cannot_do_is_said_before_training(
    flags: list[str], said: str, config: Path, tmp_path: Path, fails
) -> None:
    command = override(["train", str(config), "--trainer.strategy=fsdp"], *flags)
    assert said in fails(command)
    assert not (tmp_path / "run").exists()
