"""``start_from``: a run that starts from the weights of another run."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from seqdiff.cli.app import main
from seqdiff.run import load
from seqdiff.types import Inputs
from tests.integration.toy_domain import RingTokenizer, ToyBlockNet

BLOCKS = ["--backbone", "tests.integration.toy_domain.ToyBlockNet", "--backbone.width", "8"]
BLOCKS += ["--objective", "BlockNELBO", "--block_size", "3"]


@pytest.fixture
def first(trained: Path, tmp_path: Path) -> Path:
    """A run of masked diffusion that may be changed."""
    return shutil.copytree(trained, tmp_path / "first")


def go_on(config: Path, first: Path, run: Path, *flags: str) -> Path:
    command = ["train", str(config), *BLOCKS, "--start_from", str(first), "--output", str(run)]
    assert main([*command, *flags]) == 0
    return run


def test_blocks_go_on_from_masked_diffusion(config: Path, first: Path, tmp_path: Path) -> None:
    weights = load_file(first / "model.safetensors")
    kept = go_on(config, first, tmp_path / "kept", "--trainer.max_steps", "0")
    untrained = load(kept).denoiser.state_dict()
    assert untrained.keys() == weights.keys()
    assert all(torch.equal(untrained[name], weights[name]) for name in weights)
    assert isinstance(load(kept).denoiser.backbone, ToyBlockNet)

    flags = ["--optim.lr", "1e-6", "--optim.min_lr", "0", "--trainer.max_steps", "2"]
    run = go_on(config, first, tmp_path / "run", *flags)
    close = load_file(run / "model.safetensors")
    distance = max(float((close[name] - weights[name]).abs().max()) for name in weights)
    assert 0 < distance < 1e-4
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] == 2
    # The broken twin ignores the key and starts from other weights.
    alone = ["train", str(config), *BLOCKS, *flags, "--output", str(tmp_path / "alone")]
    assert main(alone) == 0
    other = load_file(tmp_path / "alone" / "model.safetensors")
    assert max(float((other[name] - weights[name]).abs().max()) for name in weights) > 0.01


def test_experts_are_those_of_the_new_run(config: Path, first: Path, tmp_path: Path) -> None:
    """They are counted for weights without any, and counted anew for weights with others."""
    still = ["--optim.lr=1e-9", "--optim.min_lr=0", "--trainer.max_steps=1", "--ema_decay=null"]
    source = first
    for order in (2, 1):
        run = tmp_path / f"order{order}"
        command = ["train", str(config), f"--experts.order={order}", *still]
        assert main([*command, f"--start_from={source}", f"--output={run}"]) == 0
        found, wanted = load(run).denoiser, load(first).denoiser
        assert found.experts is not None and found.experts.counted
        assert found.experts.order == order
        inputs = Inputs(torch.tensor([[0, 6, 6, 3, 6, 1, 0, 6, 2, 2, 6, 5]]), torch.full((1,), 0.5))
        where = inputs.tokens == 6
        with torch.no_grad():
            assert not torch.allclose(found(inputs, where), wanted(inputs, where), atol=0.1)
            with found.experts.only("network"):
                assert torch.allclose(found(inputs, where), wanted(inputs, where), atol=1e-5)
        source = run


def test_the_other_run_is_not_needed_any_more(config: Path, first: Path, tmp_path: Path) -> None:
    flags = ["--trainer.max_steps", "6", "--checkpoint_every_n_steps", "3"]
    straight = go_on(config, first, tmp_path / "straight", *flags)
    broken = go_on(config, first, tmp_path / "broken", *flags, "--trainer.max_steps", "3")
    shutil.rmtree(first)
    assert yaml.safe_load((broken / "run.yaml").read_text())["start_from"] == str(first)
    assert load(broken).config.start_from == first
    assert main(["train", "--resume", str(broken), "--trainer.max_steps", "6"]) == 0
    names = ("state_dict", "optimizer_states")
    one, two = (torch.load(r / "last.ckpt", weights_only=True) for r in (straight, broken))
    for name in names[:1]:
        assert all(torch.equal(one[name][key], two[name][key]) for key in one[name])


def test_what_does_not_fit_is_refused(
    config: Path, first: Path, tmp_path: Path, fails, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", str(config), "--start_from", str(first)]
    wider = "embedding.weight of shape (7, 8) where (7, 9) is needed; give both runs the same"
    assert wider in fails([*command, "--backbone.width", "9"])
    spare = ["--backbone", "tests.integration.toy_domain.NetWithASpare"]
    assert "got 1 missing key(s), first backbone.spare; give both runs" in fails([*command, *spare])

    weights = load_file(first / "model.safetensors")
    save_file({**weights, "backbone.more": torch.zeros(1)}, first / "model.safetensors")
    assert "got 1 unexpected key(s), first backbone.more" in fails(command)
    (first / "model.safetensors").write_bytes(b"torn")
    assert "must be a whole safetensors file" in fails(command)
    (first / "model.safetensors").unlink()
    assert "model.safetensors must exist, got nothing there" in fails(command)

    save_file(weights, first / "model.safetensors")
    with monkeypatch.context() as patch:
        patch.setattr(RingTokenizer, "fingerprint", "ring-other")
        message = fails(command)
    assert "must be of the tokenizer ring-other, got ring-uvwxyz in" in message
    assert not (tmp_path / "run").exists()


def test_what_is_no_run_is_refused(config: Path, tmp_path: Path, fails) -> None:
    command = ["train", str(config), "--start_from"]
    assert "without run.yaml and config.json; check the path" in fails(
        [*command, str(tmp_path / "nowhere")]
    )
    hub = tmp_path / "hub"
    hub.mkdir()
    (hub / "config.json").write_text("{}")
    message = fails([*command, str(hub)])
    assert "HubBackbone.checkpoint must be of an architecture that" in message
    assert not (tmp_path / "run").exists()


def test_a_run_that_goes_on_starts_from_itself(config: Path, first: Path, fails) -> None:
    said = "resume.flags must leave start_from at None, got"
    assert said in fails(["train", "--resume", str(first), "--start_from", str(first)])


def test_caduceus_goes_on_as_block_mamba(tmp_path: Path, config: Path) -> None:
    flags = ["--backbone.d_model=8", "--backbone.n_layer=2", "--backbone.backend=reference"]
    first, then = tmp_path / "caduceus", tmp_path / "blocks"
    plain = ["--backbone", "seqdiff.backbones.Caduceus", *flags, "--backbone.variant=ph"]
    assert main(["train", str(config), *plain, "--output", str(first)]) == 0
    blocks = ["--backbone", "seqdiff.backbones.BlockMamba", *flags, *BLOCKS[4:]]
    blocks += ["--start_from", str(first), "--trainer.max_steps", "0", "--output", str(then)]
    assert main(["train", str(config), *blocks]) == 0
    one, two = (load_file(run / "model.safetensors") for run in (first, then))
    assert one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)
