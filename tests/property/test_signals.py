"""Signals: the embedding, every network, dropout, statistics, samplers and guidance."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from seqdiff.backbones import (
    AutoregressiveMamba,
    AutoregressiveTransformer,
    Backbone,
    BlockMamba,
    Caduceus,
    Transformer,
)
from seqdiff.backbones.layers import SignalEmbedding
from seqdiff.backbones.transformer import block_diffusion
from seqdiff.data import SequenceDataset, signal_statistics
from seqdiff.data import dataset as dataset_module
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing, Uniform
from seqdiff.rng import CounterNoise
from seqdiff.samplers import (
    BlockClassifierFree,
    BlockSampler,
    ClassifierFree,
    Conjoined,
    FirstHittingSampler,
    Sampler,
    SemiAutoregressiveSampler,
    SMCSampler,
    named_samplers,
)
from seqdiff.samplers.grid import GridSampler
from seqdiff.training.conditions import ConditionDropout
from seqdiff.types import NO_LABEL, Batch, Inputs
from tests.block_worlds import block_denoiser
from tests.oracles import TableBackbone, masked_model

DNA = (3, 2, 1, 0, 4)
SIZES = {"num_embeddings": 5, "num_logits": 4}
SIGNALS = 2
ROWS, LENGTH = 3, 10
GENERATOR = torch.Generator().manual_seed(1)
TOKENS = torch.randint(5, (ROWS, LENGTH), generator=GENERATOR)
VECTOR = torch.tensor([[0.5, -1.0], [torch.nan, 2.0], [1.5, torch.nan]])
TRACK = torch.randn(ROWS, LENGTH, SIGNALS, generator=GENERATOR)

MAMBA = {"d_state": 3, "backend": "reference"}
TRANSFORMER = {"dropout": 0.0, "max_length": 32}
NETWORKS: dict[str, Callable[..., Backbone]] = {
    "ph": lambda n: Caduceus(8, 2, **SIZES, **MAMBA, num_signals=n),
    "ps": lambda n: Caduceus(8, 2, **SIZES, **MAMBA, num_signals=n, variant="ps", complement=DNA),
    "ps swapped": lambda n: Caduceus(
        8, 3, **SIZES, **MAMBA, num_signals=n, variant="ps", complement=DNA, swap_strands=True
    ),
    "blocks": lambda n: BlockMamba(8, 2, **SIZES, **MAMBA, num_signals=n),
    "mamba": lambda n: AutoregressiveMamba(8, 2, **SIZES, **MAMBA, num_signals=n),
    "transformer": lambda n: Transformer(8, 2, 2, **SIZES, **TRANSFORMER, num_signals=n),
    "causal": lambda n: AutoregressiveTransformer(8, 2, 2, **SIZES, **TRANSFORMER, num_signals=n),
}
each_network = pytest.mark.parametrize("name", NETWORKS)
each_block_network = pytest.mark.parametrize("name", ["blocks", "transformer"])
each_signal = pytest.mark.parametrize("signal", [VECTOR, TRACK], ids=["vector", "track"])


def build(name: str, signals: int | None = SIGNALS) -> Backbone:
    torch.manual_seed(0)
    network = NETWORKS[name](signals).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    if signals is not None:
        numbers = torch.tensor([[0.3, 0.1], [2.0, 0.5], [-3.0, -2.0], [4.0, 3.0]])
        network.signal_embedding.standardise_by(*numbers)
    return network


def close(first: Tensor, second: Tensor) -> bool:
    return bool((first - second).abs().max() < 1e-9)


# The embedding


def test_values_are_standardised_and_unknown_ones_have_features_of_their_own() -> None:
    torch.manual_seed(0)
    plain, scaled = SignalEmbedding(1, 6).double(), SignalEmbedding(1, 6).double()
    scaled.load_state_dict(plain.state_dict())
    scaled.standardise_by(*torch.tensor([[3.0], [2.0], [0.0], [9.0]]))
    values = torch.tensor([[-1.0], [0.0], [2.0]])
    assert close(scaled(3 + 2 * values, 3), plain(values, 3))
    unknown = plain(torch.full((3, 1), torch.nan), 3)
    assert torch.equal(unknown, plain(None, 3))
    assert not any(close(unknown[:1], plain(v[None], 1)) for v in values)
    assert scaled.range.tolist() == [[0.0], [9.0]]


def test_nearby_values_have_nearby_vectors() -> None:
    """The vector changes continuously, so its steps shrink with those of the value."""
    torch.manual_seed(0)
    embedding = SignalEmbedding(1, 16).double()

    def largest_step(count: int) -> float:
        with torch.no_grad():
            found = embedding(torch.linspace(-3, 3, count).double()[:, None], count)[:, 0]
        return float(found.diff(dim=0).norm(dim=-1).max())

    assert largest_step(601) < 0.2 * largest_step(61)


def test_each_signal_may_be_unknown_by_itself() -> None:
    torch.manual_seed(0)
    embedding = SignalEmbedding(2, 6).double()
    rows = torch.tensor([[1.0, 2.0], [torch.nan, 2.0], [1.0, torch.nan], [torch.nan] * 2]).double()
    found = embedding(rows, 4)[:, 0].detach()
    gaps = torch.cdist(found, found) + torch.eye(4)
    assert float(gaps.min()) > 1e-3


# Networks


@each_network
def test_a_vector_is_a_constant_track_and_none_is_unknown(name: str) -> None:
    network = build(name)
    given = network(Inputs(TOKENS, signal=VECTOR))
    track = VECTOR[:, None].expand(-1, LENGTH, -1)
    assert close(given, network(Inputs(TOKENS, signal=track)))
    bare = network(Inputs(TOKENS))
    assert close(bare, network(Inputs(TOKENS, signal=torch.full_like(VECTOR, torch.nan))))
    assert float((given - bare).abs().amax(dim=(1, 2)).min()) > 1e-3
    alone = network(Inputs(TOKENS[1:2], signal=VECTOR[1:2]))
    assert close(given[1:2], alone)


@each_network
@each_signal
def test_rows_with_signals_do_not_see_padding(name: str, signal: Tensor) -> None:
    network, real = build(name), 7
    padding = torch.zeros_like(TOKENS, dtype=torch.bool)
    padding[:, real:] = True
    padding[0] = False
    padded = network(Inputs(TOKENS, padding=padding, signal=signal))[1:, :real]
    cut = signal[1:] if signal.dim() == 2 else signal[1:, :real]
    assert close(padded, network(Inputs(TOKENS[1:, :real], signal=cut)))


@pytest.mark.parametrize("name", ["ps", "ps swapped"])
def test_both_strands_have_the_same_vector_and_reversed_tracks(name: str) -> None:
    network, complement = build(name), torch.tensor(DNA)
    other = complement[TOKENS.flip(1)]

    def gap(signal: Tensor, turned: Tensor) -> float:
        there = network(Inputs(other, signal=turned)).flip(1)[..., complement[:4]]
        return float((network(Inputs(TOKENS, signal=signal)) - there).abs().max())

    assert gap(VECTOR, VECTOR) < 1e-9
    assert gap(TRACK, TRACK.flip(1)) < 1e-9
    assert gap(TRACK, TRACK) > 1e-3, "the twin that does not reverse the track"


@each_network
def test_causal_networks_read_no_later_token_but_every_track(name: str) -> None:
    network = build(name)
    if not network.causal:
        pytest.skip("reads both sides")
    changed = TOKENS.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 5
    before, after = (network(Inputs(t, signal=TRACK)) for t in (TOKENS, changed))
    assert close(before[:, :6], after[:, :6]) and not close(before[:, 6:], after[:, 6:])
    moved = TRACK.clone()
    moved[:, 5] += 1.0
    shifted = network(Inputs(TOKENS, signal=moved))
    assert close(before[:, :5], shifted[:, :5]) and not close(before[:, 5], shifted[:, 5])


@each_block_network
@each_signal
@pytest.mark.parametrize("size", [2, 4])
def test_the_cache_reads_the_signal_of_its_positions(name: str, signal: Tensor, size: int) -> None:
    network, x0 = build(name), TOKENS.clamp_max(3)
    whole = network.block_logits(Inputs(TOKENS, signal=signal), x0, size)
    cache, parts = network.block_cache(ROWS, size, signal=signal), []
    for start in range(0, LENGTH, size):
        parts.append(cache.logits(TOKENS[:, start : start + size]))
        if start + size <= LENGTH:
            cache.append(x0[:, start : start + size])
    assert close(torch.cat(parts, dim=1), whole)
    bare = network.block_logits(Inputs(TOKENS), x0, size)
    assert not close(whole, bare)
    rows = torch.tensor([2, 0, 2])
    chosen = network.block_cache(ROWS, size, signal=signal).take(rows)
    chosen.append(x0[rows, : 2 * size])
    again = chosen.logits(TOKENS[rows, 2 * size : 3 * size])
    assert close(again, whole[rows, 2 * size : 3 * size])


@each_signal
@pytest.mark.parametrize("padded", [False, True])
def test_passes_agree(signal: Tensor, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    network, x0, padding = build("transformer"), TOKENS.clamp_max(3), None
    if padded:
        padding = torch.arange(LENGTH) >= torch.tensor([10, 7, 3])[:, None]
    inputs, found = Inputs(TOKENS, signal=signal, padding=padding), []
    for chosen in (block_diffusion.dense_pass, block_diffusion.structured_pass):
        module = "seqdiff.backbones.transformer.network.choose_pass"
        monkeypatch.setattr(module, lambda pair, chosen=chosen: chosen)
        logits = network.block_logits(inputs, x0, 4)
        found.append(logits if padding is None else logits[~padding])
    assert close(*found)


def test_signals_that_do_not_fit_are_refused(tmp_path) -> None:
    network = build("ph")
    for signal in (VECTOR[:, :1], TRACK[..., :1]):
        with pytest.raises(ValueError, match=r"^Caduceus\.signal must have shape \(3, 2\), or"):
            network(Inputs(TOKENS, signal=signal))
    with pytest.raises(ValueError, match=r"^Caduceus\.signal must be None for a network without"):
        build("ph", None)(Inputs(TOKENS, signal=VECTOR))
    for name in ("ph", "transformer"):
        with pytest.raises(ValueError, match="must be given a network without classes and signals"):
            build(name).to_hub(tmp_path)
    for name in ("blocks", "transformer"):
        with pytest.raises(ValueError, match=r"signal must have shape \(3, 2\)"):
            build(name).block_cache(ROWS, 4, signal=VECTOR[:, :1])
    with pytest.raises(ValueError, match=r"num_signals must be an integer of at least"):
        build("ph", 0)
    with pytest.raises(ValueError, match="must be one for each of the network's 2 signals, got 1"):
        Denoiser(network, Absorbing(4)).given_signal([1.0])


def test_a_denoiser_given_a_signal_gives_it_to_rows_without_one() -> None:
    denoiser = Denoiser(build("ph"), Absorbing(4))
    given = denoiser.given_signal([0.5, float("nan")])
    same = torch.tensor([0.5, torch.nan]).expand(ROWS, -1)
    assert torch.equal(given(Inputs(TOKENS)), denoiser(Inputs(TOKENS, signal=same)))
    own = given(Inputs(TOKENS, signal=VECTOR))
    assert torch.equal(own, denoiser(Inputs(TOKENS, signal=VECTOR)))


def test_other_weights_do_not_depend_on_the_number_of_signals() -> None:
    for name, make in NETWORKS.items():
        torch.manual_seed(3)
        plain = make(None).state_dict()
        torch.manual_seed(3)
        given = make(2).state_dict()
        assert all(key.startswith("signal_map.") for key in given.keys() - plain.keys()), name
        assert all(torch.equal(given[key], weight) for key, weight in plain.items()), name


# Training


def batch_of(index: Tensor, signal: Tensor) -> Batch:
    tokens = torch.zeros((len(index), 2), dtype=torch.int64)
    return Batch(tokens, tokens == 0, index, index % 3, signal=signal)


def test_dropout_hides_all_signals_or_each() -> None:
    """With 20,000 rows, |z| <= 4.9 has a false-alarm rate of 1e-6.

    A twin that hides each signal independently hides all three in .027 of the rows instead of
    .3 + .7 * .027: more than 80 standard deviations off.
    """
    noise, rate, index = CounterNoise(7), 0.3, torch.arange(20_000)
    dropout = ConditionDropout(signal=rate)
    batch = batch_of(index, torch.randn(len(index), 3))
    hidden = dropout(batch, noise).signal.isnan()
    every, one = rate + (1 - rate) * rate**3, rate + (1 - rate) * rate
    for found, wanted in ((hidden.all(dim=1), every), (hidden[:, 1], one)):
        deviation = (wanted * (1 - wanted) * len(index)) ** 0.5
        assert abs(int(found.sum()) - wanted * len(index)) < 4.9 * deviation
    assert torch.equal(dropout(batch, noise).label, batch.label), "labels have a rate of their own"
    part = dropout(batch.take(slice(50, 90)), noise).signal
    assert torch.equal(part.isnan(), hidden[50:90]), "a function of seed and index"
    track = dropout(batch_of(index, torch.zeros(len(index), 2, 3)), noise).signal.isnan()
    assert torch.equal(track[:, 0], hidden) and torch.equal(track[:, 1], hidden)
    single = dropout(batch_of(index, torch.zeros(len(index), 1)), noise).signal.isnan()
    deviation = (rate * (1 - rate) * len(index)) ** 0.5
    assert abs(int(single.sum()) - rate * len(index)) < 4.9 * deviation
    assert not torch.equal(hidden, dropout(batch, CounterNoise(8)).signal.isnan())


class Values(SequenceDataset):
    def __init__(self, values: np.ndarray) -> None:
        self.values = values.astype(np.float32)

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        raise AssertionError("statistics read no tokens")

    def signals(self, indices: np.ndarray) -> np.ndarray:
        return self.values[indices]


@pytest.mark.parametrize("shape", [(11, 2), (7, 5, 2)])
def test_statistics_are_those_of_all_known_values(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_module, "_STATISTICS_VALUES", 6)
    values = np.random.default_rng(0).normal(1000.0, 0.5, shape).astype(np.float32)
    values[:4, ..., 1] = np.nan  # a chunk without a value
    found = signal_statistics(Values(values), ["a", "b"])
    flat = values.reshape(-1, 2).astype(np.float64)
    wanted = (np.nanmean(flat, 0), np.nanstd(flat, 0), np.nanmin(flat, 0), np.nanmax(flat, 0))
    for ours, theirs in zip(found, wanted, strict=True):
        assert np.allclose(ours, theirs, rtol=1e-9)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, 1.0], "must vary over the training rows, got only 1 of 'b'; drop"),
        ([np.nan] * 2, "must vary over the training rows, got no value of 'b'; drop"),
        ([1.0, np.inf], "must be finite, got values from 1 to inf of 'b'"),
    ],
)
def test_signals_that_cannot_be_learned_are_refused(column: list[float], message: str) -> None:
    values = np.array([[0.0, 1.0], column]).T
    with pytest.raises(ValueError, match=rf"^data\.signals {message}"):
        signal_statistics(Values(values), ["a", "b"])


# Samplers and guidance

K = 4


class Obedient(TableBackbone):
    """Token of a position = its signal, with certainty; uniform without one."""

    num_signals = 1

    def logits(self, inputs: Inputs) -> Tensor:
        rows, length = inputs.tokens.shape
        assert inputs.signal is not None
        signal = inputs.signal if inputs.signal.dim() == 3 else inputs.signal[:, None]
        wanted = signal.expand(rows, length, 1)[..., 0].round().long().clamp(0, K - 1)
        certain = torch.nn.functional.one_hot(wanted, K).double().log().clamp_min(-60.0)
        return certain


def sampler_of(cls: type[Sampler]) -> Sampler:
    if cls is SemiAutoregressiveSampler:
        return cls(window=3, stride=2)
    if cls is SMCSampler:
        return cls(reward=lambda tokens: (tokens == 1).sum(dim=-1).double(), num_particles=4)
    return cls(num_steps=12) if issubclass(cls, GridSampler) else cls()


OBEDIENT = masked_model(Obedient(K))
SAMPLERS = [
    sampler_of(cls)
    for cls in named_samplers().values()
    if cls.__module__.startswith("seqdiff.") and cls.needs.met_by(OBEDIENT)
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda sampler: type(sampler).__name__)
def test_every_sampler_gives_each_row_and_position_its_own_signal(sampler: Sampler) -> None:
    vector = torch.tensor([[0.0], [3.0], [1.0], [2.0]])
    track = torch.randint(K, (4, 6, 1), generator=torch.Generator().manual_seed(0)).float()
    start = torch.full((4, 6), K)
    start[1, 2] = 0  # rows with different numbers of positions to fill
    for signal in (vector, track):
        drawn = sampler.sample(OBEDIENT, start, seeds=torch.arange(4), signal=signal).tokens
        wanted = signal.expand(4, 6) if signal.dim() == 2 else signal[..., 0]
        wanted = wanted.long().clone()
        wanted[1, 2] = 0
        assert torch.equal(drawn, wanted)
    assert len(SAMPLERS) > 10


@each_signal
def test_blocks_grow_given_the_signal_of_their_rows(signal: Tensor) -> None:
    """A row beside others is drawn as alone, and the signal matters."""
    denoiser = block_denoiser(build("blocks"), 4)
    sampler, start = BlockSampler(), torch.full((ROWS, LENGTH), 4)
    seeds = torch.arange(ROWS)
    together = sampler.sample(denoiser, start, seeds=seeds, signal=signal).tokens
    for row in range(ROWS):
        one = slice(row, row + 1)
        alone = sampler.sample(denoiser, start[one], seeds=seeds[one], signal=signal[one])
        assert torch.equal(alone.tokens[0], together[row])
    other = sampler.sample(denoiser, start, seeds=seeds, signal=signal.roll(1, 0)).tokens
    assert not torch.equal(other, together)


def given_and_not(denoiser: Denoiser, signal: Tensor, **more: Tensor) -> tuple[Tensor, Tensor]:
    told = denoiser(Inputs(TOKENS, signal=signal, **more))
    return told, denoiser(Inputs(TOKENS))


@each_signal
@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_guidance_to_a_signal_is_the_normalised_product(signal: Tensor, gamma: float) -> None:
    denoiser = Denoiser(build("ph"), Absorbing(4))
    found = ClassifierFree(denoiser, gamma=gamma)(Inputs(TOKENS, signal=signal))
    told, plain = given_and_not(denoiser, signal)
    where = TOKENS == 4
    right = (gamma * told + (1 - gamma) * plain)[where].log_softmax(dim=-1)
    assert close(found[where], right)
    assert not close(found[where], told[where])


def test_gamma_zero_and_one_take_one_evaluation() -> None:
    denoiser = Denoiser(build("ph"), Absorbing(4))
    told, plain = given_and_not(denoiser, VECTOR)
    for gamma, wanted, cost in ((0.0, plain, 1), (1.0, told, 1), (2.0, None, 2)):
        guided, inputs = ClassifierFree(denoiser, gamma=gamma), Inputs(TOKENS, signal=VECTOR)
        assert guided.evaluations(inputs).tolist() == [cost] * ROWS
        assert wanted is None or torch.equal(guided(inputs), wanted)


def test_labels_and_signals_guide_together() -> None:
    torch.manual_seed(0)
    network = Caduceus(8, 2, **SIZES, **MAMBA, num_signals=2, num_classes=3).double().eval()
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    denoiser, label = Denoiser(network, Absorbing(4)), torch.ones(ROWS, dtype=torch.int64)
    found = ClassifierFree(denoiser, 1, 2.0)(Inputs(TOKENS, signal=VECTOR))
    told = denoiser(Inputs(TOKENS, signal=VECTOR, label=label))
    plain = denoiser(Inputs(TOKENS, label=torch.full_like(label, NO_LABEL)))
    where = TOKENS == 4
    assert close(found[where], (2 * told - plain)[where].log_softmax(dim=-1))
    half = denoiser(Inputs(TOKENS, label=label))
    assert not close(found[where], (2 * told - half)[where].log_softmax(dim=-1)), "label kept"


def test_guidance_of_the_reverse_step_with_uniform_noise() -> None:
    torch.manual_seed(0)
    network = Caduceus(
        8, 2, num_embeddings=5, num_logits=4, **MAMBA, num_signals=2, time_conditioned=True
    )
    denoiser = Denoiser(network.double().eval(), Uniform(4))
    tokens, t = TOKENS.clamp_max(3), torch.full((ROWS,), 0.6).double()
    inputs, s = Inputs(tokens, t, signal=VECTOR), torch.full((ROWS,), 0.4).double()
    found = ClassifierFree(denoiser, gamma=2.0).log_reverse(inputs, s)
    told = denoiser.log_reverse(inputs, s)
    plain = denoiser.log_reverse(replace(inputs, signal=None), s)
    assert close(found, (2 * told - plain).log_softmax(dim=-1))


@each_signal
def test_blocks_are_guided_to_a_signal(signal: Tensor) -> None:
    denoiser = block_denoiser(build("blocks"), 4)
    x0 = TOKENS.clamp_max(3)
    guided = BlockClassifierFree(denoiser, gamma=2.0)
    prefix = guided.start(ROWS, signal=signal)
    prefix.append(x0[:, :4])
    part, where = TOKENS[:, 4:8], TOKENS[:, 4:8] == 4
    assert bool(where.any())
    plain, told = denoiser.start(ROWS), denoiser.start(ROWS, signal=signal)
    plain.append(x0[:, :4])
    told.append(x0[:, :4])
    right = 2 * told.log_probs(part, where) - plain.log_probs(part, where)
    assert close(prefix.log_probs(part, where), right.log_softmax(dim=-1))


def test_guidance_needs_something_to_guide_to() -> None:
    denoiser = Denoiser(build("ph", None), Absorbing(4))
    with pytest.raises(ValueError, match=r"^ClassifierFree\.denoiser must have signals"):
        ClassifierFree(denoiser)
    with pytest.raises(ValueError, match=r"^Caduceus\.signal must be None"):
        FirstHittingSampler().sample(denoiser, TOKENS, seeds=torch.arange(ROWS), signal=VECTOR)


@each_signal
def test_conjoined_reads_the_track_backwards_on_the_other_strand(signal: Tensor) -> None:
    denoiser, complement = Denoiser(build("ph"), Absorbing(4)), torch.tensor(DNA)
    both = Conjoined(denoiser, DNA[:4])
    turned = signal if signal.dim() == 2 else signal.flip(1)
    other = complement[TOKENS.flip(1)]
    found = both(Inputs(TOKENS, signal=signal))
    there = both(Inputs(other, signal=turned)).flip(1)[..., complement[:4]]
    where = TOKENS == 4
    assert close(found[where], there[where])
    straight = denoiser(Inputs(TOKENS, signal=signal))
    back = denoiser(Inputs(other, signal=turned)).flip(1)[..., complement[:4]]
    mean = torch.logaddexp(straight, back) - torch.tensor(2.0).double().log()
    assert close(found[where], mean[where])
