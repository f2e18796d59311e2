"""Runs of the autoregressive Mamba and of a time-conditioned Caduceus."""

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


@pytest.mark.parametrize("flags", [CAUSAL, TIMED], ids=["autoregressive", "timed"])
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
