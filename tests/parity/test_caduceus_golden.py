"""Caduceus against the logits and gradients of the published network."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from seqdiff.backbones import Caduceus
from seqdiff.backbones.caduceus.hub import hub_names
from seqdiff.types import Inputs

FILES = {"ph": "caduceus_ph_rms", "ps": "caduceus_ps_rms_fused"}


class Golden:
    """One golden file, and the folder in which its weights would be published."""

    def __init__(self, path: Path, folder: Path) -> None:
        with safe_open(path, "pt") as file:
            self.config = json.loads(file.metadata()["config"])
            self.tensors = {name: file.get_tensor(name) for name in file.keys()}
        self.folder = folder
        self.state = self.under("state/")
        self.grads = self.under("grad/")

    def under(self, prefix: str) -> dict[str, torch.Tensor]:
        found = {k: v for k, v in self.tensors.items() if k.startswith(prefix)}
        return {k.removeprefix(prefix): v for k, v in found.items()}

    def publish(self) -> Path:
        (self.folder / "config.json").write_text(json.dumps(self.config))
        save_file(self.state, self.folder / "model.safetensors")
        return self.folder


@pytest.fixture(params=["ph", "ps"])
def published(request: pytest.FixtureRequest, golden: Path, tmp_path: Path) -> Golden:
    return Golden(golden / f"{FILES[request.param]}.safetensors", tmp_path)


@pytest.fixture
def published_ps(golden: Path, tmp_path: Path) -> Golden:
    return Golden(golden / f"{FILES['ps']}.safetensors", tmp_path)


def logits_of(published: Golden) -> torch.Tensor:
    return Caduceus.from_hub(published.publish())(Inputs(published.tensors["input_ids"]))


def assert_golden(logits: torch.Tensor, published: Golden) -> None:
    torch.testing.assert_close(logits, published.tensors["logits"], atol=2e-4, rtol=1e-4)


def test_logits_and_every_gradient(published: Golden) -> None:
    model = Caduceus.from_hub(published.publish())
    logits = model(Inputs(published.tensors["input_ids"]))
    assert_golden(logits, published)
    (logits * published.tensors["grad_output"]).sum().backward()
    unseen = set(published.grads)
    for name, parameter in model.named_parameters():
        hub = hub_names(name, model.config)[0]
        wanted = published.grads[hub]
        assert parameter.grad is not None
        error = (parameter.grad.reshape(wanted.shape) - wanted).norm() / wanted.norm()
        assert error < 1e-3, name
        unseen.remove(hub)
    assert not unseen


@pytest.mark.parametrize("keep_first", [True, False])
def test_a_deduplicated_file_is_tied_again(published: Golden, keep_first: bool) -> None:
    config = Caduceus.from_hub(published.publish()).config
    names = Caduceus.from_hub(published.folder).state_dict()
    for hub in (hub_names(name, config) for name in names):
        for alias in hub[1:] if keep_first else hub[:-1]:
            del published.state[alias]
    full = 2 * published.config["n_layer"] + 1
    assert len(published.state) == len(published.under("state/")) - full
    assert_golden(logits_of(published), published)


def test_the_order_of_the_complement_map_is_that_of_its_numbers(published_ps: Golden) -> None:
    by_string = sorted(published_ps.config["complement_map"].items())
    assert [key for key, _ in by_string][:3] == ["0", "1", "10"]
    published_ps.config["complement_map"] = dict(by_string)
    assert_golden(logits_of(published_ps), published_ps)


def test_a_vocabulary_written_before_padding_is_padded(published: Golden) -> None:
    complement = published.config["complement_map"]
    published.config["vocab_size"] = 12
    published.config["complement_map"] = {k: v for k, v in complement.items() if int(k) < 12}
    assert_golden(logits_of(published), published)


def test_the_other_swap_convention_is_far_off(published_ps: Golden) -> None:
    right = Caduceus.from_hub(published_ps.publish())
    config = right.config
    wrong = Caduceus(
        config.d_model,
        config.n_layer,
        num_embeddings=config.num_embeddings,
        num_logits=config.num_logits,
        complement=config.complement,
        variant="ps",
        swap_strands=False,
    )
    wrong.load_state_dict(right.state_dict())
    error = wrong(Inputs(published_ps.tensors["input_ids"])) - published_ps.tensors["logits"]
    assert error.abs().max() > 1


def test_writing_and_reading_again_changes_nothing(published: Golden, tmp_path: Path) -> None:
    model = Caduceus.from_hub(published.publish())
    model.to_hub(tmp_path / "again")
    again = Caduceus.from_hub(tmp_path / "again")
    assert again.config == model.config
    assert torch.equal(
        again(Inputs(published.tensors["input_ids"])), model(Inputs(published.tensors["input_ids"]))
    )
    with safe_open(tmp_path / "again" / "model.safetensors", "pt") as file:
        assert {k: file.get_slice(k).get_shape() for k in file.keys()} == {
            k: list(v.shape) for k, v in published.state.items()
        }
