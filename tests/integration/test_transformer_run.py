"""Runs of the transformer: trained, stopped, resumed, sampled from, guided by labels."""

from pathlib import Path

import pytest
import torch
import yaml
from torch._dynamo.utils import counters

from seqdiff.backbones import AutoregressiveTransformer, Transformer
from seqdiff.cli.app import main
from seqdiff.run import load
from seqdiff.samplers import AncestralSampler
from seqdiff.types import Inputs
from tests.integration.test_labelled_run import CONFIG, GC, sample, write_data

NET = ["--backbone.d_model=16", "--backbone.n_layer=2", "--backbone.n_heads=2"]
SMALL = ["--backbone=seqdiff.backbones.Transformer", *NET, "--backbone.cond_dim=8"]
TWIN = ["--backbone=seqdiff.backbones.AutoregressiveTransformer", *NET]
TIMED = [*SMALL, "--backbone.time_conditioned=true"]


def weights(run: Path) -> bytes:
    return (run / "model.safetensors").read_bytes()


@pytest.mark.parametrize("net", [SMALL, TIMED, TWIN], ids=["time-free", "timed", "causal"])
def test_resume_is_bit_identical(config: Path, tmp_path: Path, net: list[str]) -> None:
    """With dropout, whose noise must continue where it stopped."""
    flags = [*net, "--backbone.dropout=0.5", "--checkpoint_every_n_steps=2"]
    straight, stopped, dry = tmp_path / "straight", tmp_path / "stopped", tmp_path / "dry"
    run = ["train", str(config), *flags]
    assert main([*run, "--trainer.max_steps=4", f"--output={straight}"]) == 0
    assert main([*run, "--trainer.max_steps=2", f"--output={stopped}"]) == 0
    first = weights(stopped)
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps=4"]) == 0
    assert weights(straight) == weights(stopped) != first
    undropped = [*run, "--backbone.dropout=0", "--trainer.max_steps=4", f"--output={dry}"]
    assert main(undropped) == 0
    assert weights(dry) != weights(straight), "dropout acts"


