"""The base class of networks and their inputs."""

from dataclasses import replace

import pytest
import torch

from seqdiff.backbones import (
    AutoregressiveMamba,
    AutoregressiveTransformer,
    Backbone,
    BlockMamba,
    Caduceus,
    Transformer,
)
from seqdiff.types import NO_LABEL, Batch, Inputs
from tests.oracles import UniformBackbone

SIZES = {"num_embeddings": 5, "num_logits": 4}
PS = {"variant": "ps", "complement": (3, 2, 1, 0, 4)}
TOLD = {**SIZES, "num_classes": 2, "time_conditioned": True}
CONTEXT = {**SIZES, "dropout": 0.0, "max_length": 16}
NETWORKS = {
    "ph": lambda: Caduceus(10, 3, **TOLD, backend="reference"),
    "ps": lambda: Caduceus(10, 3, **SIZES, **PS, backend="reference"),
    "swapped": lambda: Caduceus(10, 3, **TOLD, **PS, swap_strands=True, backend="reference"),
    "ssd": lambda: Caduceus(10, 3, **TOLD, **PS, mixer="ssd", backend="auto"),
    "block mamba": lambda: BlockMamba(10, 3, **SIZES, num_classes=2, backend="reference"),
    "mamba": lambda: AutoregressiveMamba(10, 3, **SIZES, num_classes=2, backend="reference"),
    "transformer": lambda: Transformer(12, 3, 2, **CONTEXT, cond_dim=4),
    "told": lambda: Transformer(
        12, 3, 2, **CONTEXT, cond_dim=4, num_classes=2, time_conditioned=True
    ),
    "causal": lambda: AutoregressiveTransformer(12, 3, 2, **CONTEXT),
}
EXACT = {"atol": 1e-10, "rtol": 0}


