"""Caduceus: symmetry, an independent two-pass twin, padding."""

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiff.backbones import Backbone, Caduceus
from seqdiff.backbones.mamba import BiMamba, SelectiveSSM
from seqdiff.types import Inputs

DNA = (3, 2, 1, 0, 4)
EXACT = {"atol": 1e-10, "rtol": 1e-10}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of tiny operations: a second thread would only wait, long on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(seed: int = 0, **options: object) -> Caduceus:
    torch.manual_seed(seed)
    sizes = {"num_embeddings": 5, "num_logits": 4, "d_state": 3}
    model = Caduceus(10, 3, **{**sizes, "backend": "reference", **options}).double()
    with torch.no_grad():  # values that no symmetry of the initial ones can hide
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def draw_tokens(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, (batch, length), generator=generator)


VARIANTS = st.fixed_dictionaries(
    {
        "tied": st.booleans(),
        "combine": st.sampled_from(["add", "ew_multiply"]),
        "norm": st.sampled_from(["rms", "layer"]),
        "bias": st.booleans(),
        "conv_bias": st.booleans(),
    }
)


# Reverse-complement equivariance


def asymmetry(model: Caduceus, tokens: torch.Tensor) -> float:
    complement = torch.tensor(DNA)
    logits = model(Inputs(tokens))
    difference = model(Inputs(complement[tokens.flip(1)])) - logits.flip(1)[..., complement[:4]]
    return (difference.abs().max() / logits.abs().max()).item()


@settings(max_examples=25)
@given(options=VARIANTS, swap=st.booleans(), depth=st.integers(1, 3), length=st.integers(1, 9))
def test_ps_is_equivariant(options: dict[str, object], swap: bool, depth: int, length: int) -> None:
    model = build(variant="ps", complement=DNA, swap_strands=swap, **options)
    del model.layers[depth:]
    assert asymmetry(model, draw_tokens(2, length)) < 1e-10


def test_ps_without_the_complement_is_not_equivariant() -> None:
    model = build(variant="ps", complement=range(5))
    assert asymmetry(model, draw_tokens(2, 9)) > 1e-2


def test_ph_is_not_equivariant() -> None:
    assert asymmetry(build(complement=DNA), draw_tokens(2, 9)) > 1e-2


# An independent twin: explicit flips, two strands side by side, a loop over positions


