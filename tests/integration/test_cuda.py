"""Training, evaluation and sampling on a CUDA device, compared with the same commands on the CPU.

Noise is a function of seed and position, so both devices see the same masks and draws, and their
results differ by rounding only.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from seqdiff.cli.app import main

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

MAMBA = ["--backbone.d_model=16", "--backbone.n_layer=2", "--backbone.d_state=4"]
TRANSFORMER = ["--backbone.d_model=32", "--backbone.n_layer=2", "--backbone.n_heads=2"]
TRANSFORMER.append("--backbone.dropout=0")  # whose draws are the device's own
SLOW = "--optim.lr=2e-3"  # Adam takes a full step even where a gradient is rounding error
SIZES = "--block_size=[1, 4, 12]"
BETA = ["--objective=WeightedMLM", "--objective.a=2", "--objective.b=2"]
MODELS = {
    "caduceus": ["--backbone=Caduceus", *MAMBA],
    "mamba2": ["--backbone=Caduceus", *MAMBA, "--backbone.mixer=ssd", "--backbone.headdim=8"],
    "experts": ["--backbone=Caduceus", *MAMBA, "--experts.order=2"],
    "muon": ["--backbone=Caduceus", *MAMBA, "--optim.muon_lr=0.002", *BETA],
    "transformer": ["--backbone=Transformer", *TRANSFORMER, "--preset=mdlm"],
    "udlm": ["--backbone=Transformer", *TRANSFORMER, "--backbone.cond_dim=8", "--preset=udlm"],
    "block transformer": [
        *("--backbone=Transformer", *TRANSFORMER, "--preset=bd3lm", "--block_size=4"),
    ],
    "block sizes": ["--backbone=Transformer", *TRANSFORMER, "--preset=bd3lm", SIZES],
    "block mamba": ["--backbone=BlockMamba", *MAMBA, "--preset=bd3lm", "--block_size=4"],
    "autoregressive mamba": ["--backbone=AutoregressiveMamba", *MAMBA, "--preset=ar"],
    "autoregressive transformer": [
        *("--backbone=AutoregressiveTransformer", *TRANSFORMER, "--preset=ar"),
    ],
}


def train(config: Path, out: Path, *flags: str) -> dict[str, torch.Tensor]:
    assert main(["train", str(config), f"--output={out}", *flags]) == 0
    return load_file(out / "model.safetensors")


def bits(run: Path, device: str) -> float:
    out = run.with_name(f"{run.name}-{device}.json")
    command = ["evaluate", str(run), "--device", device, "--json", str(out)]
    if "LeftToRight" not in (run / "run.yaml").read_text():
        command.append("--evaluations=8")
    assert main(command) == 0
    return json.loads(out.read_text())["rows"][0]["bits_per_token"]


def rms(tensor: torch.Tensor) -> float:
    return float(tensor.double().square().mean().sqrt())


def draw(run: Path, device: str) -> list[str]:
    out = run.with_name(f"{run.name}-{device}.txt")
    sizes = ["--num=40", "--seed=3", "--length=12"]
    assert main(["sample", str(run), *sizes, "--device", device, "--out", str(out)]) == 0
    return out.read_text().splitlines()


@pytest.mark.parametrize("model", MODELS)
def test_cuda_agrees_with_the_cpu(model: str, config: Path, tmp_path: Path) -> None:
    runs = {"cpu": tmp_path / "by_cpu", "cuda": tmp_path / "by_cuda"}
    flags = [*MODELS[model], SLOW, "--trainer.max_steps=8"]
    weights = {
        device: train(config, out, *flags, f"--trainer.accelerator={name}")
        for (device, out), name in zip(runs.items(), ("cpu", "gpu"), strict=True)
    }
    for name, wanted in weights["cpu"].items():
        assert rms(weights["cuda"][name] - wanted) < 1e-3 * max(1.0, rms(wanted)), name
    assert bits(runs["cpu"], "cuda") == pytest.approx(bits(runs["cpu"], "cpu"), abs=1e-4)
    assert bits(runs["cuda"], "cuda") == pytest.approx(bits(runs["cpu"], "cpu"), abs=5e-3)
    found, wanted = (draw(runs["cpu"], device) for device in ("cuda", "cpu"))
    differ = sum(a != b for a, b in zip(found, wanted, strict=True))
    assert differ <= 2, f"{differ} of {len(wanted)} lines differ"


@pytest.mark.parametrize("model", MODELS)
def test_mixed_precision_trains(model: str, config: Path, tmp_path: Path) -> None:
    flags = [*MODELS[model], SLOW, "--trainer.max_steps=8", "--trainer.accelerator=gpu"]
    for precision in ("32-true", "bf16-mixed"):
        train(config, tmp_path / precision, *flags, f"--trainer.precision={precision}")
    single, mixed = (bits(tmp_path / name, "cuda") for name in ("32-true", "bf16-mixed"))
    assert mixed == pytest.approx(single, abs=0.05)


@pytest.mark.parametrize("model", ["caduceus", "muon", "block transformer"])
def test_a_run_on_cuda_resumes(model: str, config: Path, tmp_path: Path) -> None:
    """Up to rounding: Caduceus does not repeat its bits on CUDA, for a reason not yet found."""
    flags = [*MODELS[model], SLOW, "--trainer.accelerator=gpu", "--checkpoint_every_n_steps=2"]
    straight = train(config, tmp_path / "straight", *flags, "--trainer.max_steps=6")
    train(config, tmp_path / "stopped", *flags, "--trainer.max_steps=4")
    assert main(["train", "--resume", str(tmp_path / "stopped"), "--trainer.max_steps=6"]) == 0
    resumed = load_file(tmp_path / "stopped" / "model.safetensors")
    for name, wanted in straight.items():
        assert rms(resumed[name] - wanted) < 1e-3 * max(1.0, rms(wanted)), name
