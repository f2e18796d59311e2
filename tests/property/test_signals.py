"""Measured values as conditions: their embedding, every network, dropout and statistics."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from seqdiff.backbones import (
    AutoregressiveMamba,
    AutoregressiveTransformer,
    Backbone,
    BlockMamba,
    Caduceus,
    PublishedTransformer,
    Transformer,
    layers,
)
from seqdiff.backbones.caduceus import block_diffusion as state_cache
from seqdiff.backbones.layers import SignalEmbedding, positions_of
from seqdiff.backbones.transformer import block_diffusion, cache, network
from seqdiff.data import SequenceDataset, dataset, signal_statistics
from seqdiff.denoiser import Denoiser, GaussianDenoiser
from seqdiff.denoiser.gaussian import NoisyEmbeddings
from seqdiff.process import Absorbing, Blockwise, Gaussian, LeftToRight
from seqdiff.rng import CounterNoise
from seqdiff.training import ConditionDropout
from seqdiff.types import NO_LABEL, Batch, Inputs
from tests.gaps import norm_gap
from tests.property.test_transformer_cache import generated, recomputed

K, S, B, L = 4, 2, 3, 9
DNA = (3, 2, 1, 0, 4)
EXACT, FELT = 1e-10, 1e-3  # in float64: equal up to rounding, and an effect
NAN = torch.nan
MEAN, STD = torch.tensor([3.0, -40.0]), torch.tensor([2.0, 0.5])
SIZES = {"num_embeddings": K + 1, "num_logits": K}
MAMBA = {**SIZES, "d_state": 3, "backend": "reference"}
TRANSFORMER = {**SIZES, "max_length": 32}


def settle(model: Backbone) -> Backbone:
    """Float64, weights that break the symmetry of initial ones, and statistics of its own."""
    model = model.double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    if model.signal_embedding is not None and len(model.signal_embedding.mean) == S:
        model.signal_embedding.standardise_by(MEAN, STD, MEAN - STD, MEAN + STD)
    return model


def caduceus(variant: str, **options: object) -> Backbone:
    return Caduceus(10, 3, **{**MAMBA, "variant": variant, "complement": DNA, **options})


KINDS: dict[str, Callable[..., Backbone]] = {
    "caduceus-ph": lambda **o: caduceus("ph", **o),
    "caduceus-ps": lambda **o: caduceus("ps", **o),
    "caduceus-ps-swapped": lambda **o: caduceus("ps", swap_strands=True, **o),
    "block-mamba": lambda **o: BlockMamba(10, 2, **MAMBA, **o),
    "causal-mamba": lambda **o: AutoregressiveMamba(10, 2, **MAMBA, **o),
    "transformer": lambda **o: Transformer(12, 2, 2, cond_dim=6, **{**TRANSFORMER, **o}),
    "causal-transformer": lambda **o: AutoregressiveTransformer(12, 2, 2, **TRANSFORMER, **o),
}
every = pytest.mark.parametrize("kind", KINDS)
causal = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind.startswith("causal")])
blocks = pytest.mark.parametrize("kind", ["block-mamba", "transformer"])


def build(kind: str, num_signals: int | None = S, **options: object) -> Backbone:
    torch.manual_seed(0)
    return settle(KINDS[kind](num_signals=num_signals, **options))


def draw(*shape: int, seed: int = 1) -> Tensor:
    return torch.randint(K + 1, shape, generator=torch.Generator().manual_seed(seed))


def values(*shape: int, seed: int = 2) -> Tensor:
    """Values in the range of the training data, some of them unknown."""
    generator = torch.Generator().manual_seed(seed)
    found = MEAN + STD * torch.randn(*shape, S, generator=generator)
    return found.masked_fill(torch.rand(found.shape, generator=generator) < 0.2, NAN)


TOKENS, VECTOR, TRACK = draw(B, L), values(B), values(B, L)
VECTOR[0, 1] = NAN
CONDITIONS = {"vector": VECTOR, "track": TRACK}
either = pytest.mark.parametrize("shape", CONDITIONS)


def part(signal: Tensor, places: slice) -> Tensor:
    return signal[:, places] if signal.dim() == 3 else signal


def gap(found: Tensor, wanted: Tensor) -> float:
    assert found.shape == wanted.shape
    return float((found - wanted).detach().abs().max())


@pytest.fixture(autouse=True)
def _without_gradients() -> None:
    with torch.no_grad():
        yield


# The embedding


def embedding(num_signals: int = S, width: int = 5) -> SignalEmbedding:
    torch.manual_seed(4)
    found = SignalEmbedding(num_signals, width).double()
    nn.init.normal_(found.out.weight)
    return found


def test_the_embedding_by_hand() -> None:
    """Features of each value: known, z, sines, cosines; all 0 where it is unknown."""
    found = embedding()
    found.standardise_by(MEAN, STD, MEAN, MEAN)
    rows = []
    for row in VECTOR.tolist():
        features: list[float] = []
        for value, mean, std in zip(row, MEAN.tolist(), STD.tolist(), strict=True):
            z, waves = (value - mean) / std, [0.25, 0.5, 1, 2, 4]
            sines = [math.sin(w * z) for w in waves] + [math.cos(w * z) for w in waves]
            features += [0.0] * 12 if math.isnan(value) else [1.0, z, *sines]
        rows.append(features)
    hidden = nn.functional.silu(found.hidden(torch.tensor(rows, dtype=torch.float64)))
    wanted = found.out(hidden)[:, None]
    assert VECTOR.isnan().any() and not VECTOR.isnan().all()
    assert found(VECTOR, B).dtype == torch.float64 and gap(found(VECTOR, B), wanted) < 1e-6
    found.standardise_by(MEAN, STD + 1, MEAN, MEAN)
    assert gap(found(VECTOR, B), wanted) > FELT, "the twin of another scale"


def test_values_are_standardised_by_the_training_data() -> None:
    found, plain = embedding(), embedding()
    found.standardise_by(MEAN, STD, MEAN - 1, MEAN + 1)
    for signal in (VECTOR, TRACK):
        wanted = plain((signal.double() - MEAN) / STD, B)
        assert gap(found(signal, B), wanted) < EXACT
        assert gap(plain(signal, B), wanted) > FELT, "the twin without statistics"
    assert found.range.tolist() == [(MEAN - 1).tolist(), (MEAN + 1).tolist()]
    assert set(found.state_dict()) >= {"mean", "std", "range"}


def test_a_vector_and_a_track_have_one_meaning() -> None:
    found = embedding()
    assert found(VECTOR, B).shape == (B, 1, 5) and found(TRACK, B).shape == (B, L, 5)
    constant = VECTOR[:, None].expand(-1, L, -1)
    assert gap(found(constant, B), found(VECTOR, B).expand(-1, L, -1)) < EXACT
    assert gap(found(TRACK, B)[:, 2:3], found(TRACK[:, 2], B)) < EXACT


def test_unknown_values_are_no_value_of_their_own() -> None:
    found = embedding()
    nothing = found(None, B)
    assert torch.equal(nothing, found(torch.full((B, S), NAN), B))
    half = torch.tensor([[1.0, NAN]])
    for other in ([1.0, 0.0], [NAN, 1.0], [NAN, NAN]):
        assert gap(found(half, 1), found(torch.tensor([other]), 1)) > FELT
    with torch.enable_grad():
        signal = torch.tensor([[1.0, NAN]], requires_grad=True)
        found(signal, 1).sum().backward()
        assert signal.grad is not None and signal.grad.isfinite().all()
        assert all(weight.grad.isfinite().all() for weight in found.parameters())


def test_nearby_values_have_nearby_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundredth of a standard deviation moves less than a tenth of what a whole one moves."""

    def ratio() -> float:
        line = torch.linspace(-2, 2, 41).double()[:, None]
        found = embedding(1, 16)
        here, near, far = (found(line + step, 41) for step in (0.0, 0.01, 1.0))
        return float((near - here).norm() / (far - here).norm())

    assert ratio() < 0.1
    monkeypatch.setattr(layers, "_FREQUENCIES", tuple(200.0 * w for w in layers._FREQUENCIES))
    assert ratio() > 0.5, "the twin of high frequencies"


