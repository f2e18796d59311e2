"""Runs of the autoregressive Mamba, of a time-conditioned Caduceus and of Mamba-2."""

from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.backbones import AutoregressiveMamba, Caduceus
from seqdiff.cli.app import main
from seqdiff.run import load
from seqdiff.types import Inputs

SIZES = ["--backbone.d_model=8", "--backbone.n_layer=1", "--backbone.d_state=4"]
CAUSAL = ["--backbone=AutoregressiveMamba", *SIZES, "--preset=ar"]
TIMED = ["--backbone=Caduceus", *SIZES, "--backbone.time_conditioned=true"]
SSD = ["--backbone=Caduceus", *SIZES, "--backbone.mixer=ssd"]


@pytest.mark.parametrize("flags", [CAUSAL, TIMED, SSD], ids=["autoregressive", "timed", "ssd"])
def test_resume_is_bit_identical(config: Path, tmp_path: Path, flags: list[str]) -> None:
    straight, stopped = tmp_path / "straight", tmp_path / "stopped"
    run = ["train", str(config), *flags, "--checkpoint_every_n_steps=2"]
    assert main([*run, "--trainer.max_steps=4", f"--output={straight}"]) == 0
    assert main([*run, "--trainer.max_steps=2", f"--output={stopped}"]) == 0
    first = (stopped / "model.safetensors").read_bytes()
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps=4"]) == 0
    wanted, found = ((run / "model.safetensors").read_bytes() for run in (straight, stopped))
    assert wanted == found != first
    assert main(["evaluate", str(stopped)]) == 0


def test_a_timed_caduceus_reads_the_noise_level_of_its_schedule(
    config: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    flags = [*TIMED, "--process.schedule=Cosine", "--trainer.max_steps=2", f"--output={out}"]
    assert main(["train", str(config), *flags]) == 0
    named = yaml.safe_load((out / "run.yaml").read_text())["backbone"]
    assert named["init_args"]["time_conditioned"] is True
    denoiser = load(out).denoiser
    assert isinstance(denoiser.backbone, Caduceus) and denoiser.time_conditioned
    read: list[torch.Tensor] = []
    denoiser.backbone.sigma_map.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    t = torch.tensor([0.5])
    denoiser(Inputs(torch.full((1, 4), 6), t))
    assert read[0].item() == pytest.approx(-torch.cos(torch.pi / 2 * t).log().item())


def test_an_autoregressive_run_holds_its_network(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert main(["train", str(config), *CAUSAL, "--trainer.max_steps=1", f"--output={out}"]) == 0
    run = load(out)
    backbone = run.denoiser.backbone
    assert isinstance(backbone, AutoregressiveMamba) and run.denoiser.context == "prefix"
    assert (backbone.embedding.num_embeddings, backbone.num_logits) == (7, 6)


def test_a_run_of_mamba2_learns_and_holds_its_network(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    described = yaml.safe_load(config.read_text())
    described["backbone"] = {
        "class_path": "Caduceus",
        "init_args": {"d_model": 16, "n_layer": 1, "mixer": "ssd", "headdim": 8},
    }
    config.with_name("ssd.yaml").write_text(yaml.safe_dump(described))
    command = ["train", str(config.with_name("ssd.yaml")), f"--output={out}", "--optim.lr=1e-2"]
    losses = []
    for steps in (1, 40):
        assert main([*command, f"--trainer.max_steps={steps}"]) == 0
        run = load(out)
        torch.manual_seed(0)
        losses.append(run.evaluate().model.bits_per_token)
        out.rename(tmp_path / f"after{steps}")
    assert losses[1] < losses[0] - 0.05, losses
    run = load(tmp_path / "after40")
    backbone = run.denoiser.backbone
    assert isinstance(backbone, Caduceus)
    assert (backbone.config.mamba.mixer, backbone.config.mamba.d_state) == ("ssd", 64)
    assert backbone.config.mamba.headdim == 8


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--backbone=BlockMamba", "--backbone.mixer=ssd"], "mixer"),
        (["--backbone=Caduceus", "--backbone.mixer=ssd", "--preset=bd3lm"], "got Caduceus; ch"),
        (["--backbone=Caduceus", "--backbone.mixer=lstm"], "mixer"),
        (["--backbone=Caduceus", "--backbone.mixer=ssd", "--backbone.backend=cpu"], "backend"),
        (["--backbone=Caduceus", "--backbone.mixer=ssd", "--backbone.headdim=3"], "headdim"),
    ],
    ids=["block mamba", "blocks", "unknown", "backend", "headdim"],
)
def test_what_mamba2_does_not_do_is_named(
    config: Path, tmp_path: Path, capsys: pytest.CaptureFixture, flags: list[str], message: str
) -> None:
    out = tmp_path / "run"
    assert main(["train", str(config), *flags[:1], *SIZES, *flags[1:], f"--output={out}"]) != 0
    error = capsys.readouterr().err.strip()
    assert message in error and error.count("\n") == 0, error
    assert not out.exists()