def naive_norm(norm: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    if norm.bias is None:
        return norm.weight * x / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    centred = x - x.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt()
    return norm.weight * centred / scale + norm.bias


def naive_mamba(
    ssm: SelectiveSSM, in_proj: torch.nn.Linear, out_proj: torch.nn.Linear, h: torch.Tensor
) -> torch.Tensor:
    x, z = in_proj(h).chunk(2, dim=-1)
    width, rank = ssm.conv_weight.shape[1], ssm.dt_proj.in_features
    padded = torch.cat((torch.zeros_like(x[:, :1]).expand(-1, width - 1, -1), x), dim=1)
    state = torch.zeros(*x[:, 0].shape, ssm.A_log.shape[1], dtype=x.dtype)
    outputs = []
    for place in range(x.shape[1]):
        u = (padded[:, place : place + width] * ssm.conv_weight.T).sum(1)
        u = F.silu(u if ssm.conv_bias is None else u + ssm.conv_bias)
        dt, b, c = ssm.x_proj(u).tensor_split((rank, rank + state.shape[-1]), dim=-1)
        dt = F.softplus(ssm.dt_proj(dt))[..., None]
        state = torch.exp(-dt * ssm.A_log.exp()) * state + dt * b[:, None] * u[..., None]
        y = (state * c[:, None]).sum(-1) + ssm.D * u
        outputs.append(out_proj(y * F.silu(z[:, place])))
    return torch.stack(outputs, dim=1)


def naive_mixer(mixer: BiMamba, combine: str, h: torch.Tensor) -> torch.Tensor:
    in_rev, out_rev = mixer.in_proj_rev or mixer.in_proj, mixer.out_proj_rev or mixer.out_proj
    forward = naive_mamba(mixer.fwd, mixer.in_proj, mixer.out_proj, h)
    backward = naive_mamba(mixer.rev, in_rev, out_rev, h.flip(1)).flip(1)
    return forward + backward if combine == "add" else forward * backward


def naive_ph(model: Caduceus, tokens: torch.Tensor) -> torch.Tensor:
    x = model.embedding.weight[tokens]
    for block in model.layers:
        x = x + naive_mixer(block.mixer, model.config.combine, naive_norm(block.norm, x))
    return naive_norm(model.norm, x) @ model.embedding.weight[:4].T


def naive_ps(model: Caduceus, tokens: torch.Tensor) -> torch.Tensor:
    """Published layout: one vector of width 2d whose second half is reversed in both axes."""
    complement, weight = torch.tensor(DNA), model.embedding.weight

    def both(f: Callable[[torch.Tensor], torch.Tensor], h: torch.Tensor) -> torch.Tensor:
        first, second = h.chunk(2, dim=-1)
        return torch.cat((f(first), f(second.flip(1, 2)).flip(1, 2)), dim=-1)

    x = torch.cat((weight[tokens], weight[complement[tokens.flip(1)]].flip(1, 2)), dim=-1)
    for block in model.layers:
        if model.config.swap_strands:
            x = x.roll(x.shape[-1] // 2, dims=-1)
        mix = lambda h, m=block.mixer: naive_mixer(m, model.config.combine, h)  # noqa: E731
        x = x + both(mix, both(lambda h, n=block.norm: naive_norm(n, h), x))
    first, second = both(lambda h: naive_norm(model.norm, h), x).chunk(2, dim=-1)
    return first @ weight[:4].T + second.flip(2) @ weight[complement[:4]].T


@settings(max_examples=20)
@given(options=VARIANTS, depth=st.integers(1, 3), length=st.integers(1, 8))
def test_ph_equals_two_explicit_passes(options: dict[str, object], depth: int, length: int) -> None:
    model = build(**options)
    del model.layers[depth:]
    tokens = draw_tokens(2, length)
    torch.testing.assert_close(model(Inputs(tokens)), naive_ph(model, tokens), **EXACT)


@settings(max_examples=20)
@given(options=VARIANTS, swap=st.booleans(), depth=st.integers(1, 3), length=st.integers(1, 8))
def test_ps_equals_the_published_layout(
    options: dict[str, object], swap: bool, depth: int, length: int
) -> None:
    model = build(variant="ps", complement=DNA, swap_strands=swap, **options)
    del model.layers[depth:]
    tokens = draw_tokens(2, length)
    torch.testing.assert_close(model(Inputs(tokens)), naive_ps(model, tokens), **EXACT)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_swap_convention_matters(depth: int) -> None:
    swapped = build(variant="ps", complement=DNA, swap_strands=True)
    plain = build(variant="ps", complement=DNA)
    del swapped.layers[depth:], plain.layers[depth:]
    tokens = draw_tokens(2, 9)
    assert (swapped(Inputs(tokens)) - plain(Inputs(tokens))).abs().max() > 1e-2


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("combine", ["add", "ew_multiply"])
def test_a_mirrored_mixer_is_the_mixer_between_flips(tied: bool, combine: str) -> None:
    mixer = build(tied=tied, combine=combine, bias=True).layers[0].mixer
    x = torch.randn(2, 7, 10, dtype=torch.float64)
    mirrored = mixer(x.flip(1, 2), mirrored=True).flip(1, 2)
    torch.testing.assert_close(mirrored, mixer(x), **EXACT)


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_the_chosen_kernels_equal_the_reference(variant: str) -> None:
    model = build(variant=variant, complement=DNA)
    tokens = draw_tokens(3, 70)
    fast = build(variant=variant, complement=DNA, backend="auto")
    logits, wanted = fast(Inputs(tokens)), model(Inputs(tokens))
    torch.testing.assert_close(logits, wanted, **EXACT)
    weights = torch.randn_like(wanted)
    (logits * weights).sum().backward()
    (wanted * weights).sum().backward()
    for ours, theirs in zip(fast.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-9, rtol=1e-9)


# The backbone protocol, padding


def test_it_is_a_time_free_backbone() -> None:
    model, tokens = build(), draw_tokens(2, 5)
    assert isinstance(model, Backbone)
    assert model(Inputs(tokens)).shape == (2, 5, 4)
    assert torch.equal(model(Inputs(tokens, t=torch.rand(2))), model(Inputs(tokens)))


@settings(max_examples=20)
@given(
    options=VARIANTS,
    variant=st.sampled_from(["ph", "ps", "ps swapped"]),
    left=st.integers(0, 4),
    right=st.integers(0, 4),
)
def test_padding_does_not_reach_real_positions(
    options: dict[str, object], variant: str, left: int, right: int
) -> None:
    swap = variant == "ps swapped"
    model = build(variant=variant[:2], swap_strands=swap, complement=DNA, **options)
    row = draw_tokens(1, 5)
    real = slice(left, left + 5)
    tokens, padding = draw_tokens(2, 13, seed=2), torch.zeros(2, 13, dtype=torch.bool)
    tokens[0, real], padding[0] = row[0], True
    padding[0, real] = False
    logits = model(Inputs(tokens, padding=padding))
    torch.testing.assert_close(logits[:1, real], model(Inputs(row)), **EXACT)
    torch.testing.assert_close(logits[1:], model(Inputs(tokens[1:])), **EXACT)
    assert (
        model(Inputs(tokens))[:1, real] - model(Inputs(row))
    ).abs().max() > 1e-6  # without the argument


def test_no_padding_is_the_same_as_none() -> None:
    model, tokens = build(), draw_tokens(2, 6)
    assert torch.equal(
        model(Inputs(tokens, padding=torch.zeros_like(tokens) > 0)), model(Inputs(tokens))
    )
