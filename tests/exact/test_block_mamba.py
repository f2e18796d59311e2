"""BlockMamba: its parallel pass against a twin that reads token by token, and its dependencies."""

import math

import pytest
import torch
from torch import Tensor

from seqdiff.backbones import BlockMamba, Caduceus
from seqdiff.types import Inputs
from tests.block_mamba_twin import FAULTS, build, draw, twin
from tests.oracles import all_sequences

L = 7
EXACT = {"rtol": 1e-10, "atol": 1e-11}
SHAPES = {
    "plain": {},
    "biases": {"bias": True, "norm": "layer", "norm_eps": 1e-3},
    "no bias of the filter": {"conv_bias": False, "d_conv": 2},
    "no filter": {"d_conv": 1, "d_state": 1},
}


def gradients(network: BlockMamba, logits: Tensor) -> list[Tensor]:
    random = torch.Generator().manual_seed(9)
    weight = torch.randn(logits.shape, generator=random, dtype=logits.dtype)
    return list(torch.autograd.grad(logits, list(network.parameters()), weight))


def test_it_says_what_it_can_do() -> None:
    network = build(num_classes=3)
    assert network.reads_blocks and not network.causal and not network.time_conditioned
    assert (network.width, network.num_logits, network.num_layers) == (6, 4, 2)
    assert network.num_classes == 3 and build().num_classes is None


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 5, 6, L])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_and_all_gradients_are_those_of_the_twin(shape, block_size, backend) -> None:
    network = build(backend=backend, **SHAPES[shape])
    x_t, x0 = draw(L)
    got = network.block_logits(Inputs(x_t), x0, block_size)
    wanted, _ = twin(network, x_t, x0, block_size)
    torch.testing.assert_close(got, wanted, **EXACT)
    for mine, other in zip(gradients(network, got), gradients(network, wanted), strict=True):
        torch.testing.assert_close(mine, other, **EXACT)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_twin_is_told_apart(fault) -> None:
    """With blocks of two or three; the faults have no effect on blocks of one token."""
    network = build()
    x_t, x0 = draw(L)
    for block_size in (2, 3):
        gap = (
            network.block_logits(Inputs(x_t), x0, block_size)
            - twin(network, x_t, x0, block_size, fault)[0]
        )
        assert gap.abs().max() > 1e-3


@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_a_block_reads_itself_and_clean_blocks_before_it_only(block_size: int) -> None:
    network = build()
    x_t, x0 = draw(L, batch=1)
    before = network.block_logits(Inputs(x_t), x0, block_size)
    blocks = torch.arange(L) // block_size
    for position in range(L):
        for name, rows in (("x_t", x_t), ("x0", x0)):
            other = rows.clone()
            other[0, position] = (other[0, position] + 1) % 4
            noisy, clean = (other, x0) if name == "x_t" else (x_t, other)
            moved = (
                (network.block_logits(Inputs(noisy), clean, block_size) - before)[0].abs().amax(-1)
            )
            here = blocks[position]
            read = blocks == here if name == "x_t" else blocks > here
            assert (moved[~read] == 0).all()
            assert (moved[read] > 1e-9).all()


@pytest.mark.parametrize("block_size", [L, L + 1, 100])
def test_one_block_is_caduceus_whose_weights_load(block_size: int) -> None:
    network = build(norm="layer", num_classes=3)
    plain = Caduceus(
        6, 2, num_embeddings=5, num_logits=4, d_state=3, norm="layer", num_classes=3
    ).double()
    torch.nn.init.normal_(plain.embedding.weight)
    network.load_state_dict(plain.state_dict())
    x_t, x0 = draw(L)
    padding = torch.arange(L) >= torch.tensor([L, 4])[:, None]
    given = {"padding": padding, "label": torch.tensor([2, -1])}
    wanted = plain(Inputs(x_t, **given))
    torch.testing.assert_close(network(Inputs(x_t, **given)), wanted, **EXACT)
    torch.testing.assert_close(
        network.block_logits(Inputs(x_t, **given), x0, block_size), wanted, **EXACT
    )
    torch.testing.assert_close(network(Inputs(x_t, **given), padding), wanted[padding], **EXACT)
    assert (network.block_logits(Inputs(x_t, **given), x0, L - 1) - wanted).abs().max() > 1e-3


