"""Guidance to measured values, and both strands of them, by enumeration."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser import Denoiser
from seqdiff.process import Hybrid, Uniform
from seqdiff.samplers import (
    AncestralSampler,
    BlockClassifierFree,
    BlockSampler,
    ClassifierFree,
    Conjoined,
    ExactClassifierBased,
    FirstHittingSampler,
    conjoining,
)
from seqdiff.schedules import Cosine
from seqdiff.types import NO_LABEL, Inputs
from tests import distributions
from tests.block_distributions import by_blocks
from tests.block_worlds import block_denoiser
from tests.enumeration import distance, outcomes
from tests.guided_worlds import LinearClassifier
from tests.oracles import LookupBackbone, all_sequences, masked_model
from tests.signal_worlds import SignalBlocks, SignalWorld, noisy_model

K, L, EXACT = 3, 3, 1e-10
NAN = torch.nan
GAMMAS = [0.3, 1.5, 3.0]
KNOWN = [[0.7, -1.2], [NAN, 0.9], [2.0, NAN], [NAN, NAN], [-0.4, 0.3]]


def states(k: int = K, length: int = L) -> Tensor:
    return all_sequences(k + 1, length)


def vectors(rows: int) -> Tensor:
    """Rows with other signals, some of them unknown."""
    return torch.tensor(KNOWN)[torch.arange(rows) % len(KNOWN)]


def tracks(rows: int, length: int = L) -> Tensor:
    number = torch.arange(rows)[:, None] * 2 + torch.arange(length) * 3
    return torch.tensor(KNOWN)[number % len(KNOWN)]


def labels(rows: int, label: int = 1) -> Tensor:
    return torch.full((rows,), label)


def experts(given: list[float], without: list[float], gamma: float) -> list[float]:
    pairs = zip(given, without, strict=True)
    weights = [c**gamma * p ** (1 - gamma) if c and p else 0.0 for c, p in pairs]
    return [weight / math.fsum(weights) for weight in weights]


def off(found: Tensor, given: Tensor, without: Tensor, gamma: float, where: Tensor) -> float:
    """How far distributions are from the normalised product, at some positions."""
    gaps = [
        abs(ours - right)
        for one, other, mine in zip(
            *(x.exp()[where].tolist() for x in (given, without, found)), strict=True
        )
        for ours, right in zip(mine, experts(one, other, gamma), strict=True)
    ]
    return max(gaps)


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("make", [vectors, tracks])
def test_masks_have_the_normalised_product(make, gamma: float) -> None:
    """p(. | c)^gamma p(.)^(1 - gamma); rows of one batch have different signals."""
    model, x_t = masked_model(SignalWorld(K, L)), states()
    signal, hidden = make(len(x_t)), x_t == K
    guided = ClassifierFree(model, None, gamma)
    found = guided(Inputs(x_t, signal=signal))
    given, without = model(Inputs(x_t, signal=signal)), model(Inputs(x_t))
    assert off(found, given, without, gamma, hidden) < EXACT
    assert off(found, without, given, gamma, hidden) > 1e-2, "the twin that swaps them"
    others = model(Inputs(x_t, signal=signal.roll(1, dims=0)))
    assert off(found, others, without, gamma, hidden) > 1e-2, "the twin of other rows"
    shown = ~hidden
    assert torch.equal(found[shown], given[shown]), "visible tokens stay"
    unknown = signal.isnan().flatten(1).all(dim=1)
    if make is vectors:
        assert unknown.any()
        plain = without[unknown].log_softmax(dim=-1)
        torch.testing.assert_close(found[unknown], plain, atol=EXACT, rtol=0)
    torch.testing.assert_close(guided(Inputs(x_t, signal=signal), hidden), found[hidden])
    assert guided.evaluations(Inputs(x_t[:2], signal=signal[:2])).tolist() == [2, 2]


@pytest.mark.parametrize("label", [None, 1])
def test_strengths_0_and_1_take_one_evaluation(label: int | None) -> None:
    model, x_t = masked_model(SignalWorld(K, L)), states()
    signal = vectors(len(x_t))
    inputs = Inputs(x_t, signal=signal)
    zero, one = (ClassifierFree(model, label, gamma) for gamma in (0.0, 1.0))
    wanted = replace(inputs, label=None if label is None else labels(len(x_t)))
    assert torch.equal(zero(inputs), model(Inputs(x_t)))
    assert torch.equal(one(inputs), model(wanted))
    assert not torch.allclose(zero(inputs).exp(), one(inputs).exp())
    seen = model.backbone.lookup.rows_seen
    for guided in (zero, one):
        seen.clear()
        guided(inputs)
        assert seen == [len(x_t)] and guided.evaluations(inputs)[0] == 1
    seen.clear()
    ClassifierFree(model, label, 2.0)(inputs)
    assert seen == [2 * len(x_t)]


@pytest.mark.parametrize("gamma", GAMMAS)
def test_a_label_and_signals_are_one_condition(gamma: float) -> None:
    model, x_t = masked_model(SignalWorld(K, L)), states()
    signal, hidden, label = vectors(len(x_t)), x_t == K, labels(len(x_t))
    found = ClassifierFree(model, 1, gamma)(Inputs(x_t, signal=signal))
    given = model(Inputs(x_t, signal=signal, label=label))
    assert off(found, given, model(Inputs(x_t)), gamma, hidden) < EXACT
    for twin in (Inputs(x_t, signal=signal), Inputs(x_t, label=label)):
        assert off(found, given, model(twin), gamma, hidden) > 1e-2, "only one of them is hidden"
    alone = ClassifierFree(model, 1, gamma)(Inputs(x_t))
    given = model(Inputs(x_t, label=label))
    assert off(alone, given, model(Inputs(x_t)), gamma, hidden) < EXACT


@pytest.mark.parametrize("process", [Uniform(K, Cosine()), Hybrid(K, 0.3)], ids=lambda p: p.name)
@pytest.mark.parametrize("gamma", [0.0, 1.0, *GAMMAS])
@pytest.mark.parametrize("label", [None, 0])
def test_noise_has_the_normalised_product_of_reverse_steps(process, gamma, label) -> None:
    model, z = noisy_model(K, L, process), states()
    z = z[(z < process.states).all(dim=1)]
    t, s = torch.full((len(z),), 0.6).double(), torch.full((len(z),), 0.25).double()
    signal, everywhere = vectors(len(z)), torch.ones_like(z, dtype=torch.bool)
    given = None if label is None else labels(len(z), label)
    plain = Inputs(z, t)
    found = ClassifierFree(model, label, gamma).log_reverse(replace(plain, signal=signal), s)
    conditional = model.log_reverse(replace(plain, signal=signal, label=given), s)
    unconditional = model.log_reverse(plain, s)
    assert off(found, conditional, unconditional, gamma, everywhere) < EXACT
    others = model.log_reverse(replace(plain, signal=signal.roll(1, dims=0), label=given), s)
    assert gamma == 0 or off(found, others, unconditional, gamma, everywhere) > 1e-3


@pytest.mark.parametrize("gamma", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("signal", [torch.tensor([0.7, -1.2]), tracks(1)[0]], ids=["row", "track"])
def test_a_sampler_draws_from_the_guided_distributions(signal: Tensor, gamma: float) -> None:
    k, model = 2, masked_model(SignalWorld(2, L))
    guided = ClassifierFree(model, None, gamma)

    class Told(Denoiser):
        """The same predictions, as a table."""

        def forward(self, inputs: Inputs, where: Tensor | None = None) -> Tensor:
            rows = signal.expand(len(inputs.tokens), *signal.shape)
            return guided(replace(inputs, signal=rows), where)

    table = distributions.table(Told(model.backbone, model.process), k, L)
    right = distributions.random_order((k,) * L, table, k)
    start = torch.full((L,), k)
    found = outcomes(FirstHittingSampler(), guided, start, signal=signal).distribution
    assert distance(found, right) < EXACT
    free = outcomes(FirstHittingSampler(), guided, start).distribution
    assert distance(free, found) > 1e-2, "the twin that loses the signal"
    steps = outcomes(AncestralSampler(2), guided, start, signal=signal)
    assert int(steps.nfe.max()) == (2 if gamma == 1 else 4)


@pytest.mark.parametrize(
    ("size", "label", "gamma"),
    [(2, None, 0.0), (2, None, 1.0), (2, None, 2.5), (2, 1, 0.5), (1, 1, 1.0), (1, None, 0.5)],
)
def test_guided_blocks_have_the_normalised_product(size: int, label, gamma: float) -> None:
    k, length = 2, 3
    model = block_denoiser(SignalBlocks(k, length), size)
    guided = BlockClassifierFree(model, label, gamma)
    x_t = states(k, length)
    signal, hidden = vectors(len(x_t)), x_t == k
    given = None if label is None else labels(len(x_t))
    conditional = model(Inputs(x_t, signal=signal, label=given))
    found = guided(Inputs(x_t, signal=signal))
    assert off(found, conditional, model(Inputs(x_t)), gamma, hidden) < EXACT
    others = model(Inputs(x_t, signal=signal.roll(1, dims=0), label=given))
    assert gamma == 0 or off(found, others, model(Inputs(x_t)), gamma, hidden) > 1e-2
    own, start = torch.tensor([0.7, NAN]), torch.full((length,), k)
    told = guided.given_signal(own.tolist())
    right = by_blocks(told, FirstHittingSampler(), (k,) * length)
    drawn = outcomes(BlockSampler(), guided, start, signal=own)
    assert distance(drawn.distribution, right) < 1e-6
    free = outcomes(BlockSampler(), guided, start)
    assert (distance(free.distribution, right) > 1e-2) == (gamma != 0)
    assert guided.evaluations(Inputs(x_t[:1])).tolist() == [1 if gamma in (0, 1) else 2]
    inside = outcomes(BlockSampler(), told, start)
    assert distance(inside.distribution, right) < 1e-6


def test_blocks_are_bounded_given_clean_ones() -> None:
    k, length, gamma = 2, 4, 1.5
    world = SignalBlocks(k, length)
    guided = BlockClassifierFree(block_denoiser(world, 2), None, gamma)
    x0 = all_sequences(k, length)
    signal = tracks(len(x0), length)
    hidden = torch.tensor([True, False, True, True]).expand_as(x0)
    x_t = x0.masked_fill(hidden, k)
    parts = (world.block_logits(Inputs(x_t, signal=s), x0, 2) for s in (signal, None))
    given, without = (part.log_softmax(dim=-1) for part in parts)
    mixed = (gamma * given + (1 - gamma) * without).log_softmax(dim=-1)
    wanted = -mixed.gather(-1, x0[..., None])[..., 0]
    found = guided.nats(Inputs(x_t, signal=signal), x0, hidden)
    torch.testing.assert_close(found[hidden], wanted[hidden])


# One signal for all rows


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
@pytest.mark.parametrize("label", [None, 1])
def test_a_given_signal_is_guided_to_like_one_of_the_inputs(gamma: float, label) -> None:
    """Whether it is given before or after the denoiser is guided."""
    own, x_t = [0.5, NAN], states()
    signal = torch.tensor(own).expand(len(x_t), -1)
    model = masked_model(SignalWorld(K, L))
    wanted = ClassifierFree(model, label, gamma)(Inputs(x_t, signal=signal))
    before = ClassifierFree(model.given_signal(own), label, gamma)
    after = ClassifierFree(model, label, gamma).given_signal(own)
    for guided in (before, after):
        torch.testing.assert_close(guided(Inputs(x_t)), wanted)
        other = vectors(len(x_t))
        torch.testing.assert_close(
            guided(Inputs(x_t, signal=other)),
            ClassifierFree(model, label, gamma)(Inputs(x_t, signal=other)),
        )
    blocks = block_denoiser(SignalBlocks(K, L), 2)
    wanted = BlockClassifierFree(blocks, label, gamma)(Inputs(x_t, signal=signal))
    for guided in (
        BlockClassifierFree(blocks.given_signal(own), label, gamma),
        BlockClassifierFree(blocks, label, gamma).given_signal(own),
    ):
        torch.testing.assert_close(guided(Inputs(x_t)), wanted)
        with pytest.raises(ValueError, match="must be one for each of the network's 2 signals"):
            guided.given_signal([1.0])


def test_other_derived_denoisers_pass_a_given_signal_on() -> None:
    own, x_t = [0.5, -1.0], states()
    signal = torch.tensor(own).expand(len(x_t), -1)
    model = masked_model(SignalWorld(K, L))
    for derived in (
        Conjoined(model, (2, 1, 0)),
        ExactClassifierBased(model, LinearClassifier(K, L)),
        ExactClassifierBased(model, LinearClassifier(K, L), 0.0),
    ):
        wanted = derived(Inputs(x_t, signal=signal))
        torch.testing.assert_close(derived.given_signal(own)(Inputs(x_t)), wanted)
        assert not torch.allclose(derived(Inputs(x_t)).exp(), wanted.exp())
        assert derived.num_signals == 2


def test_a_label_of_the_model_stays_in_both_predictions() -> None:
    """``given_label`` is part of the model that is guided to signals."""
    model, x_t = masked_model(SignalWorld(K, L)), states()
    signal, hidden, label = vectors(len(x_t)), x_t == K, labels(len(x_t))
    found = ClassifierFree(model.given_label(1), None, 2.0)(Inputs(x_t, signal=signal))
    parts = (model(Inputs(x_t, signal=s, label=label)) for s in (signal, None))
    assert off(found, *parts, 2.0, hidden) < EXACT
    blocks = block_denoiser(SignalBlocks(K, L), 2)
    found = BlockClassifierFree(blocks.given_label(1), None, 2.0)(Inputs(x_t, signal=signal))
    parts = (blocks(Inputs(x_t, signal=s, label=label)) for s in (signal, None))
    assert off(found, *parts, 2.0, hidden) < EXACT
    untold = labels(len(x_t), NO_LABEL)
    torch.testing.assert_close(blocks(Inputs(x_t, label=untold)), blocks(Inputs(x_t)))


# Both strands


def test_both_strands_of_a_vector_and_of_a_track(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of p(. | x, c) and of RC p(. | RC x, c'); c' is the reversed track."""
    pair = torch.tensor([2, 1, 0, 3])
    model, x_t = masked_model(SignalWorld(K, L)), states()
    both, back, hidden = Conjoined(model, (2, 1, 0)), pair[x_t.flip(1)], x_t == K

    def mean(signal: Tensor, other: Tensor) -> Tensor:
        straight = model(Inputs(x_t, signal=signal)).exp()
        turned = model(Inputs(back, signal=other)).exp().flip(1)[..., pair[:K]]
        return (straight + turned) / 2

    def gap(signal: Tensor, other: Tensor) -> float:
        found = both(Inputs(x_t, signal=signal)).exp()
        return float((found - mean(signal, other))[hidden].abs().max())

    vector, track = vectors(len(x_t)), tracks(len(x_t))
    assert gap(vector, vector) < EXACT
    assert gap(track, track.flip(1)) < EXACT and gap(track, track) > 1e-2
    straight = both(Inputs(x_t, signal=track)).exp()
    turned = both(Inputs(back, signal=track.flip(1))).exp().flip(1)[..., pair[:K]]
    torch.testing.assert_close(straight[hidden], turned[hidden], atol=EXACT, rtol=0)
    guided = ClassifierFree(both, None, 2.0)(Inputs(x_t, signal=track))
    parts = (both(Inputs(x_t, signal=s)) for s in (track, None))
    assert off(guided, *parts, 2.0, hidden) < EXACT
    real = conjoining.replace

    def same(inputs: Inputs, **fields: object) -> Inputs:
        """Broken twin: the other strand has the track of this one."""
        if "signal" in fields and fields["signal"] is not None:
            first = fields["signal"][: len(x_t)]
            fields["signal"] = torch.cat((first, first))
        return real(inputs, **fields)

    monkeypatch.setattr(conjoining, "replace", same)
    assert gap(track, track.flip(1)) > 1e-2 and gap(vector, vector) < EXACT