# Every network


@every
@pytest.mark.parametrize("padded", [False, True])
def test_a_vector_is_a_constant_track(kind: str, padded: bool) -> None:
    model = build(kind)
    padding = torch.arange(L) >= torch.tensor([[L], [6], [4]]) if padded else None
    real = slice(None) if padding is None else ~padding
    constant = VECTOR[:, None].expand(-1, L, -1)
    vector = model(Inputs(TOKENS, signal=VECTOR, padding=padding))[real]
    assert gap(model(Inputs(TOKENS, signal=constant, padding=padding))[real], vector) < EXACT
    other = model(Inputs(TOKENS, signal=VECTOR + STD, padding=padding))[real]
    assert gap(other, vector) > FELT, "the signal matters"
    track = model(Inputs(TOKENS, signal=TRACK, padding=padding))[real]
    assert gap(track, vector) > FELT, "and its position too"


@every
def test_no_signal_is_an_unknown_one(kind: str) -> None:
    model = build(kind)
    nothing = model(Inputs(TOKENS))
    assert torch.equal(nothing, model(Inputs(TOKENS, signal=torch.full((B, S), NAN))))
    assert gap(nothing, model(Inputs(TOKENS, signal=torch.full((B, L, S), NAN)))) < EXACT
    assert gap(nothing, model(Inputs(TOKENS, signal=MEAN.expand(B, -1)))) > FELT