@pytest.mark.usefixtures("toy_writer")
@pytest.mark.parametrize("net", [SMALL, TIMED, TWIN], ids=["time-free", "timed", "causal"])
def test_train_load_sample_evaluate(config: Path, tmp_path: Path, net: list[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", str(config), *net, "--trainer.max_steps=2", f"--output={out}"]) == 0
    kept = yaml.safe_load((out / "run.yaml").read_text())["backbone"]["init_args"]
    assert not {"num_embeddings", "num_logits", "num_classes"} & kept.keys()
    run = load(out)
    backbone = run.denoiser.backbone
    assert isinstance(backbone, AutoregressiveTransformer if net is TWIN else Transformer)
    assert (backbone.config.num_embeddings, backbone.config.num_logits) == (7, 6)
    assert run.denoiser.time_conditioned == (net is TIMED)
    generator = torch.Generator().manual_seed(0)
    drawn = AncestralSampler(8).sample(
        run.denoiser, run.process.blank((3, 12)), generator=generator
    )
    assert drawn.tokens.max() < 6
    command = ["sample", str(out), "--num=3", "--length=12", "--seed=1"]
    assert main([*command, f"--out={tmp_path / 's.ring'}"]) == 0
    assert len((tmp_path / "s.ring").read_text().splitlines()) == 3
    assert main(["evaluate", str(out)]) == 0


def test_a_timed_run_is_told_the_noise_of_its_schedule(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    flags = [*TIMED, "--process.schedule=Cosine", "--trainer.max_steps=2", f"--output={out}"]
    assert main(["train", str(config), *flags]) == 0
    denoiser = load(out).denoiser
    told: list[torch.Tensor] = []
    embedding = denoiser.backbone.sigma_map
    embedding.register_forward_pre_hook(lambda _module, inputs: told.append(inputs[0]))
    t = torch.tensor([0.5])
    denoiser(Inputs(torch.full((1, 4), 6), t))
    assert told[0].item() == pytest.approx(-torch.cos(torch.pi / 2 * t).log().item())


@pytest.mark.usefixtures("toy_writer")
def test_bad_runs_end_in_one_line(config: Path, fails, tmp_path: Path) -> None:
    run = ["train", str(config), *SMALL]
    line = fails([*run, "--backbone.n_heads=3"])
    assert "Transformer.d_model must be a multiple of 2 * n_heads = 6" in line
    line = fails([*run, "--backbone.max_length=8"])
    assert (
        "RunConfig.backbone must take rows as long as those of data, 12, got max_length = 8" in line
    )
    line = fails([*run, "--backbone.widht=8"])
    assert "choose from d_model, n_layer, n_heads, cond_dim, dropout, max_length, time_con" in line
    assert not (tmp_path / "run").exists()
    timed, out = tmp_path / "timed", tmp_path / "s.ring"
    assert main(["train", str(config), *TIMED, f"--output={timed}"]) == 0
    command = ["sample", str(timed), "--num=1", "--length=12", "--seed=1", f"--out={out}"]
    line = fails([*command, "--sampler=cached_ancestral"])
    assert "must ignore time for a row to be evaluated only after it has changed" in line
    assert main([*run, "--backbone.max_length=12", f"--output={tmp_path / 'short'}"]) == 0
    command = ["sample", str(tmp_path / "short"), "--num=1", "--seed=1", f"--out={out}"]
    line = fails([*command, "--length=13"])
    assert "sample.length must be at most 12 tokens, all that the network of" in line
    assert not out.exists()


@pytest.mark.slow
def test_samples_have_the_class_that_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2,000 independent bases give the fraction to 0.009; 1e-6 is at 4.9 of those, 0.044.

    The model may be off by another 0.02. A model that ignores labels gives 0.5.
    """
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path / "cache"))
    run, out = tmp_path / "run", tmp_path / "s.fa"
    flags = [
        *("--data.length=32", "--data.stride=32", "--data.batch_size=16", "--optim.lr=1e-2"),
        *("--ema_decay=0.9", "--trainer.enable_progress_bar=false"),
        *("--trainer.val_check_interval=null", "--trainer.max_steps=400"),
        *("--data.labels=[rich, poor]", "--backbone.dropout=0", f"--output={run}"),
        *("--label_dropout=0.3", "--experts=null"),
    ]
    assert main(["train", str(CONFIG), *SMALL, *write_data(tmp_path), *flags]) == 0
    assert load(run).denoiser.num_classes == 2
    found = {name: sample(run, out, "--label", name, length=25) for name in GC}
    assert all(abs(found[name] - share) < 0.044 + 0.02 for name, share in GC.items()), found
    assert found["poor"] + 0.1 < sample(run, out, length=25) < found["rich"] - 0.1
    rich = sample(run, out, "--label=rich")
    assert sample(run, out, "--label=rich", "--guidance=10") > rich + 0.05


@pytest.mark.slow
def test_compiled_layers_train_the_same(config: Path, tmp_path: Path) -> None:
    run, graphs = ["train", str(config), *SMALL, "--backbone.dropout=0"], unique_graphs()
    assert main([*run, f"--output={tmp_path / 'plain'}"]) == 0
    assert unique_graphs() == graphs
    flags = ["--trainer.compile=true", f"--output={tmp_path / 'compiled'}"]
    assert main([*run, *flags]) == 0
    assert unique_graphs() > graphs
    plain, found = (load(tmp_path / name).denoiser.state_dict() for name in ("plain", "compiled"))
    assert plain.keys() == found.keys()
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_resume_of_compiled_layers_is_bit_identical(config: Path, tmp_path: Path) -> None:
    """With dropout, whose noise the compiled layers draw themselves."""
    flags = [*SMALL, "--backbone.dropout=0.5", "--trainer.compile=true"]
    run, stopped = ["train", str(config), *flags], tmp_path / "stopped"
    assert main([*run, "--trainer.max_steps=4", f"--output={tmp_path / 'straight'}"]) == 0
    assert main([*run, "--trainer.max_steps=2", f"--output={stopped}"]) == 0
    assert main(["train", "--resume", str(stopped), "--trainer.max_steps=4"]) == 0
    assert weights(stopped) == weights(tmp_path / "straight")


def unique_graphs() -> int:
    """How many graphs ``torch.compile`` has made in this process."""
    return counters["stats"]["unique_graphs"]


def test_what_cannot_be_compiled_is_one_line(
    config: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ["train", str(config), "--trainer.compile=true", f"--output={tmp_path / 'run'}"]
    said = "trainer.compile must be false for ToyNet, which has no list of layers; drop it"
    assert said in fails(run)
    monkeypatch.setenv("CXX", "no-compiler -O2")
    said = "trainer.compile must be false without the C++ compiler no-compiler, which torch.compile"
    assert said in fails([*run, *SMALL])
    assert not (tmp_path / "run").exists()
