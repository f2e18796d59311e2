"""Hidden states: symmetric like the network, independent of padding, and the input of the head."""

import pytest
import torch
import torch.nn.functional as F

from seqdiff.backbones.caduceus.block_diffusion import BlockMamba
from seqdiff.backbones.caduceus.network import Caduceus
from seqdiff.backbones.transformer.network import AutoregressiveTransformer, Transformer
from seqdiff.types import Inputs

DNA = torch.tensor((3, 2, 1, 0, 4))


def caduceus(**options: object) -> Caduceus:
    torch.manual_seed(0)
    sizes = {"num_embeddings": 5, "num_logits": 4, "d_state": 3, "backend": "reference"}
    model = Caduceus(10, 3, **{**sizes, **options}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def tokens(batch: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(5, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_reverse_complement_exchanges_the_halves(swap: bool, depth: int) -> None:
    model = caduceus(variant="ps", complement=DNA.tolist(), swap_strands=swap)
    del model.layers[depth:]
    straight, other = model.hidden(Inputs(tokens())), model.hidden(Inputs(DNA[tokens().flip(1)]))
    first, second = straight.chunk(2, dim=-1)
    torch.testing.assert_close(other.flip(1), torch.cat((second, first), -1), atol=1e-10, rtol=0)
    assert (other.flip(1) - straight).abs().max() > 1e-2, "halves left in place"
    assert (other - torch.cat((second, first), -1)).abs().max() > 1e-2, "positions left in place"


@pytest.mark.parametrize("swap", [False, True])
def test_states_of_two_strands_give_the_logits(swap: bool) -> None:
    model = caduceus(variant="ps", complement=DNA.tolist(), swap_strands=swap)
    first, second = model.hidden(Inputs(tokens())).chunk(2, dim=-1)
    head = model.embedding.weight[:4]
    logits = F.linear(first, head) + F.linear(second, head[DNA[:4]])
    torch.testing.assert_close(logits, model(Inputs(tokens())), atol=1e-10, rtol=0)


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_padding_changes_no_real_state(variant: str) -> None:
    model = caduceus(variant=variant, complement=DNA.tolist())
    row = tokens(1)
    padded = F.pad(row, (0, 4), value=2)
    padding = torch.arange(13)[None] >= 9
    alone, beside = model.hidden(Inputs(row)), model.hidden(Inputs(padded, padding=padding))[:, :9]
    torch.testing.assert_close(alone, beside, atol=1e-10, rtol=0)
    assert (alone - model.hidden(Inputs(padded))[:, :9]).abs().max() > 1e-3, (
        "padding that is not said"
    )


SIZES = {"num_embeddings": 5, "num_logits": 4}
CONTEXT = {**SIZES, "dropout": 0.3, "max_length": 16}


def one_strand(name: str) -> Caduceus | BlockMamba | Transformer | AutoregressiveTransformer:
    torch.manual_seed(0)
    if name == "caduceus":
        return caduceus()
    built = {
        "mamba": lambda: BlockMamba(10, 3, **SIZES, backend="reference"),
        "transformer": lambda: Transformer(12, 3, 2, **CONTEXT, cond_dim=4),
        "timed": lambda: Transformer(12, 3, 2, **CONTEXT, cond_dim=4, time_conditioned=True),
        "causal": lambda: AutoregressiveTransformer(12, 3, 2, **CONTEXT),
    }
    model = built[name]().double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


NAMES = ("caduceus", "mamba", "transformer", "timed", "causal")


@pytest.mark.parametrize("name", NAMES)
def test_states_are_what_the_head_reads(name: str) -> None:
    model = one_strand(name)
    if isinstance(model, Transformer | AutoregressiveTransformer):
        head = model.head.linear
        logits = F.linear(model.hidden(Inputs(tokens())), head.weight, head.bias)
    else:
        logits = F.linear(model.hidden(Inputs(tokens())), model.embedding.weight[:4])
    clean = torch.zeros(2, dtype=torch.float64)
    torch.testing.assert_close(logits, model(Inputs(tokens(), sigma=clean)), atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", [0, 1, 2, 3, None])
def test_padding_changes_no_real_state_of_a_layer(name: str, layer: int | None) -> None:
    model = one_strand(name)
    both = torch.cat((tokens(1), tokens(1).flip(1)))
    padding = torch.arange(9) >= torch.tensor([[9], [6]])
    found = model.hidden(Inputs(both, padding=padding), layer=layer)
    torch.testing.assert_close(
        found[:1], model.hidden(Inputs(both[:1]), layer=layer), atol=1e-10, rtol=0
    )
    alone = model.hidden(Inputs(both[1:, :6]), layer=layer)
    torch.testing.assert_close(found[1:, :6], alone, atol=1e-10, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_gives_what_the_next_one_reads(name: str) -> None:
    """A hook on each block records the states; the embedded tokens come first."""
    model = one_strand(name)
    assert model.num_layers == 3
    blocks = model.blocks if hasattr(model, "blocks") else model.layers
    read, given = [], []
    for block in blocks:
        block.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
        block.register_forward_hook(lambda module, inputs, output: given.append(output))
    model.hidden(Inputs(tokens()))
    states, passed = [*read, given[-1]], len(read)
    for layer, want in enumerate(states):
        torch.testing.assert_close(
            model.hidden(Inputs(tokens()), layer=layer), want, atol=0, rtol=0
        )
    assert passed == 3 and len(read) == 3 + 0 + 1 + 2 + 3, "layers that nobody asked for were run"
    assert not torch.equal(states[-1], model.hidden(Inputs(tokens()))), (
        "the last ones are not normalised"
    )


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("layer", [0, 1, 2])
def test_layers_of_two_strands_are_symmetric_too(swap: bool, layer: int) -> None:
    model = caduceus(variant="ps", complement=DNA.tolist(), swap_strands=swap)
    straight = model.hidden(Inputs(tokens()), layer=layer)
    first, second = straight.chunk(2, dim=-1)
    other = model.hidden(Inputs(DNA[tokens().flip(1)]), layer=layer).flip(1)
    torch.testing.assert_close(other, torch.cat((second, first), -1), atol=1e-10, rtol=0)
    if not layer:
        torch.testing.assert_close(first, model.embedding(tokens()), atol=0, rtol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layer", [-1, 4])
def test_a_layer_that_is_not_there(name: str, layer: int) -> None:
    model = one_strand(name)
    with pytest.raises(ValueError, match=rf"layer must be in 0..3, .* got {layer}; leave it out"):
        model.hidden(Inputs(tokens()), layer=layer)