@every
@either
def test_rows_have_signals_of_their_own(kind: str, shape: str) -> None:
    model, signal = build(kind), CONDITIONS[shape]
    together = model(Inputs(TOKENS, signal=signal))
    for row in range(B):
        alone = model(Inputs(TOKENS[row : row + 1], signal=signal[row : row + 1]))
        assert gap(together[row : row + 1], alone) < EXACT
    assert gap(together, model(Inputs(TOKENS, signal=signal.roll(1, dims=0)))) > FELT
    where = torch.rand(TOKENS.shape, generator=torch.Generator().manual_seed(0)) < 0.5
    assert gap(model(Inputs(TOKENS, signal=signal), where), together[where]) < EXACT


@every
@either
def test_padding_changes_nothing(kind: str, shape: str) -> None:
    """Also in the packed layout of transformers, and whatever the track holds at padding."""
    model, signal = build(kind), CONDITIONS[shape]
    lengths = torch.tensor([6, L, 4])
    padding = torch.arange(L) >= lengths[:, None]
    padded = model(Inputs(TOKENS, signal=signal, padding=padding))
    for row, length in enumerate(lengths.tolist()):
        own = part(signal[row : row + 1], slice(length))
        bare = model(Inputs(TOKENS[row : row + 1, :length], signal=own))
        assert gap(padded[row : row + 1, :length], bare) < EXACT
    if shape == "track":
        elsewhere = torch.where(padding[..., None], signal + 7, signal)
        again = model(Inputs(TOKENS, signal=elsewhere, padding=padding))
        assert gap(again[~padding], padded[~padding]) < EXACT
        early = model(Inputs(TOKENS, signal=signal.roll(1, dims=1), padding=padding))
        assert gap(early[~padding], padded[~padding]) > FELT, "the twin that is off by one"