class AnyLength(SignalWorld):
    """A table of its own for every length, which padding does not count to."""

    def __init__(self, k: int) -> None:
        super().__init__(k, 1)
        self.tables = torch.nn.ModuleList(LookupBackbone(k, n, seed=n) for n in range(1, 5))

    def logits(self, inputs: Inputs) -> Tensor:
        logits = torch.zeros(*inputs.tokens.shape, self.num_logits, dtype=torch.float64)
        for row in range(len(logits)):
            one = inputs.take(slice(row, row + 1))
            real = slice(None) if one.padding is None else ~one.padding[0]
            tokens = one.tokens[:, real]
            logits[row, real] = self.tables[tokens.shape[1] - 1].logits(Inputs(tokens))[0]
        return logits + self.tilt(inputs)


@pytest.mark.parametrize("pads", [[0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]])
def test_tracks_of_padded_rows_are_reversed_within_the_row(pads: list[int]) -> None:
    hidden = torch.tensor(pads).bool()
    both = Conjoined(masked_model(AnyLength(K)), (2, 1, 0))
    for x, signal in zip(states(), tracks(64), strict=True):
        row, track = torch.full((4,), K), torch.full((4, 2), 9.0)
        row[~hidden], track[~hidden] = x, signal
        padded = both(Inputs(row[None], signal=track[None], padding=hidden[None]))[0, ~hidden]
        bare = both(Inputs(x[None], signal=signal[None]))[0]
        torch.testing.assert_close(padded, bare)


