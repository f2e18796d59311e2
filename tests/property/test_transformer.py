"""The transformer: an explicit twin, padding, single positions, labels, blocks, invalid input."""

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiff.backbones import Transformer
from seqdiff.backbones.layers import MAX_SIGMA
from seqdiff.backbones.transformer.layers import CentredNorm
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.samplers.guidance import ClassifierFree
from seqdiff.types import NO_LABEL, Inputs
from tests.small_transformers import K, build, draw_tokens

EXACT = {"atol": 1e-10, "rtol": 1e-10}
CLASSES = 3
SIGMA = torch.tensor([0.1, 2.0], dtype=torch.float64)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# An independent twin: complex numbers for the positions, a loop over heads, explicit softmax


def naive_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return weight * centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def naive_turn(x: torch.Tensor) -> torch.Tensor:
    length, width = x.shape[-2:]
    turns = [[p * 10_000 ** (-2 * i / width) for i in range(width // 2)] for p in range(length)]
    phases = torch.polar(
        torch.ones(length, width // 2).double(), torch.tensor(turns, dtype=torch.float64)
    )
    turned = torch.complex(x[..., : width // 2], x[..., width // 2 :]) * phases
    return torch.cat((turned.real, turned.imag), dim=-1)


def naive_condition(
    model: Transformer, sigma: torch.Tensor, label: torch.Tensor | None
) -> torch.Tensor:
    steps = [math.exp(-math.log(1e4) * i / 128) for i in range(128)]
    rates = torch.tensor(steps, dtype=torch.float64)
    angles = sigma.clamp(max=-math.log(1e-3))[:, None] * rates
    first, _, second = model.sigma_map.mlp
    hidden = torch.cat((angles.cos(), angles.sin()), -1) @ first.weight.T + first.bias
    c = (hidden * hidden.sigmoid()) @ second.weight.T + second.bias
    c = c * c.sigmoid()
    if model.label_embedding is None:
        return c
    rows = torch.zeros(len(sigma), dtype=torch.int64) if label is None else label + 1
    return c + model.label_embedding.table.weight[rows]


def naive_block(block: torch.nn.Module, x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    width, heads = x.shape[-1], block.n_heads
    parts = (c @ block.modulation.weight.T + block.modulation.bias).reshape(len(c), 6, 1, width)
    shift, scale, gate, shift_mlp, scale_mlp, gate_mlp = parts.unbind(1)
    h = naive_norm(x, block.norm1.weight) * (1 + scale) + shift
    q, k, v = (h @ w.T for w in block.attn_qkv.weight.chunk(3))
    mixed = []
    for head in range(heads):
        mine = slice(head * width // heads, (head + 1) * width // heads)
        scores = naive_turn(q[..., mine]) @ naive_turn(k[..., mine]).mT / (width / heads) ** 0.5
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        mixed.append(weights @ v[..., mine])
    x = x + gate * (torch.cat(mixed, -1) @ block.attn_out.weight.T)
    h = naive_norm(x, block.norm2.weight) * (1 + scale_mlp) + shift_mlp
    up, _, down = block.mlp
    h = h @ up.weight.T + up.bias
    h = 0.5 * h * (1 + torch.tanh((2 / math.pi) ** 0.5 * (h + 0.044715 * h**3)))
    return x + gate_mlp * (h @ down.weight.T + down.bias)


def naive(
    model: Transformer,
    tokens: torch.Tensor,
    sigma: torch.Tensor,
    label: torch.Tensor | None = None,
) -> torch.Tensor:
    c = naive_condition(model, sigma, label)
    x = model.embedding.weight[tokens]
    for block in model.blocks:
        x = naive_block(block, x, c)
    head = model.head
    shift, scale = (c @ head.modulation.weight.T + head.modulation.bias)[:, None].chunk(2, -1)
    x = naive_norm(x, head.norm.weight) * (1 + scale) + shift
    return x @ head.linear.weight.T + head.linear.bias


@settings(max_examples=20)
@given(
    timed=st.booleans(),
    labelled=st.booleans(),
    length=st.integers(1, 9),
    sigma=st.tuples(st.floats(0, 9), st.floats(0, 9)),
)
def test_it_equals_the_explicit_twin(
    timed: bool, labelled: bool, length: int, sigma: tuple[float, float]
) -> None:
    model = build(time_conditioned=timed, num_classes=CLASSES if labelled else None)
    tokens, noise = draw_tokens(2, length), torch.tensor(sigma).double()
    label = torch.tensor([2, NO_LABEL]) if labelled else None
    wanted = naive(model, tokens, noise if timed else torch.zeros(2).double(), label)
    torch.testing.assert_close(model(Inputs(tokens, sigma=noise, label=label)), wanted, **EXACT)


# The interface: noise, single positions, padding


def test_who_is_what() -> None:
    model = build(num_classes=2, time_conditioned=True)
    assert model.reads_blocks and not model.causal and model.time_conditioned
    assert (model.width, model.num_logits, model.num_layers) == (12, K, 3)
    assert (model.num_classes, model.max_length, model.strands) == (2, 32, 1)
    assert build().num_classes is None and not build().time_conditioned


def test_a_time_free_network_ignores_the_noise() -> None:
    model, tokens = build(), draw_tokens(2, 5)
    assert torch.equal(model(Inputs(tokens, sigma=SIGMA)), model(Inputs(tokens)))


def test_a_time_conditioned_network_reads_each_rows_noise() -> None:
    model, tokens = build(time_conditioned=True), draw_tokens(2, 5)
    together = model(Inputs(tokens, sigma=SIGMA))
    alone = torch.cat([model(Inputs(tokens[i : i + 1], sigma=SIGMA[i : i + 1])) for i in range(2)])
    torch.testing.assert_close(together, alone, **EXACT)
    other = model(Inputs(tokens, sigma=SIGMA.flip(0)))
    assert (other - together).abs().amax(dim=(1, 2)).min() > 1e-2


def test_infinite_noise_is_the_most_that_published_networks_saw() -> None:
    model, tokens = build(time_conditioned=True), draw_tokens(2, 5)
    most = torch.full((2,), -math.log(1e-3), dtype=torch.float64)
    assert MAX_SIGMA == most[0]
    assert torch.equal(
        model(Inputs(tokens, sigma=torch.full((2,), torch.inf))), model(Inputs(tokens, sigma=most))
    )


@settings(max_examples=20)
@given(
    seed=st.integers(0, 99),
    share=st.sampled_from([0.0, 0.3, 1.0]),
    timed=st.booleans(),
    labelled=st.booleans(),
)
def test_single_positions_are_those_of_the_whole(
    seed: int, share: float, timed: bool, labelled: bool
) -> None:
    model = build(time_conditioned=timed, num_classes=CLASSES if labelled else None)
    tokens = draw_tokens(2, 7, seed)
    generator = torch.Generator().manual_seed(seed)
    where = torch.rand(2, 7, generator=generator) < share
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[0, 5:] = True
    label = torch.tensor([1, 0]) if labelled else None
    some = model(Inputs(tokens, sigma=SIGMA, padding=padding, label=label), where)
    assert some.shape == (int(where.sum()), K)
    whole = model(Inputs(tokens, sigma=SIGMA, padding=padding, label=label))
    torch.testing.assert_close(some, whole[where], **EXACT)
    assert share < 1 or not torch.allclose(whole[0], whole[1])  # rows cannot be exchanged


@settings(max_examples=20)
@given(left=st.integers(0, 4), right=st.integers(0, 4), timed=st.booleans())
def test_padding_does_not_reach_real_positions(left: int, right: int, timed: bool) -> None:
    model, row = build(time_conditioned=timed), draw_tokens(1, 5)
    real = slice(left, left + 5)
    tokens, padding = draw_tokens(2, 13, seed=2), torch.zeros(2, 13, dtype=torch.bool)
    tokens[0, real], padding[0] = row[0], True
    padding[0, real] = False
    logits = model(Inputs(tokens, sigma=SIGMA, padding=padding))
    torch.testing.assert_close(logits[:1, real], model(Inputs(row, sigma=SIGMA[:1])), **EXACT)
    torch.testing.assert_close(logits[1:], model(Inputs(tokens[1:], sigma=SIGMA[1:])), **EXACT)
    assert (
        model(Inputs(tokens, sigma=SIGMA))[:1, real] - model(Inputs(row, sigma=SIGMA[:1]))
    ).abs().max() > 1e-6


def test_padding_inside_a_row_changes_nothing_whatever_it_holds() -> None:
    model, tokens = build(), draw_tokens(2, 9)
    padding = torch.zeros(2, 9, dtype=torch.bool)
    padding[0, 3:5] = padding[1, 0] = True
    other = tokens.masked_fill(padding, K) - padding * tokens // 2
    assert not torch.equal(other, tokens)
    same = (model(Inputs(tokens, padding=padding)) - model(Inputs(other, padding=padding)))[
        ~padding
    ]
    assert same.abs().max() < 1e-12


def test_a_row_of_padding_is_no_nan() -> None:
    model, tokens = build(), draw_tokens(2, 5)
    padding = torch.tensor([[True], [False]]).expand(2, 5)
    logits = model(Inputs(tokens, padding=padding))
    logits.sum().backward()
    assert logits.isfinite().all()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    torch.testing.assert_close(logits[1:], model(Inputs(tokens[1:])), **EXACT)


def test_no_padding_is_the_same_as_none() -> None:
    model, tokens = build(), draw_tokens(2, 6)
    torch.testing.assert_close(
        model(Inputs(tokens, padding=torch.zeros(2, 6) > 0)), model(Inputs(tokens)), **EXACT
    )


# Labels


def test_a_label_acts_on_its_own_row_alone() -> None:
    model, tokens = build(num_classes=CLASSES), draw_tokens(4, 6)
    label = torch.tensor([0, 2, NO_LABEL, 1])
    together = model(Inputs(tokens, label=label))
    alone = [model(Inputs(tokens[i : i + 1], label=label[i : i + 1])) for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone), **EXACT)
    other = model(Inputs(tokens, label=label.roll(1)))
    assert (other - together).abs().amax(dim=(1, 2)).min() > 1e-3
    none = model(Inputs(tokens, label=torch.full((4,), NO_LABEL)))
    assert torch.equal(none, model(Inputs(tokens)))


def test_classifier_free_guidance_mixes_the_two_distributions() -> None:
    model, tokens = build(num_classes=CLASSES, time_conditioned=True), draw_tokens(2, 6)
    denoiser = Denoiser(model, Absorbing(K))
    t, label = torch.tensor([0.4, 0.9]).double(), torch.ones(2, dtype=torch.int64)
    given_label, without = denoiser(Inputs(tokens, t, label=label)), denoiser(Inputs(tokens, t))
    masked = tokens == K
    assert (given_label - without)[masked].abs().max() > 1e-3
    for gamma in (0.0, 0.5, 1.0, 3.0):
        guided = ClassifierFree(denoiser, 1, gamma)(Inputs(tokens, t))[masked]
        wanted = (gamma * given_label + (1 - gamma) * without)[masked].log_softmax(-1)
        torch.testing.assert_close(guided, wanted, **EXACT)


def test_other_weights_do_not_depend_on_the_number_of_classes() -> None:
    states = []
    for classes in (None, 2):
        torch.manual_seed(3)
        model = Transformer(8, 2, 2, num_embeddings=5, num_logits=4, num_classes=classes)
        states.append(model.state_dict())
    plain, labelled = states
    assert labelled.keys() - plain.keys() == {"label_embedding.table.weight"}
    assert all(torch.equal(labelled[name], weight) for name, weight in plain.items())


def test_norms_are_wide_whatever_comes_in() -> None:
    """Under bf16 autocast the residual stream may be narrow, but statistics and gains are in
    float32.
    """
    norm = CentredNorm(64)
    x = (100 + torch.randn(7, 64, generator=torch.Generator().manual_seed(0))).bfloat16()
    found = norm(x)
    assert found.dtype == torch.float32
    wide = x.double()
    centred = wide - wide.mean(dim=-1, keepdim=True)
    wanted = centred / (centred.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()
    assert (found - wanted).abs().max() < 1e-4
    twin = F.layer_norm(x, (64,), norm.weight.bfloat16(), eps=1e-5)
    assert (twin - wanted).abs().max() > 1e-3, "rounded to bf16"
    assert norm.double()(x.double()).dtype == torch.float64
