"""The transformer against the logits and gradients of the published MDLM and BD3-LM networks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from seqdiff.backbones import PublishedTransformer, Transformer
from seqdiff.backbones.transformer import block_diffusion
from seqdiff.backbones.transformer import network as transformer
from seqdiff.backbones.transformer.hub import hub_name
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.types import Inputs
from tests.sketches import sketch

MDLM_FIELDS = {"model_type": "mdlm", "dropout": 0.1, "time_conditioning": True}
BLOCK_FIELDS = {
    "model_type": "bd3lm",
    "dropout": 0.1,
    "time_conditioning": False,
    "cross_attn": True,
    "adaln": True,
    "attn_backend": "flex",
    "causal": False,
    "var_min": True,
    "sampling_eps_min": 1e-3,
    "sampling_eps_max": 0.999,
}


class Golden:
    """One golden file, and the folder in which its weights would be published."""

    def __init__(self, path: Path, folder: Path, fields: dict[str, object]) -> None:
        with safe_open(path, "pt") as file:
            written = json.loads(file.metadata()["config"])
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}
        sizes = {**written, **written.get("model", {})}
        self.folder, self.sizes = folder, sizes
        self.fields = {
            **fields,
            "vocab_size": sizes["vocab_size"],
            "model_length": sizes["length"],
            "hidden_dim": sizes["hidden_size"],
            **{name: sizes[name] for name in ("cond_dim", "n_blocks", "n_heads")},
        }
        if fields["model_type"] == "bd3lm":
            self.fields["block_size"] = sizes["block_size"]
        self.state = {f"backbone.{k}": v for k, v in self.under("state/").items()}

    def under(self, prefix: str) -> dict[str, torch.Tensor]:
        found = {k: v for k, v in self.tensors.items() if k.startswith(prefix)}
        return {k.removeprefix(prefix): v for k, v in found.items()}

    def publish(self) -> Path:
        (self.folder / "config.json").write_text(json.dumps(self.fields))
        save_file(self.state, self.folder / "model.safetensors")
        return self.folder

    def logits(self, model: Transformer) -> torch.Tensor:
        if self.fields["model_type"] == "mdlm":
            return model(Inputs(self.tensors["input_ids"], sigma=self.tensors["sigma"]))
        size = self.sizes["block_size"]
        return model.block_logits(Inputs(self.tensors["xt"]), self.tensors["x0"], size)

    def gap(self, model: Transformer) -> float:
        return (self.logits(model) - self.tensors["logits"]).abs().max().item()


@pytest.fixture
def mdlm(golden: Path, tmp_path: Path) -> Golden:
    return Golden(golden / "mdlm_dit.safetensors", tmp_path, MDLM_FIELDS)


@pytest.fixture
def bd3lm(golden: Path, tmp_path: Path) -> Golden:
    return Golden(golden / "bd3lm_dit_b4.safetensors", tmp_path, BLOCK_FIELDS)


@pytest.fixture(params=["mdlm", "bd3lm"])
def published(request: pytest.FixtureRequest) -> Golden:
    return request.getfixturevalue(request.param)


def test_logits_and_every_gradient(published: Golden) -> None:
    model = Transformer.from_hub(published.publish())
    logits = published.logits(model)
    torch.testing.assert_close(logits, published.tensors["logits"], atol=2e-4, rtol=1e-4)
    (logits * published.tensors["grad_output"]).sum().backward()
    unseen = published.under("sketch/")
    assert unseen
    for name, parameter in model.named_parameters():
        wanted = unseen.pop(hub_name(name).removeprefix("backbone."))
        assert parameter.grad is not None
        assert (sketch(parameter.grad) - wanted).norm() <= 1e-3 * wanted.norm(), name
        other = parameter.grad.clone()
        other.view(-1)[-1] += 0.01 * other.norm()
        assert (sketch(other) - wanted).norm() > 1e-3 * wanted.norm(), f"one element of {name}"
    assert not unseen


def test_the_logits_at_some_positions(mdlm: Golden) -> None:
    model, tokens = Transformer.from_hub(mdlm.publish()), mdlm.tensors["input_ids"]
    where = tokens % 3 == 0
    some = model(Inputs(tokens, sigma=mdlm.tensors["sigma"]), where)
    torch.testing.assert_close(some, mdlm.tensors["logits"][where], atol=2e-4, rtol=1e-4)


def test_a_network_that_is_told_no_time_has_sigma_zero(mdlm: Golden) -> None:
    """The golden sigma is 0, so a network that ignores the time gives the same logits."""
    assert not mdlm.tensors["sigma"].any()
    assert mdlm.gap(Transformer.from_hub(mdlm.publish())) < 2e-4
    mdlm.fields["time_conditioning"] = False
    model = Transformer.from_hub(mdlm.publish())
    assert (model(Inputs(mdlm.tensors["input_ids"])) - mdlm.tensors["logits"]).abs().max() < 2e-4


def swapped(rotate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Broken twin: rotates channels 2i and 2i + 1 together instead of i and i + half."""

    def interleaved(x: torch.Tensor, table: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        halves = torch.cat((x[..., ::2], x[..., 1::2]), dim=-1)
        first, second = rotate(halves, table).chunk(2, dim=-1)
        return torch.stack((first, second), dim=-1).flatten(-2)

    return interleaved


def test_broken_twins_are_far_off(published: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other channel pairs, another order of adaLN's six parts, erf instead of tanh.

    The last one changes logits by 1e-4 only, which is still many times the rounding error here.
    """
    from seqdiff.backbones.transformer import layers

    model = Transformer.from_hub(published.publish())
    assert published.gap(model) < 1e-5
    with monkeypatch.context() as patch:
        patch.setattr(layers, "rotate", swapped(layers.rotate))
        assert published.gap(model) > 1e-2
    for block in model.blocks:
        block.mlp[1].approximate = "none"
    assert published.gap(model) > 1e-4
    model = Transformer.from_hub(published.folder)
    for block in model.blocks:
        for parameter in block.modulation.parameters():
            parameter.data = torch.cat(parameter.data.chunk(6)[::-1])
    assert published.gap(model) > 1e-2


def test_other_block_masks_are_far_off(bd3lm: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full attention within x0, a query in x_t that sees its own clean block, and block size 8."""
    model, length = Transformer.from_hub(bd3lm.publish()), bd3lm.sizes["length"]
    right = block_diffusion.block_diffusion_mask

    def full(*args: object) -> torch.Tensor:
        mask = right(*args)
        mask[length:, length:] = True
        return mask

    def leaking(*args: object) -> torch.Tensor:
        mask = right(*args)
        mask[:length, length:] |= mask[length:, length:]
        return mask

    twice = lambda n, size, *rest: right(n, 2 * size, *rest)  # noqa: E731
    monkeypatch.setattr(transformer, "choose_pass", lambda _pair: block_diffusion.dense_pass)
    assert bd3lm.gap(model) < 1e-5
    for twin in (full, leaking, twice):
        monkeypatch.setattr(block_diffusion, "block_diffusion_mask", twin)
        assert bd3lm.gap(model) > 1e-2


def test_writing_and_reading_again_changes_nothing(published: Golden, tmp_path: Path) -> None:
    model = Transformer.from_hub(published.publish())
    model.to_hub(tmp_path / "again")
    again = Transformer.from_hub(tmp_path / "again")
    assert again.config == model.config and again.block_fields == model.block_fields
    assert torch.equal(published.logits(again), published.logits(model))
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert written.items() >= published.fields.items()
    stored = load_file(tmp_path / "again" / "model.safetensors")
    shares = {"sampling_eps_min", "sampling_eps_max"} if published.fields.get("var_min") else set()
    assert stored.keys() - shares == published.state.keys() and shares <= stored.keys()
    for name, tensor in published.state.items():
        torch.testing.assert_close(stored[name], tensor, rtol=1e-6, atol=0)


def test_as_a_backbone_it_gives_the_published_distribution_without_the_mask(mdlm: Golden) -> None:
    """Log-softmax over the real symbols, at every position, with and without SUBS' copies."""
    mask_id, tokens = mdlm.fields["vocab_size"] - 1, mdlm.tensors["input_ids"]
    folder = str(mdlm.publish())
    net = PublishedTransformer(folder, num_embeddings=mask_id + 1, num_logits=mask_id).eval()
    denoiser, inputs = Denoiser(net, Absorbing(mask_id)), Inputs(tokens, torch.zeros(len(tokens)))
    wanted = mdlm.tensors["logits"].double()[..., :mask_id].log_softmax(-1).float()
    distribution = net(Inputs(tokens, sigma=torch.zeros(len(tokens)))).log_softmax(-1)
    torch.testing.assert_close(distribution, wanted, atol=2e-4, rtol=1e-4)
    hidden = tokens == mask_id
    assert hidden.any() and not hidden.all()
    torch.testing.assert_close(denoiser(inputs)[hidden], wanted[hidden], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(
        denoiser.log_probs(inputs, hidden), wanted[hidden], atol=2e-4, rtol=1e-4
    )
    with_mask = mdlm.tensors["logits"].log_softmax(-1)[..., :mask_id]
    shifted = mdlm.tensors["logits"][..., 1:].log_softmax(-1)
    for twin in (with_mask, shifted):
        assert (twin - wanted).abs().max() > 1e-2
