"""Hidden states: symmetric where the network is, blind to padding, and what the head reads."""

import pytest
import torch
import torch.nn.functional as F

from seqdiff.backbones.block_mamba import BlockMamba
from seqdiff.backbones.caduceus import Caduceus
from seqdiff.backbones.protocol import HiddenBackbone

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
    straight, other = model.hidden(tokens()), model.hidden(DNA[tokens().flip(1)])
    first, second = straight.chunk(2, dim=-1)
    torch.testing.assert_close(other.flip(1), torch.cat((second, first), -1), atol=1e-10, rtol=0)
    assert (other.flip(1) - straight).abs().max() > 1e-2, "halves left in place"
    assert (other - torch.cat((second, first), -1)).abs().max() > 1e-2, "positions left in place"


@pytest.mark.parametrize("swap", [False, True])
def test_states_of_two_strands_give_the_logits(swap: bool) -> None:
    model = caduceus(variant="ps", complement=DNA.tolist(), swap_strands=swap)
    first, second = model.hidden(tokens()).chunk(2, dim=-1)
    head = model.embedding.weight[:4]
    logits = F.linear(first, head) + F.linear(second, head[DNA[:4]])
    torch.testing.assert_close(logits, model(tokens()), atol=1e-10, rtol=0)


def test_states_of_one_strand_give_the_logits() -> None:
    model = caduceus(complement=DNA.tolist())
    logits = F.linear(model.hidden(tokens()), model.embedding.weight[:4])
    torch.testing.assert_close(logits, model(tokens()), atol=1e-10, rtol=0)


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_padding_changes_no_real_state(variant: str) -> None:
    model = caduceus(variant=variant, complement=DNA.tolist())
    row = tokens(1)
    padded = F.pad(row, (0, 4), value=2)
    padding = torch.arange(13)[None] >= 9
    alone, beside = model.hidden(row), model.hidden(padded, padding)[:, :9]
    torch.testing.assert_close(alone, beside, atol=1e-10, rtol=0)
    assert (alone - model.hidden(padded)[:, :9]).abs().max() > 1e-3, "padding that is not said"


def test_block_mamba_gives_what_its_head_reads() -> None:
    torch.manual_seed(0)
    model = BlockMamba(10, 2, num_embeddings=5, num_logits=4, backend="reference").double()
    logits = F.linear(model.hidden(tokens()), model.embedding.weight[:4])
    torch.testing.assert_close(logits, model(tokens()), atol=1e-10, rtol=0)
    assert isinstance(model, HiddenBackbone)
