"""Caduceus: symmetry, an independent two-pass twin, sizes, padding, initial values, bad input."""

from collections.abc import Callable, Iterator

import jaxtyping
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiff.backbones import Backbone, Caduceus
from seqdiff.backbones.mamba import BiMamba, SelectiveSSM
from seqdiff.training.optim import decay_groups

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
    logits = model(tokens)
    difference = model(complement[tokens.flip(1)]) - logits.flip(1)[..., complement[:4]]
    return (difference.abs().max() / logits.abs().max()).item()


@settings(max_examples=25, deadline=None)
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


@settings(max_examples=20, deadline=None)
@given(options=VARIANTS, depth=st.integers(1, 3), length=st.integers(1, 8))
def test_ph_equals_two_explicit_passes(options: dict[str, object], depth: int, length: int) -> None:
    model = build(**options)
    del model.layers[depth:]
    tokens = draw_tokens(2, length)
    torch.testing.assert_close(model(tokens), naive_ph(model, tokens), **EXACT)


@settings(max_examples=20, deadline=None)
@given(options=VARIANTS, swap=st.booleans(), depth=st.integers(1, 3), length=st.integers(1, 8))
def test_ps_equals_the_published_layout(
    options: dict[str, object], swap: bool, depth: int, length: int
) -> None:
    model = build(variant="ps", complement=DNA, swap_strands=swap, **options)
    del model.layers[depth:]
    tokens = draw_tokens(2, length)
    torch.testing.assert_close(model(tokens), naive_ps(model, tokens), **EXACT)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_swap_convention_matters(depth: int) -> None:
    swapped = build(variant="ps", complement=DNA, swap_strands=True)
    plain = build(variant="ps", complement=DNA)
    del swapped.layers[depth:], plain.layers[depth:]
    tokens = draw_tokens(2, 9)
    assert (swapped(tokens) - plain(tokens)).abs().max() > 1e-2


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
    logits, wanted = fast(tokens), model(tokens)
    torch.testing.assert_close(logits, wanted, **EXACT)
    weights = torch.randn_like(wanted)
    (logits * weights).sum().backward()
    (wanted * weights).sum().backward()
    for ours, theirs in zip(fast.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-9, rtol=1e-9)


# Sizes and initial values


@pytest.mark.parametrize(
    ("d_model", "n_layer", "parameters"),
    [(64, 4, 164_160), (118, 4, 470_702), (128, 4, 541_312), (256, 4, 1_934_592),
     (256, 16, 7_725_312)],
)  # fmt: skip
@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_published_sizes(d_model: int, n_layer: int, parameters: int, variant: str) -> None:
    with torch.device("meta"):
        model = Caduceus(
            d_model,
            n_layer,
            num_embeddings=16,
            num_logits=16,
            complement=range(16),
            variant=variant,
        )
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_initial_values_are_the_published_ones() -> None:
    torch.manual_seed(0)
    model = Caduceus(64, 4, num_embeddings=500, num_logits=499, bias=True)
    mixer = model.layers[1].mixer
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.03)
    steps = F.softplus(mixer.fwd.dt_proj.bias)
    assert steps.min() > 0.99e-3
    assert steps.max() < 1.01e-1
    assert steps.log10().mean().item() == pytest.approx(-2, abs=0.25)
    torch.testing.assert_close(
        mixer.rev.A_log.exp(), torch.arange(1.0, 17.0).expand(128, 16), atol=1e-5, rtol=1e-6
    )
    assert (mixer.fwd.D == 1).all()
    assert mixer.fwd.dt_proj.weight.abs().max().item() == pytest.approx(4**-0.5, rel=0.03)
    # kaiming_uniform(a=sqrt 5) is uniform up to 1/sqrt(fan in), and four blocks halve it.
    assert mixer.in_proj.weight.abs().max().item() == pytest.approx(64**-0.5, rel=0.01)
    assert mixer.out_proj.weight.abs().max().item() == pytest.approx(128**-0.5 / 2, rel=0.01)
    assert not mixer.in_proj.bias.any()
    assert not mixer.out_proj.bias.any()


def test_parameters_that_weight_decay_reaches() -> None:
    model = build(norm="layer", bias=True)
    decayed, _ = decay_groups(model)
    ending = ("in_proj.weight", "out_proj.weight", "x_proj.weight", "dt_proj.weight", "conv_weight")
    assert set(decayed) == {n for n, _ in model.named_parameters() if n.endswith(ending)}
    assert len(decayed) == 3 * (2 + 2 * 3)


# The backbone protocol, padding


def test_it_is_a_time_free_backbone() -> None:
    model, tokens = build(), draw_tokens(2, 5)
    assert isinstance(model, Backbone)
    assert model(tokens).shape == (2, 5, 4)
    assert torch.equal(model(tokens, torch.rand(2)), model(tokens))


@settings(max_examples=20, deadline=None)
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
    logits = model(tokens, padding=padding)
    torch.testing.assert_close(logits[:1, real], model(row), **EXACT)
    torch.testing.assert_close(logits[1:], model(tokens[1:]), **EXACT)
    assert (model(tokens)[:1, real] - model(row)).abs().max() > 1e-6  # without the argument


def test_no_padding_is_the_same_as_none() -> None:
    model, tokens = build(), draw_tokens(2, 6)
    assert torch.equal(model(tokens, padding=torch.zeros_like(tokens) > 0), model(tokens))


# Bad arguments


@pytest.fixture
def unchecked() -> Iterator[None]:
    """What a user without a type checker meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "ps"}, "complement is needed"),
        ({"complement": (3, 2, 1, 0)}, "hold each of the 5 embedded ids once"),
        ({"complement": (1, 2, 3, 0, 4)}, r"its own inverse; it is not at ids \[0, 1, 2, 3\]"),
        ({"complement": (4, 1, 2, 3, 0)}, r"ids \[0\] leave them"),
        ({"num_logits": 6}, "num_logits must not exceed num_embeddings"),
        ({"num_embeddings": 0}, "num_embeddings must be an integer of at least 1, got 0"),
        ({"variant": "both"}, "variant must be one of ph, ps; got 'both'"),
        ({"combine": "mean"}, "combine must be one of add, ew_multiply"),
        ({"norm": "batch"}, "norm must be one of rms, layer"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0"),
        ({"swap_strands": True}, 'swap_strands needs variant="ps"'),
        ({"d_model": "118"}, "d_model must be an integer of at least 1, got '118'"),
        ({"dt_rank": "full"}, "dt_rank must be an integer of at least 1, got 'full'"),
        ({"d_state": 0}, "d_state must be an integer of at least 1"),
        ({"dt_rank": 0}, "dt_rank must be an integer of at least 1"),
        ({"dt_min": 0.2}, "0 < dt_min <= dt_max"),
        ({"backend": "tpu"}, "backend must be one of auto, reference, cpu, triton, mamba_ssm"),
    ],
)
def test_bad_arguments(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Caduceus(**{"d_model": 8, "n_layer": 1, "num_embeddings": 5, "num_logits": 4, **options})