def build(name: str) -> Backbone:
    torch.manual_seed(0)
    model = NETWORKS[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def batch(model: Backbone | None = None, *, padded: bool = True) -> Inputs:
    """A batch with every input of a network."""
    tokens = torch.randint(5, (4, 9), generator=torch.Generator().manual_seed(1))
    inputs = Inputs(tokens)
    if padded:
        inputs.padding = torch.arange(9) >= torch.tensor([9, 6, 9, 2])[:, None]
    if model is not None and model.num_classes is not None:
        inputs.label = torch.tensor([0, NO_LABEL, 1, 0])
    if model is not None and model.time_conditioned:
        inputs.sigma = torch.tensor([0.1, torch.inf, 1.0, 3.0], dtype=torch.float64)
    return inputs


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("padded", [False, True])
def test_a_callers_own_vectors_go_through_body_and_head(name: str, padded: bool) -> None:
    """The embeddings of some tokens give the logits of those tokens, and their gradients.

    Labels and noise levels still have an effect.
    """
    model = build(name)
    inputs = batch(model, padded=padded)
    there = slice(None) if inputs.padding is None else ~inputs.padding
    where = inputs.tokens == 4
    wanted = model(inputs)
    others = replace(inputs, tokens=torch.zeros_like(inputs.tokens))
    h = model.embed(inputs).detach().requires_grad_()
    assert h.shape == (8 if model.strands == 2 else 4, 9, model.width)
    states = model.body(h, others)
    assert states.shape == h.shape
    torch.testing.assert_close(model.head(states, others)[there], wanted[there], **EXACT)
    torch.testing.assert_close(model.head(states, others, where), wanted[where], **EXACT)
    (slope,) = torch.autograd.grad(model.head(states, others)[there].square().sum(), h)
    touched = slope.abs().amax(dim=(0, 2)) > 0
    assert touched.all()
    other = model.head(model.body(h.roll(1, dims=1), others), others)
    assert (other - wanted)[there].abs().max() > 1e-3
    for field in ("label", "sigma"):
        told = getattr(inputs, field)
        if told is not None:
            untold = replace(others, **{field: told.roll(1)})
            gap = model.head(model.body(h, untold), untold) - wanted
            assert gap[there].abs().max() > 1e-3


@pytest.mark.parametrize("name", NETWORKS)
def test_the_body_runs_layer_by_layer(name: str) -> None:
    """Running all layers equals the whole body, and a few layers give the stream after them."""
    model = build(name)
    inputs = batch(model, padded=False)
    h = model.embed(inputs)
    if model.num_classes is None and not model.time_conditioned:
        assert torch.equal(model.body(h, inputs, 0), h)
    torch.testing.assert_close(
        model.body(h, inputs, model.num_layers), model.body(h, inputs), **EXACT
    )
    assert (model.body(h, inputs, 2) - model.body(h, inputs)).abs().max() > 1e-3


def test_networks_that_read_no_blocks_say_which_do() -> None:
    model, inputs = UniformBackbone(4), Inputs(batch().tokens)
    assert not model.reads_blocks and BlockMamba.reads_blocks and Transformer.reads_blocks
    message = r"^UniformBackbone\.block_{} must be called on a network that reads blocks, .* Trans"
    with pytest.raises(ValueError, match=message.format("logits")):
        model.block_logits(inputs, inputs.tokens, 2)
    with pytest.raises(ValueError, match=message.format("cache")):
        model.block_cache(1, 2)


def test_a_network_without_classes_takes_no_label() -> None:
    model, label = UniformBackbone(4), torch.tensor([0, NO_LABEL, 1, 0])
    inputs = Inputs(batch().tokens, label=label)
    message = r"^UniformBackbone\.label must be None for a network without classes, got one of sha"
    for call in (model, model.hidden):
        with pytest.raises(ValueError, match=message):
            call(inputs)
    model.num_classes = 2
    assert model(inputs).shape == (4, 9, 4)


def test_a_network_needs_every_part() -> None:
    class NoBody(Backbone):
        num_layers = 0

        def embed(self, inputs):
            raise NotImplementedError

    with pytest.raises(TypeError, match=r"abstract method '?body"):
        NoBody()


# Input records


def test_rows_are_taken_in_any_order_and_number() -> None:
    inputs = batch()
    full = Inputs(
        inputs.tokens, torch.rand(4), torch.rand(4), inputs.padding, torch.tensor([0, 1, -1, 0])
    )
    rows = torch.tensor([3, 0, 0, 2, 1])
    taken = full.take(rows)
    for name in ("tokens", "t", "sigma", "padding", "label"):
        assert torch.equal(getattr(taken, name), getattr(full, name)[rows])
    assert full.take(slice(1, 3)).tokens.shape == (2, 9)
    assert full.take(full.label == 0).t.tolist() == full.t[[0, 3]].tolist()
    bare = Inputs(inputs.tokens).take(rows)
    assert (bare.t, bare.sigma, bare.padding, bare.label) == (None, None, None, None)
    assert full.to("meta").sigma.device.type == "meta"


def test_a_batch_makes_the_inputs_of_corrupted_tokens() -> None:
    tokens = batch().tokens
    whole = Batch(
        tokens,
        tokens < 4,
        torch.arange(4),
        torch.tensor([0, 1, -1, 0]),
        torch.tensor([True, False, True, False]),
        batch().padding,
    )
    x_t, t = torch.full_like(tokens, 4), torch.rand(4)
    inputs = whole.inputs(x_t, t)
    assert inputs.tokens is x_t and inputs.t is t and inputs.sigma is None
    assert inputs.padding is whole.padding and inputs.label is whole.label
    rows = torch.tensor([2, 1])
    taken = whole.take(rows)
    for name in ("tokens", "loss_mask", "index", "label", "mirrored", "padding"):
        assert torch.equal(getattr(taken, name), getattr(whole, name)[rows])
    assert Batch(tokens, tokens < 4, torch.arange(4)).take(rows).label is None
