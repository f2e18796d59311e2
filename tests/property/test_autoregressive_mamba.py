"""The autoregressive Mamba: causal, normalised over rows, against a loop over
positions, padding.
"""

import copy
from pathlib import Path

import pytest
import torch
import yaml

from seqdiff.backbones import AutoregressiveMamba, Caduceus
from seqdiff.denoiser.discrete import Denoiser, first_leak
from seqdiff.likelihood import ChainRule, evaluate
from seqdiff.process import LeftToRight
from seqdiff.types import NO_LABEL, Batch, Inputs
from tests.oracles import all_sequences
from tests.property.test_autoregressive import reads
from tests.property.test_caduceus import naive_mamba, naive_norm

K = 3
EXACT = {"atol": 1e-10, "rtol": 1e-10}
CONFIG = Path(__file__).parents[2] / "configs/backbone/autoregressive_mamba_128x4.yaml"
SHAPES = {
    "plain": {},
    "biases": {"bias": True, "norm": "layer", "norm_eps": 1e-3},
    "no bias of the filter": {"conv_bias": False, "d_conv": 2, "expand": 1},
    "labels": {"num_classes": 2},
}


def build(**options: object) -> AutoregressiveMamba:
    torch.manual_seed(0)
    sizes = {"num_embeddings": K + 1, "num_logits": K, "d_state": 3, "backend": "reference"}
    model = AutoregressiveMamba(10, 3, **{**sizes, **options}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def draw(batch: int, length: int) -> torch.Tensor:
    return torch.randint(K + 1, (batch, length), generator=torch.Generator().manual_seed(1))


def naive(model: AutoregressiveMamba, inputs: Inputs) -> torch.Tensor:
    """Token by token, without padding."""
    start = torch.full_like(inputs.tokens[:, :1], K)
    x = model.embedding.weight[torch.cat((start, inputs.tokens[:, :-1]), dim=1)]
    if model.label_embedding is not None:
        x = x + model.label_embedding.table.weight[inputs.label + 1][:, None]
    for block in model.layers:
        x = x + naive_mamba(block.ssm, block.in_proj, block.out_proj, naive_norm(block.norm, x))
    return naive_norm(model.norm, x) @ model.embedding.weight[:K].T


class Unshifted(AutoregressiveMamba):
    """Broken twin: a position reads its own token."""

    def embed(self, inputs):
        tokens = inputs.tokens
        return super().embed(
            Inputs(torch.cat((tokens[:, 1:], tokens[:, :1]), 1), label=inputs.label)
        )


def unshifted(**options: object) -> Unshifted:
    model = copy.deepcopy(build(**options))
    model.__class__ = Unshifted
    assert isinstance(model, Unshifted)
    return model


@pytest.mark.parametrize("backend", ["reference", "auto"])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_gradients_are_those_of_a_loop_over_positions(shape: str, backend: str) -> None:
    model = build(backend=backend, **SHAPES[shape])
    label = torch.tensor([1, NO_LABEL]) if "num_classes" in SHAPES[shape] else None
    inputs = Inputs(draw(2, 9), label=label)
    found, wanted = model(inputs), naive(model, inputs)
    torch.testing.assert_close(found, wanted, **EXACT)
    weight = torch.randn(found.shape, generator=torch.Generator().manual_seed(2)).double()
    leaves = list(model.parameters())
    pairs = (torch.autograd.grad(logits, leaves, weight) for logits in (found, wanted))
    for mine, other in zip(*pairs, strict=True):
        assert other.abs().max() > 1e-6
        torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)
    wrong = unshifted(**SHAPES[shape])(inputs)
    assert (wrong - wanted).abs().max() > 1e-3


def test_logits_read_exactly_the_tokens_before() -> None:
    before = torch.ones(6, 6).tril(-1) > 0
    assert build().causal and torch.equal(reads(build()), before)
    assert not torch.equal(reads(unshifted()), before)
    assert first_leak(build(), K) is None
    assert first_leak(unshifted(), K) == (1, 1), "the first position reads the start symbol"