@pytest.mark.parametrize("kind", ["caduceus-ps", "caduceus-ps-swapped"])
def test_both_strands_have_one_distribution(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """p(x | vector) = p(RC x | vector), and p(x | track) = p(RC x | reversed track)."""
    model, complement = build(kind), torch.tensor(DNA)
    back = complement[TOKENS.flip(1)]
    padding = torch.zeros(TOKENS.shape, dtype=torch.bool)
    padding[1, 6:] = padding[2, :2] = True

    def off(straight: Tensor, turned: Tensor, padding: Tensor | None = None) -> float:
        other = None if padding is None else padding.flip(1)
        logits = model(Inputs(TOKENS, signal=straight, padding=padding))
        mirrored = model(Inputs(back, signal=turned, padding=other))
        gaps = (mirrored.flip(1)[..., complement[:K]] - logits).abs().amax(dim=-1)
        return float((gaps if padding is None else gaps[~padding]).max())

    for pads in (None, padding):
        assert off(VECTOR, VECTOR, pads) < EXACT
        assert off(TRACK, TRACK.flip(1), pads) < EXACT
        assert off(TRACK, TRACK, pads) > 1e-2
    states = model.hidden(Inputs(TOKENS, signal=TRACK))
    turned = model.hidden(Inputs(back, signal=TRACK.flip(1)))
    assert gap(turned.flip(1).roll(10, dims=-1), states) < EXACT

    class Forward(SignalEmbedding):
        """Broken twin: the other strand reads the track from its own start."""

        def forward(self, signal: Tensor | None, rows: int) -> Tensor:
            found = super().forward(signal, rows)
            found.flip = lambda _dim: found  # type: ignore[method-assign]
            return found

    monkeypatch.setattr(model.signal_embedding, "__class__", Forward)
    assert off(TRACK, TRACK.flip(1)) > 1e-2
    assert off(VECTOR, VECTOR) < EXACT


@causal
def test_causal_networks_stay_causal(kind: str) -> None:
    """In their tokens, and in the track: a position is given the values up to its own."""
    model = build(kind)
    logits = model(Inputs(TOKENS, signal=TRACK))
    for place in range(L):
        changed, signal = TOKENS.clone(), torch.nan_to_num(TRACK)
        changed[:, place] = (changed[:, place] + 1) % K
        later = model(Inputs(changed, signal=TRACK))
        assert gap(later[:, : place + 1], logits[:, : place + 1]) < EXACT
        assert place == L - 1 or gap(later[:, place + 1 :], logits[:, place + 1 :]) > FELT
        base = model(Inputs(TOKENS, signal=signal))
        signal[:, place] += STD
        moved = model(Inputs(TOKENS, signal=signal))
        assert gap(moved[:, place:], base[:, place:]) > FELT
        assert not place or gap(moved[:, :place], base[:, :place]) < EXACT
    assert Denoiser(model, LeftToRight(K)).num_signals == S


@every
def test_gradients_reach_the_embedding_and_no_other_weight_depends_on_it(kind: str) -> None:
    with torch.enable_grad():
        model = build(kind)
        model(Inputs(TOKENS, signal=TRACK)).square().sum().backward()
        for name, weight in model.signal_embedding.named_parameters():
            assert weight.grad.abs().max() > 0, name
    torch.manual_seed(3)
    plain = KINDS[kind]().state_dict()
    torch.manual_seed(3)
    signalled = KINDS[kind](num_signals=S).state_dict()
    own = signalled.keys() - plain.keys()
    assert own and all(name.startswith("signal_map.") for name in own)
    assert all(torch.equal(signalled[name], weight) for name, weight in plain.items())


@every
def test_labels_and_signals_together(kind: str) -> None:
    if kind == "causal-transformer":
        pytest.skip("has no classes")
    model = build(kind, num_classes=3)
    label = torch.tensor([0, NO_LABEL, 2])
    both = model(Inputs(TOKENS, label=label, signal=VECTOR))
    for other in (Inputs(TOKENS, label=label), Inputs(TOKENS, signal=VECTOR)):
        assert gap(model(other), both) > FELT
    assert gap(model(Inputs(TOKENS, label=label)), model(Inputs(TOKENS, signal=VECTOR))) > FELT


def test_gaussian_diffusion_is_given_signals() -> None:
    model = build("caduceus-ph", time_conditioned=True)
    denoiser = GaussianDenoiser(model, Gaussian(K, 6, self_conditioning=True)).double().eval()
    batch = Batch(TOKENS % K, TOKENS >= 0, torch.arange(B), signal=VECTOR)
    noise = torch.randn(B, L, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    noisy = denoiser.corrupt(batch, torch.tensor([-1.0, 0.0, 2.0]).double(), noise)
    assert isinstance(noisy, NoisyEmbeddings) and noisy.signal is VECTOR
    found = denoiser(noisy)
    assert gap(denoiser(replace(noisy, signal=VECTOR[:, None].expand(-1, L, -1))), found) < EXACT
    assert gap(denoiser(replace(noisy, signal=None)), found) > FELT
    given = denoiser.given_signal(VECTOR[0].tolist())
    assert gap(given(replace(noisy, signal=None))[:1], found[:1]) < 1e-6
    with pytest.raises(ValueError, match=r"^Caduceus\.signal must have shape \(3, 2\), or"):
        denoiser(replace(noisy, signal=VECTOR[:, :1]))


# Blocks


def by_blocks(model: Backbone, signal: Tensor, size: int, label: Tensor | None = None) -> float:
    """How far the cache is off the logits of whole rows."""
    x_t, x0 = draw(B, L), draw(B, L, seed=5) % K
    found = generated(model.block_cache(B, size, label=label, signal=signal), x_t, x0, size)
    inputs = Inputs(x_t, label=label, signal=signal)
    return gap(found, model.block_logits(inputs, x0, size))


@blocks
@either
@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_the_cache_gives_the_logits_of_whole_rows(
    kind: str, shape: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, signal = build(kind, num_classes=2), CONDITIONS[shape]
    assert by_blocks(model, signal, size) < EXACT
    assert by_blocks(model, signal, size, torch.tensor([0, 1, NO_LABEL])) < EXACT
    for module in (state_cache, cache):  # broken twin: every block is given the first values
        monkeypatch.setattr(
            module, "positions_of", lambda signal, start, end: positions_of(signal, 0, end - start)
        )
    twin = by_blocks(model, signal, size)
    assert (twin > FELT) == (shape == "track" and size < L) or (kind, size) == ("block-mamba", 9)


@either
@pytest.mark.parametrize(("size", "window"), [(1, 3), (4, 0), (4, 8), (3, None)])
def test_past_the_context_a_block_is_given_its_own_values(
    shape: str, size: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows twice as long as the context of a transformer, with blocks appended at once."""
    model, length = build("transformer"), 64
    signal = VECTOR if shape == "vector" else values(B, length)
    x_t, x0 = draw(B, length), draw(B, length, seed=5) % K
    seen = (32 - size) // size * size if window is None else window
    wanted = recomputed(model, x_t, x0, size, seen, signal=signal)
    found = generated(model.block_cache(B, size, window=window, signal=signal), x_t, x0, size)
    assert gap(found, wanted) < EXACT
    monkeypatch.setattr(cache, "PIECE", 16)
    grown = model.block_cache(B, size, window=window, signal=signal)
    first = 44 // size * size
    grown.append(x0[:, :first])
    place = slice(first, first + size)
    assert gap(grown.logits(x_t[:, place]), wanted[:, place]) < EXACT


@blocks
@either
def test_rows_that_leave_a_cache_keep_their_signal(kind: str, shape: str) -> None:
    model, signal, size = build(kind), CONDITIONS[shape], 3
    x_t, x0 = draw(B, L), draw(B, L, seed=5) % K
    cached = model.block_cache(B, size, signal=signal)
    cached.append(x0[:, :size])
    rows = torch.tensor([2, 0, 0, 1])
    taken = cached.take(rows).take(torch.tensor([0, 2]))
    rows = rows[[0, 2]]
    taken.append(x0[rows, size : 2 * size])
    wanted = model.block_logits(Inputs(x_t[rows], signal=signal[rows]), x0[rows], size)
    assert gap(taken.logits(x_t[rows, 2 * size :]), wanted[:, 2 * size :]) < EXACT
    twin = model.block_logits(Inputs(x_t[rows], signal=signal[:2]), x0[rows], size)
    assert gap(twin, wanted) > FELT
    assert cached.length == size, "the first cache has not moved"


@blocks
def test_a_track_that_ends_too_early_raises(kind: str) -> None:
    model = build(kind)
    cached = model.block_cache(B, 3, signal=TRACK[:, :7])
    cached.append(draw(B, 6) % K)
    with pytest.raises(ValueError, match=r"^Backbone\.signal must have values for the 9 positions"):
        cached.logits(draw(B, 3))
    with pytest.raises(ValueError, match=r"\.signal must be one for each of batch_size = 3 rows"):
        model.block_cache(B, 3, signal=VECTOR[:2])
    with pytest.raises(ValueError, match=r"\.signal must have shape \(3, 2\), or"):
        model.block_cache(B, 3, signal=VECTOR[:, :1])
    with pytest.raises(ValueError, match=r"\.signal must be None for a network without signals"):
        build(kind, None).block_cache(B, 3, signal=VECTOR)


@blocks
@either
def test_block_logits_with_padding(kind: str, shape: str) -> None:
    model, signal, size = build(kind), CONDITIONS[shape], 2
    x_t, x0 = draw(B, L), draw(B, L, seed=5) % K
    lengths = torch.tensor([6, L, 3])
    padding = torch.arange(L) >= lengths[:, None]
    found = model.block_logits(Inputs(x_t, signal=signal, padding=padding), x0, size)
    for row, length in enumerate(lengths.tolist()):
        one = slice(row, row + 1)
        inputs = Inputs(x_t[one, :length], signal=part(signal[one], slice(length)))
        bare = model.block_logits(inputs, x0[one, :length], size)
        assert gap(found[one, :length], bare) < EXACT


@either
@pytest.mark.parametrize("padded", [False, True])
def test_all_passes_of_the_transformer_agree(
    shape: str, padded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, length = build("transformer", num_classes=2, max_length=160), 150
    signal = VECTOR if shape == "vector" else values(B, length)
    x_t, x0 = draw(B, length), draw(B, length, seed=5) % K
    padding = torch.arange(length) >= torch.tensor([[length], [90], [3]]) if padded else None
    real = torch.ones_like(x_t, dtype=torch.bool) if padding is None else ~padding
    inputs = Inputs(x_t, signal=signal, padding=padding, label=torch.tensor([0, 1, NO_LABEL]))

    def logits(way: block_diffusion.Pass, size: int, given: Inputs = inputs) -> Tensor:
        monkeypatch.setattr(network, "choose_pass", lambda _pair: way)
        return model.block_logits(given, x0, size)[real]

    for size in (1, 16, 70, 150):
        wanted = logits(block_diffusion.dense_pass, size)
        assert gap(logits(block_diffusion.structured_pass, size), wanted) < EXACT
        moved = replace(inputs, signal=signal.roll(1, dims=-2))
        assert gap(logits(block_diffusion.structured_pass, size, moved), wanted) > FELT
    assert gap(logits(block_diffusion.plain_pass, 150), wanted) < EXACT
    assert gap(model(inputs)[real], wanted) < EXACT


FLEX = """
import torch
from seqdiff.backbones.transformer import block_diffusion, network
from seqdiff.types import Inputs
from tests.property.test_signals import B, EXACT, K, VECTOR, build, draw, gap, values

model, x_t, x0 = build("transformer"), draw(B, 30), draw(B, 30, seed=5) % K
padding = torch.arange(30) >= torch.tensor([[30], [20], [3]])
with torch.no_grad():
    for signal in (VECTOR, values(B, 30)):
        found = []
        for way in (block_diffusion.flex_pass, block_diffusion.dense_pass):
            network.choose_pass = lambda _pair, way=way: way
            inputs = Inputs(x_t, signal=signal, padding=padding)
            found.append(model.block_logits(inputs, x0, 4)[~padding])
        assert gap(*found) < EXACT
"""


@pytest.mark.slow
def test_flex_attention_agrees() -> None:
    """In a process of its own, without the shape checker, which it cannot trace."""
    import subprocess
    import sys

    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", FLEX], cwd=root, check=True)


# Denoisers that are given one signal for all rows


def test_a_given_signal_is_that_of_rows_without_one() -> None:
    denoiser = Denoiser(build("caduceus-ph"), Absorbing(K))
    given = denoiser.given_signal(VECTOR[1].tolist())
    wanted = denoiser(Inputs(TOKENS, signal=VECTOR[1].expand(B, -1)))
    assert torch.equal(given(Inputs(TOKENS)), wanted)
    own = denoiser(Inputs(TOKENS, signal=VECTOR))
    assert torch.equal(given(Inputs(TOKENS, signal=VECTOR)), own)
    assert gap(denoiser(Inputs(TOKENS)).exp(), wanted.exp()) > FELT
    for wrong in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError, match=r"^Denoiser\.values must be one for each of the netw"):
            denoiser.given_signal(wrong)
    with pytest.raises(ValueError, match="the network's no signals, got 1"):
        Denoiser(build("caduceus-ph", None), Absorbing(K)).given_signal([1.0])


@blocks
def test_a_model_of_blocks_starts_with_its_given_signal(kind: str) -> None:
    model = Denoiser(build(kind, num_classes=2), Blockwise(Absorbing(K), 3))
    given = model.given_signal(VECTOR[1].tolist()).given_label(1)
    x_t, everywhere = torch.full((B, 3), K), torch.ones((B, 3), dtype=torch.bool)
    label, signal = torch.ones(B, dtype=torch.int64), VECTOR[1].expand(B, -1)
    wanted = model.start(B, label=label, signal=signal).log_probs(x_t, everywhere)
    assert gap(given.start(B).log_probs(x_t, everywhere), wanted) < 1e-6
    assert gap(model.start(B).log_probs(x_t, everywhere), wanted) > FELT
    own = model.start(B, label=label, signal=TRACK).log_probs(x_t, everywhere)
    assert torch.equal(given.start(B, signal=TRACK).log_probs(x_t, everywhere), own)


# Refusals


@every
def test_signals_that_do_not_fit_raise(kind: str) -> None:
    model, plain = build(kind), build(kind, None)
    name = type(model).__name__
    with pytest.raises(ValueError, match=rf"^{name}\.signal must be None for a network without"):
        plain(Inputs(TOKENS, signal=VECTOR))
    assert plain.num_signals is None and plain.signal_embedding is None
    shapes = [(B, S + 1), (B + 1, S), (B, L - 1, S), (B, L, S, 1), (S,)]
    for shape in shapes:
        inputs = Inputs(TOKENS)
        inputs.signal = torch.zeros(shape)
        with pytest.raises(ValueError, match=rf"^{name}\.signal must have shape \(3, 2\), or \(3"):
            model(inputs)
    with pytest.raises(ValueError, match=r"\.num_signals must be an integer of at least 1, got 0"):
        KINDS[kind](num_signals=0)


@pytest.mark.parametrize("kind", ["caduceus-ph", "transformer"])
def test_published_formats_have_no_signals(kind: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"to_hub must be given a network without classes and sig"):
        build(kind).to_hub(tmp_path / "hub")
    assert not (tmp_path / "hub").exists()


def test_a_published_shape_with_signals_builds_the_same_network() -> None:
    model = build("transformer")
    twin = PublishedTransformer("nowhere", model.config, **SIZES)
    assert twin.published_shape == {**vars(model.config)}
    assert twin.num_signals == S
    twin.double().eval().load_state_dict(model.state_dict())
    inputs = Inputs(TOKENS, signal=VECTOR)
    assert torch.equal(twin(inputs), model(inputs))


# Dropout


def batch_of(index: Tensor, signal: Tensor, *, labelled: bool = True) -> Batch:
    tokens = torch.zeros((len(index), 2 if signal.dim() == 2 else signal.shape[1]))
    label = index % 5 if labelled else None
    return Batch(tokens.long(), tokens == 0, index, label, signal=signal)


ROWS = torch.arange(20_000)


def hidden_in(signals: int, rate: float, index: Tensor = ROWS, seed: int = 7) -> Tensor:
    signal = torch.ones(len(index), signals)
    found = ConditionDropout(signal=rate)(batch_of(index, signal), CounterNoise(seed)).signal
    assert found is not None and (found[~found.isnan()] == 1).all()
    return found.isnan()


def deviations(hits: Tensor, chance: float) -> float:
    """How many standard deviations the number of hits is off."""
    spread = math.sqrt(chance * (1 - chance) * len(hits))
    return abs(float(hits.sum()) - chance * len(hits)) / spread


def test_dropout_has_its_rate() -> None:
    """|z| <= 4.9 of 20,000 coins has a false-alarm rate of 1e-6 per test, eight tests here.

    Twins of rate 0.34 instead of 0.3, or of signals that are hidden one by one but never together,
    are at least 9 standard deviations off: power > 0.9999.
    """
    rate = 0.3
    assert deviations(hidden_in(1, rate)[:, 0], rate) < 4.9
    assert deviations(hidden_in(1, 0.34)[:, 0], rate) > 9
    several = hidden_in(3, rate)
    each, whole = 1 - (1 - rate) ** 2, rate + (1 - rate) * rate**3
    assert all(deviations(several[:, i], each) < 4.9 for i in range(3))
    assert deviations(several.all(dim=1), whole) < 4.9
    pair = rate + (1 - rate) * rate**2
    assert deviations(several[:, :2].all(dim=1), pair) < 4.9
    assert abs(rate**3 - whole) > (4.9 + 4.9) * math.sqrt(whole * (1 - whole) / len(ROWS))
    assert not hidden_in(3, 0.0).any() and hidden_in(3, 1.0).all()


def test_dropout_is_a_function_of_seed_and_index() -> None:
    whole = hidden_in(3, 0.3)
    parts = [hidden_in(3, 0.3, index) for index in ROWS.split(321)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(hidden_in(3, 0.3, ROWS.flip(0)), whole.flip(0))
    assert not torch.equal(hidden_in(3, 0.3, seed=8), whole)


def test_signals_and_labels_are_dropped_independently() -> None:
    """The chance of both is the product; a twin with one stream for both is 60 deviations off."""
    batch = batch_of(ROWS, torch.ones(len(ROWS), 1))
    both = ConditionDropout(0.3, 0.3)(batch, CounterNoise(7))
    assert both.label is not None and both.signal is not None
    label, signal = both.label == NO_LABEL, both.signal[:, 0].isnan()
    assert deviations(label & signal, 0.09) < 4.9
    assert deviations(label & label, 0.09) > 9, "the twin"
    alone = ConditionDropout(signal=0.3)(batch, CounterNoise(7))
    assert torch.equal(alone.signal.isnan(), both.signal.isnan())
    assert torch.equal(alone.label, batch.label)
    bare = ConditionDropout(0.3, 0.3)(replace(batch, label=None), CounterNoise(7))
    assert bare.label is None and torch.equal(bare.signal.isnan(), both.signal.isnan())


def test_tracks_are_dropped_as_a_whole() -> None:
    index = torch.arange(500)
    track = torch.randn(500, 6, 2, generator=torch.Generator().manual_seed(0))
    track[:, 2] = NAN
    found = ConditionDropout(signal=0.3)(batch_of(index, track), CounterNoise(7)).signal
    hidden = hidden_in(2, 0.3, index)
    wanted = torch.where(hidden[:, None], NAN, track)
    assert torch.equal(found.nan_to_num(9.0), wanted.nan_to_num(9.0))
    assert hidden.any() and not hidden.all()


def test_batches_without_conditions_are_left_alone() -> None:
    batch = replace(batch_of(ROWS[:4], torch.ones(4, 1), labelled=False), signal=None)
    assert ConditionDropout(0.5, 0.5)(batch, CounterNoise(0)) is batch
    batch = batch_of(ROWS[:4], torch.full((4, 1), NAN))
    assert ConditionDropout(0.5, 0.5)(batch, CounterNoise(0)).signal.isnan().all()
    assert batch.to("meta").signal.device.type == "meta"
    assert batch.take(ROWS[1:3]).signal.shape == (2, 1)


# Statistics


class Measured(SequenceDataset):
    def __init__(self, signal: np.ndarray, padding: np.ndarray | None = None) -> None:
        self.signal, self.pads = signal.astype(np.float32), padding

    def __len__(self) -> int:
        return len(self.signal)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("the statistics read no tokens")

    def signals(self, indices: np.ndarray) -> np.ndarray:
        return self.signal[indices]

    def padding(self, indices: np.ndarray) -> np.ndarray | None:
        return None if self.pads is None else self.pads[indices]


@pytest.mark.parametrize("chunk", [1, 7, 50, 1 << 20])
@pytest.mark.parametrize("shape", [(101, 2), (23, 5, 2)], ids=str)
def test_statistics_are_those_of_numpy(
    chunk: int, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In parts of any size, far from 0, with unknown values and parts without any."""
    monkeypatch.setattr(dataset, "_STATISTICS_VALUES", chunk)
    random = np.random.default_rng(0)
    signal = (random.normal(size=shape) * [1, 30] + [1e4, -2]).astype(np.float32)
    signal[random.random(shape) < 0.3] = np.nan
    signal[:12, ..., 0] = np.nan
    found = signal_statistics(Measured(signal), ["a", "b"])
    flat = signal.reshape(-1, 2).astype(np.float64)
    for ours, numpys in zip(found, (np.nanmean, np.nanstd, np.nanmin, np.nanmax), strict=True):
        np.testing.assert_allclose(ours, numpys(flat, axis=0), rtol=1e-10)
    zeros = np.nan_to_num(flat)
    assert not np.allclose(found.mean, zeros.mean(axis=0)), "the twin that counts unknown ones"


def test_values_at_padding_do_not_count() -> None:
    signal = np.random.default_rng(0).normal(size=(9, 5, 1)).astype(np.float32)
    padding = np.arange(5) >= np.arange(1, 10)[:, None]
    signal[padding] = 100
    found = signal_statistics(Measured(signal, padding), ["a"])
    np.testing.assert_allclose(found.mean, signal[~padding].mean(), rtol=1e-5)
    assert found.high[0] < 100
    whole = Measured(signal[:, 0], padding)  # values of whole rows have no padding
    assert signal_statistics(whole, ["a"]).high[0] == signal[:, 0].max()


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ([1.0, 1.0, np.nan], "must vary over the training rows, got the single value 1 of 'b';"),
        ([np.nan] * 3, "must vary over the training rows, got no value of 'b'; drop the signal"),
        ([1.0, np.inf, 2.0], "must be finite, got values from 1 to inf of 'b'; leave unknown"),
        ([2.0, np.nan, -np.inf], "must be finite, got values from -inf to 2 of 'b'; leave unk"),
        ([-2e9, 0.0, 1.0], "must be between -1e9 and 1e9, got values from -2e.09 to 1 of 'b'"),
        ([np.inf] * 3, "must be finite, got values from inf to inf of 'b'; leave unknown"),
    ],
)
def test_signals_without_statistics_raise(column: list[float], said: str) -> None:
    signal = np.column_stack((np.arange(3.0), column))
    with pytest.raises(ValueError, match=f"^data.signals {said}"), np.errstate(all="raise"):
        signal_statistics(Measured(signal), ["a", "b"])
    with pytest.raises(ValueError, match="got no value of 'a'"):
        signal_statistics(Measured(np.empty((0, 2))), ["a", "b"])


def test_low_precision_rounds_the_outputs_alone() -> None:
    """Under autocast, the features of values are computed in float32."""
    model = build("caduceus-ph").float()
    inputs = Inputs(TOKENS, signal=VECTOR)
    with torch.autocast("cpu", torch.bfloat16):
        low = model(inputs)
    assert norm_gap(low, model(inputs)) < 0.05
    assert norm_gap(model(Inputs(TOKENS)), model(inputs)) > 0.1