# Errors


@pytest.mark.usefixtures("unchecked")
def test_networks_without_signals_are_not_guided_to_them() -> None:
    plain = masked_model(LookupBackbone(2, 2, seed=0))
    with pytest.raises(ValueError, match=r"^ClassifierFree\.denoiser must have signals to be gui"):
        ClassifierFree(plain)
    with pytest.raises(ValueError, match=r"^ClassifierFree\.label must be a class .* has none"):
        ClassifierFree(plain, 0)
    with pytest.raises(ValueError, match=r"^ClassifierFree\.gamma must be finite"):
        ClassifierFree(masked_model(SignalWorld(2, 2)), None, -1.0)
    x_t = torch.full((3, 2), 2)
    guided = ClassifierFree(masked_model(SignalWorld(2, 2)), None, 2.0)
    with pytest.raises(ValueError, match=r"^ClassifierFree\.inputs must have no label, got one of"):
        guided(Inputs(x_t, label=labels(3)))
    for gamma, shape in itertools.product((1.0, 2.0), ((3, 1), (3, 3, 2))):
        inputs = Inputs(x_t)
        inputs.signal = torch.zeros(shape)
        with pytest.raises(ValueError, match=r"^SignalWorld\.signal must have shape"):
            ClassifierFree(guided.denoiser, None, gamma)(inputs)