def test_it_gives_a_distribution_over_rows_which_evaluation_reports() -> None:
    rows = all_sequences(K, 4)
    batch = Batch(rows, torch.ones_like(rows) > 0, torch.arange(len(rows)))
    model = Denoiser(build(), LeftToRight(K))
    nats = evaluate(model, [batch], estimator=ChainRule()).nats
    assert torch.from_numpy(-nats).exp().sum().item() == pytest.approx(1, abs=1e-10)

    def total(network: AutoregressiveMamba) -> float:
        chosen = network(Inputs(rows)).log_softmax(-1).gather(-1, rows[..., None])
        return chosen.detach().sum(dim=(1, 2)).exp().sum().item()

    assert total(build()) == pytest.approx(1, abs=1e-10)
    assert abs(total(unshifted()) - 1) > 1e-2


@pytest.mark.parametrize(("left", "right"), [(0, 0), (0, 3), (2, 0), (3, 2)])
def test_padding_does_not_reach_real_positions(left: int, right: int) -> None:
    model, row = build(bias=True), draw(1, 5)
    tokens = draw(2, left + 5 + right)
    tokens[0, left : left + 5] = row
    padding = torch.ones_like(tokens) > 0
    padding[0, left : left + 5] = False
    inputs = Inputs(tokens, padding=padding)
    real = slice(left, left + 5)
    torch.testing.assert_close(model(inputs)[:1, real], model(Inputs(row)), **EXACT)
    torch.testing.assert_close(model.hidden(inputs)[:1, real], model.hidden(Inputs(row)), **EXACT)
    if left:
        assert (model(Inputs(tokens))[:1, real] - model(Inputs(row))).abs().max() > 1e-3


def test_single_positions_are_those_of_the_whole() -> None:
    model, inputs = build(), Inputs(draw(3, 7))
    where = inputs.tokens == 1
    torch.testing.assert_close(model(inputs, where), model(inputs)[where], **EXACT)


def test_a_label_acts_on_its_own_row_alone() -> None:
    model, tokens, label = build(num_classes=2), draw(3, 6), torch.tensor([0, 1, NO_LABEL])
    inputs = Inputs(tokens, label=label)
    together = model(inputs)
    for row in range(3):
        alone = model(inputs.take(slice(row, row + 1)))
        torch.testing.assert_close(together[row : row + 1], alone, **EXACT)
    assert torch.equal(model(Inputs(tokens))[2], together[2])
    assert (model(Inputs(tokens))[:2] - together[:2]).abs().amax(dim=(1, 2)).min() > 1e-3


def test_it_is_as_large_as_the_caduceus_it_is_compared_with() -> None:
    sizes = {"num_embeddings": 5, "num_logits": 4}
    named = yaml.safe_load(CONFIG.read_text())
    assert named["class_path"] == "seqdiff.backbones.AutoregressiveMamba"
    model = AutoregressiveMamba(**named["init_args"], **sizes)
    per_block = 128 + 128 * 512 + 256 * (4 + 1) + 256 * 40 + (8 + 1) * 256 + 256 * 16 + 256
    count = sum(p.numel() for p in model.parameters())
    assert count == 4 * (per_block + 256 * 128) + 5 * 128 + 128 == 467_200
    other = sum(p.numel() for p in Caduceus(118, 4, **sizes).parameters())
    assert abs(count - other) < 0.01 * other
    assert (model.width, model.num_logits, model.num_layers) == (128, 4, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_model": 0}, "AutoregressiveMamba.d_model must be an integer of at least 1, got 0"),
        ({"num_classes": 0}, "AutoregressiveMamba.num_classes must be an integer of at least 1"),
        ({"num_logits": 5}, "AutoregressiveMamba.num_logits must not exceed num_embeddings"),
        ({"norm_eps": 0.0}, "AutoregressiveMamba.norm_eps must be above 0, got 0.0; 1e-5 is"),
        ({"backend": "fast"}, "AutoregressiveMamba.backend must be one of auto, "),
        ({"d_state": 0}, "Mamba.d_state must be an integer of at least 1"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    sizes = {"d_model": 8, "n_layer": 1, "num_embeddings": K + 1, "num_logits": K}
    with pytest.raises(ValueError, match=message):
        AutoregressiveMamba(**{**sizes, **options})
    with pytest.raises(ValueError, match=r"^AutoregressiveMamba\.label must be None for a network"):
        build()(Inputs(draw(1, 2), label=torch.tensor([0])))
