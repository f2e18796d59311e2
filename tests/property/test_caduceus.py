"""Caduceus: symmetry, an independent two-pass twin, padding."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from seqdiff.backbones import Backbone, Caduceus
from seqdiff.backbones.layers import MAX_SIGMA
from seqdiff.backbones.mamba import BiMamba, ScalarSSM, SelectiveSSM
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.schedules import Linear
from seqdiff.types import Inputs

DNA = (3, 2, 1, 0, 4)
EXACT = {"atol": 1e-10, "rtol": 1e-10}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Thousands of tiny operations, for which a second thread only costs time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(seed: int = 0, **options: object) -> Caduceus:
    torch.manual_seed(seed)
    sizes = {"num_embeddings": 5, "num_logits": 4, "d_state": 3}
    model = Caduceus(10, 3, **{**sizes, "backend": "reference", **options}).double()
    with torch.no_grad():  # values that break the symmetry of the initial ones
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
        "mixer": st.sampled_from(["mamba", "ssd"]),
    }
)


# Reverse-complement equivariance


def asymmetry(model: Caduceus, tokens: torch.Tensor, sigma: torch.Tensor | None = None) -> float:
    complement = torch.tensor(DNA)
    logits = model(Inputs(tokens, sigma=sigma))
    turned = model(Inputs(complement[tokens.flip(1)], sigma=sigma))
    difference = turned - logits.flip(1)[..., complement[:4]]
    return (difference.abs().max() / logits.abs().max()).item()


@settings(max_examples=40)
@given(options=VARIANTS, swap=st.booleans(), depth=st.integers(1, 3), length=st.integers(1, 9))
def test_ps_is_equivariant(options: dict[str, object], swap: bool, depth: int, length: int) -> None:
    model = build(variant="ps", complement=DNA, swap_strands=swap, **options)
    del model.layers[depth:]
    assert asymmetry(model, draw_tokens(2, length)) < 1e-10


def test_ps_without_the_complement_is_not_equivariant() -> None:
    model = build(variant="ps", complement=range(5))
    assert asymmetry(model, draw_tokens(2, 9)) > 1e-2


def changed_at(tokens: torch.Tensor, place: int) -> torch.Tensor:
    changed = tokens.clone()
    changed[:, place] = (tokens[:, place] + 1) % 5
    return changed


MIXERS = pytest.mark.parametrize("mixer", ["mamba", "ssd"])


@MIXERS
def test_ph_is_not_equivariant_until_both_strands_are_averaged(mixer: str) -> None:
    model, tokens, complement = build(mixer=mixer), draw_tokens(2, 9), torch.tensor(DNA)
    assert asymmetry(model, tokens) > 1e-2

    def averaged(inputs: Inputs) -> torch.Tensor:
        other = Inputs(complement[inputs.tokens.flip(1)])
        turned = model(other).softmax(-1).flip(1)[..., complement[:4]]
        return (model(inputs).softmax(-1) + turned) / 2

    turned = averaged(Inputs(complement[tokens.flip(1)]))
    wanted = averaged(Inputs(tokens)).flip(1)[..., complement[:4]]
    torch.testing.assert_close(turned, wanted, **EXACT)


@MIXERS
@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_every_position_depends_on_every_other(mixer: str, variant: str) -> None:
    model = build(mixer=mixer, variant=variant, complement=DNA, backend="auto")
    tokens = draw_tokens(1, 70)
    logits = model(Inputs(tokens))
    for place in (0, 1, 34, 69):
        changed = model(Inputs(changed_at(tokens, place)))
        assert (changed - logits).abs().amax(-1).min() > 0, place
    for way, lost in (("rev", slice(0, 34)), ("fwd", slice(35, 70))):  # broken twin: one direction
        one = build(mixer=mixer, complement=DNA, backend="auto")
        with torch.no_grad():
            for block in one.layers:
                ssm = getattr(block.mixer, way)
                for parameter in (ssm.D, ssm.conv_weight, ssm.conv_bias):
                    parameter.zero_()
        difference = one(Inputs(changed_at(tokens, 34))) - one(Inputs(tokens))
        assert not difference[0, lost].any()


# An independent twin: explicit reversal, two strands, a loop over positions


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


def naive_mamba2(
    ssm: ScalarSSM, in_proj: torch.nn.Linear, out_proj: torch.nn.Linear, h: torch.Tensor
) -> torch.Tensor:
    channels, heads, states = len(ssm.norm.weight), len(ssm.A_log), ssm.states
    sizes = (channels, channels + 2 * states, heads)
    z, xBC, dt = in_proj(h).split(sizes, dim=-1)
    width = ssm.conv_weight.shape[1]
    padded = torch.cat((torch.zeros_like(xBC[:, :1]).expand(-1, width - 1, -1), xBC), dim=1)
    state = torch.zeros(len(h), heads, channels // heads, states, dtype=h.dtype)
    outputs = []
    for place in range(h.shape[1]):
        u = (padded[:, place : place + width] * ssm.conv_weight.T).sum(1)
        u = F.silu(u if ssm.conv_bias is None else u + ssm.conv_bias)
        x, b, c = u.split((channels, states, states), dim=-1)
        x = x.unflatten(-1, (heads, -1))
        step = F.softplus(dt[:, place] + ssm.dt_bias)
        drive = torch.einsum("bh,bhp,bn->bhpn", step, x, b)
        state = torch.exp(-step * ssm.A_log.exp())[..., None, None] * state + drive
        y = torch.einsum("bhpn,bn->bhp", state, c) + ssm.D[:, None] * x
        gated = y.flatten(1) * F.silu(z[:, place])
        scale = (gated.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        outputs.append(out_proj(ssm.norm.weight * gated / scale))
    return torch.stack(outputs, dim=1)


def naive_mixer(mixer: BiMamba, combine: str, h: torch.Tensor) -> torch.Tensor:
    in_rev, out_rev = mixer.in_proj_rev or mixer.in_proj, mixer.out_proj_rev or mixer.out_proj
    direction = naive_mamba if isinstance(mixer.fwd, SelectiveSSM) else naive_mamba2
    forward = direction(mixer.fwd, mixer.in_proj, mixer.out_proj, h)
    backward = direction(mixer.rev, in_rev, out_rev, h.flip(1)).flip(1)
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


@settings(max_examples=30)
@given(options=VARIANTS, depth=st.integers(1, 3), length=st.integers(1, 8))
def test_ph_equals_two_explicit_passes(options: dict[str, object], depth: int, length: int) -> None:
    model = build(**options)
    del model.layers[depth:]
    tokens = draw_tokens(2, length)
    torch.testing.assert_close(model(Inputs(tokens)), naive_ph(model, tokens), **EXACT)


@settings(max_examples=30)
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


@MIXERS
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("combine", ["add", "ew_multiply"])
def test_a_mirrored_mixer_is_the_mixer_between_flips(mixer: str, tied: bool, combine: str) -> None:
    module = build(mixer=mixer, tied=tied, combine=combine, bias=True).layers[0].mixer
    x = torch.randn(2, 7, 10, dtype=torch.float64)
    mirrored = module(x.flip(1, 2), mirrored=True).flip(1, 2)
    torch.testing.assert_close(mirrored, module(x), **EXACT)


@MIXERS
@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_the_chosen_kernels_equal_the_reference(mixer: str, variant: str) -> None:
    model = build(mixer=mixer, variant=variant, complement=DNA)
    tokens = draw_tokens(3, 70)
    fast = build(mixer=mixer, variant=variant, complement=DNA, backend="auto")
    logits, wanted = fast(Inputs(tokens)), model(Inputs(tokens))
    torch.testing.assert_close(logits, wanted, **EXACT)
    weights = torch.randn_like(wanted)
    (logits * weights).sum().backward()
    (wanted * weights).sum().backward()
    for ours, theirs in zip(fast.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-9, rtol=1e-9)


# Noise level


SIGMA = torch.tensor([0.1, 2.0], dtype=torch.float64)


class OneStrand(Caduceus):
    """Broken twin: only the first strand receives the noise level."""

    def body(self, h, inputs, layer=None):
        first, second = h.chunk(2)
        h = torch.cat((first, second - self.sigma_map(inputs.sigma)[:, None]))
        return super().body(h, inputs, layer)


@settings(max_examples=15, deadline=None)
@given(swap=st.booleans(), depth=st.integers(1, 3), length=st.integers(1, 9))
def test_ps_with_a_noise_level_is_equivariant(swap: bool, depth: int, length: int) -> None:
    model = build(variant="ps", complement=DNA, swap_strands=swap, time_conditioned=True)
    del model.layers[depth:]
    assert asymmetry(model, draw_tokens(2, length), SIGMA) < 1e-10
    model.__class__ = OneStrand
    assert asymmetry(model, draw_tokens(2, length), SIGMA) > 1e-3


@pytest.mark.parametrize("variant", ["ph", "ps"])
def test_a_noise_level_acts_on_its_own_row(variant: str) -> None:
    options = {"variant": variant, "complement": DNA, "num_classes": 2}
    model, tokens = build(time_conditioned=True, **options), draw_tokens(2, 7)
    label = torch.tensor([1, 0])
    inputs = Inputs(tokens, sigma=SIGMA, label=label)
    together = model(inputs)
    for row in range(2):
        alone = model(inputs.take(slice(row, row + 1)))
        torch.testing.assert_close(together[row : row + 1], alone, **EXACT)
    other = model(Inputs(tokens, sigma=SIGMA.flip(0), label=label))
    assert (other - together).abs().amax(dim=(1, 2)).min() > 1e-2
    torch.testing.assert_close(
        model(Inputs(tokens, sigma=torch.full((2,), torch.inf, dtype=torch.float64), label=label)),
        model(Inputs(tokens, sigma=torch.full((2,), MAX_SIGMA, dtype=torch.float64), label=label)),
    )
    clean = Inputs(tokens, sigma=torch.zeros(2, dtype=torch.float64), label=label)
    assert torch.equal(model.hidden(Inputs(tokens, label=label)), model.hidden(clean))
    added = model.sigma_map(SIGMA) + model.label_embedding.table.weight[label + 1]
    wanted = model.embedding.weight[tokens] + added[:, None]
    torch.testing.assert_close(model.body(model.embed(inputs), inputs, 0)[:2], wanted, **EXACT)


def test_a_network_that_is_not_time_conditioned_ignores_the_noise_level() -> None:
    model, tokens = build(), draw_tokens(2, 7)
    assert torch.equal(model(Inputs(tokens, sigma=SIGMA)), model(Inputs(tokens)))


def test_time_conditioning_leaves_the_other_weights_alone() -> None:
    options = {"num_embeddings": 5, "num_logits": 4, "num_classes": 2}
    states = []
    for timed in (False, True):
        torch.manual_seed(3)
        states.append(Caduceus(8, 2, **options, time_conditioned=timed).state_dict())
    plain, timed = states
    assert all(name.startswith("sigma_map.") for name in timed.keys() - plain.keys())
    assert len(timed) == len(plain) + 4
    assert all(torch.equal(timed[name], weight) for name, weight in plain.items())


def test_the_noise_level_of_a_denoiser_is_that_of_its_schedule(tmp_path: Path) -> None:
    model, tokens = build(time_conditioned=True), draw_tokens(2, 7)
    t = torch.tensor([0.3, 0.9], dtype=torch.float64)
    sigma = -Linear().alpha(t).log()
    found = Denoiser(model, Absorbing(4, Linear())).log_probs(Inputs(tokens, t))
    wanted = model(Inputs(tokens, sigma=sigma)).log_softmax(-1)
    masked = tokens == 4
    torch.testing.assert_close(found[masked], wanted[masked], **EXACT)
    again = Caduceus.of(model.config, backend="reference").double()
    again.load_state_dict(model.state_dict())
    assert again.config == model.config and again.time_conditioned
    assert torch.equal(again(Inputs(tokens, sigma=sigma)), model(Inputs(tokens, sigma=sigma)))
    with pytest.raises(ValueError, match=r"^Caduceus\.sigma must be given to a time-conditioned"):
        model(Inputs(tokens))
    with pytest.raises(ValueError, match=r"^Caduceus\.to_hub must be given a time-free network"):
        model.to_hub(tmp_path)
    assert not list(tmp_path.iterdir())


# The base class, padding


def test_it_is_a_time_free_backbone() -> None:
    model, tokens = build(), draw_tokens(2, 5)
    assert isinstance(model, Backbone)
    assert model(Inputs(tokens)).shape == (2, 5, 4)
    assert torch.equal(model(Inputs(tokens, t=torch.rand(2))), model(Inputs(tokens)))


@settings(max_examples=30)
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