def test_blocks_of_one_masked_token_are_an_autoregressive_distribution() -> None:
    """K = 2, L = 6: the probabilities of all 64 sequences sum to one; a leak would show."""
    network = build(num_embeddings=3, num_logits=2)
    x0 = all_sequences(2, 6)
    x_t = torch.full_like(x0, 2)

    def total(logits: Tensor) -> float:
        chosen = logits.log_softmax(-1).gather(-1, x0[..., None])[..., 0]
        return float(chosen.detach().sum(1).exp().sum())

    assert math.isclose(total(network.block_logits(Inputs(x_t), x0, 1)), 1, abs_tol=1e-10)
    assert abs(total(network.block_logits(Inputs(x0), x0, 1)) - 1) > 1e-2
    shifted = torch.cat(
        (network.block_logits(Inputs(x_t), x0, 1)[:, 1:], network(Inputs(x_t))[:, :1]), 1
    )
    assert abs(total(shifted) - 1) > 1e-3


@pytest.mark.parametrize("block_size", [1, 2, 3, L])
def test_padded_rows_are_worth_what_they_are_alone(block_size: int) -> None:
    network = build(bias=True)
    x_t, x0 = draw(L, batch=4)
    lengths = [L, 5, 3, 1]
    padding = torch.arange(L) >= torch.tensor(lengths)[:, None]
    logits = network.block_logits(Inputs(x_t, padding=padding), x0, block_size)
    unheeded = network.block_logits(Inputs(x_t), x0, block_size)
    seen = 0.0
    for row, length in enumerate(lengths):
        own = slice(row, row + 1), slice(length)
        alone = network.block_logits(Inputs(x_t[own]), x0[own], block_size)
        torch.testing.assert_close(logits[own], alone, **EXACT)
        seen = max(seen, (unheeded[own] - alone).abs().max().item())
    assert (seen > 1e-3) == (block_size > 1)  # blocks of one token have no room for padding


def test_labels_are_told_to_both_streams() -> None:
    network, label = build(num_classes=3), torch.tensor([2, -1])
    x_t, x0 = draw(L)
    got = network.block_logits(Inputs(x_t, label=label), x0, 3)
    torch.testing.assert_close(got, twin(network, x_t, x0, 3, label=label)[0], **EXACT)
    unlabelled = twin(network, x_t, x0, 3, "clean unlabelled", label)[0]
    assert (got - unlabelled).abs().max() > 1e-3


def test_scores_only_where_it_is_asked_to(monkeypatch) -> None:
    network = build()
    x_t, x0 = draw(L)
    where = torch.rand(2, L, generator=torch.Generator().manual_seed(4)) < 0.4
    scored = []
    ending = network.norm.forward
    monkeypatch.setattr(network.norm, "forward", lambda x: scored.append(len(x)) or ending(x))
    for block_size in (2, L):
        whole = network.block_logits(Inputs(x_t), x0, block_size)
        part = network.block_logits(Inputs(x_t), x0, block_size, where)
        torch.testing.assert_close(part, whole[where], **EXACT)
        assert not torch.allclose(part, whole[where.flip(1)][: len(part)], atol=1e-3)
    assert scored[1::2] == [int(where.sum())] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda n: n.block_logits(Inputs(draw(L)[0]), draw(L)[1], 0),
            "BlockMamba.block_size must be an integer of at",
        ),
        (
            lambda n: n.block_logits(Inputs(draw(L)[0], label=torch.tensor([0, 1])), draw(L)[1], 2),
            "BlockMamba.label",
        ),
        (
            lambda n: n(Inputs(draw(L)[0], label=torch.tensor([0, 1]))),
            "BlockMamba.label must be None",
        ),
        (lambda n: n.block_cache(0, 2), "BlockMamba.batch_size must be an integer of at least 1"),
        (lambda n: n.block_cache(2, 2, label=torch.tensor([0, 1])), "BlockMamba.label must be"),
        (lambda n: build(d_state=0), "Mamba.d_state must be"),
        (lambda n: build(backend="fast"), "BlockMamba.backend must be one of auto, "),
    ],
)
def test_refuses_what_it_cannot_do(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(build())
