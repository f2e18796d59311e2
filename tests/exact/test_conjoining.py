"""``Conjoined`` predictions and samples by enumeration: both strands are equally likely."""

import itertools
import math

import pytest
import torch

from seqdiff.backbones import Caduceus
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.samplers import (
    AncestralSampler,
    ClassifierFree,
    Conjoined,
    FirstHittingSampler,
    Sampler,
    SemiAutoregressiveSampler,
    SMCSampler,
)
from seqdiff.samplers.grid import GridSampler
from seqdiff.types import Inputs
from tests.enumeration import Distribution, Tokens, distance, outcomes
from tests.exact.test_sampler_contract import ALL, Neighbours
from tests.guided_worlds import lookup_world
from tests.oracles import LookupBackbone, TableBackbone, all_sequences, masked_model

EXACT = 1e-10
DNA, PAIR = (3, 2, 1, 0), (1, 0)
WORLDS = [(4, 3, DNA), (2, 4, PAIR), (3, 3, (2, 1, 0))]


def lookup(k: int, length: int) -> Denoiser:
    return masked_model(LookupBackbone(k, length, seed=6))


def other_strand(x: Tokens, complement: Tokens) -> Tokens:
    return tuple((*complement, len(complement))[token] for token in reversed(x))


def asymmetry(distribution: Distribution, complement: Tokens) -> float:
    return distance(
        distribution, {other_strand(x, complement): chance for x, chance in distribution.items()}
    )


def draw(sampler: Sampler, denoiser: Denoiser, length: int, **options) -> Distribution:
    k = denoiser.vocab_size
    start = torch.full((length,), k)
    return outcomes(sampler, denoiser, start, **options).distribution


@pytest.mark.parametrize(("k", "length", "complement"), WORLDS)
@pytest.mark.parametrize("sampler", [FirstHittingSampler(), AncestralSampler(2)], ids=repr)
def test_both_strands_are_equally_likely(k, length, complement, sampler: Sampler) -> None:
    denoiser = lookup(k, length)
    assert asymmetry(draw(sampler, Conjoined(denoiser, complement), length), complement) < EXACT
    assert asymmetry(draw(sampler, denoiser, length), complement) > 1e-2, "the twin on one strand"
    flipped = draw(sampler, Conjoined(denoiser, range(k)), length)
    assert asymmetry(flipped, complement) > 1e-2, "the twin that flips without complement"


@pytest.mark.parametrize(("k", "length", "complement"), WORLDS)
def test_a_prediction_is_the_mean_of_the_two_strands(k, length, complement) -> None:
    denoiser = lookup(k, length)
    states = all_sequences(k + 1, length)
    distributions = dict(
        zip(map(tuple, states.tolist()), denoiser(Inputs(states)).exp().tolist(), strict=True)
    )
    found = Conjoined(denoiser, complement)(Inputs(states)).exp().tolist()
    other_means = 0
    for row, (x, straight) in enumerate(distributions.items()):
        back = distributions[other_strand(x, complement)]
        for i, letter in itertools.product(range(length), range(k)):
            one, other = straight[i][letter], back[length - 1 - i][complement[letter]]
            assert found[row][i][letter] == pytest.approx((one + other) / 2, abs=EXACT)
            other_means += abs(found[row][i][letter] - math.sqrt(one * other)) > 1e-3
        for i, token in enumerate(x):
            if token < k:
                assert found[row][i] == [float(letter == token) for letter in range(k)]
    assert other_means > 10, "the mean of logits is another one"


def test_it_costs_two_evaluations_a_call() -> None:
    k, length = 4, 3
    backbone = LookupBackbone(k, length, seed=6)
    denoiser = Conjoined(masked_model(backbone), DNA)
    x_init = torch.tensor([[4, 4, 4], [0, 4, 1], [1, 2, 3]])
    drawn = FirstHittingSampler().sample(
        denoiser, x_init, generator=torch.Generator().manual_seed(0)
    )
    assert drawn.nfe.tolist() == [6, 2, 0]
    assert sum(backbone.rows_seen) == 8


@pytest.mark.parametrize("padding", [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 1]], ids=str)
def test_padding_stays_where_it_is(padding: list[int]) -> None:
    hidden = torch.tensor([padding]).bool()
    denoiser = Conjoined(masked_model(Neighbours()), (2, 1, 0))
    for x in all_sequences(4, 3):
        row = torch.full((1, 5), 3)
        row[~hidden] = x
        found = denoiser(Inputs(row, padding=hidden))[~hidden]
        # Vectors of the CPU may round the last bit of a number by its place in the row.
        torch.testing.assert_close(found, denoiser(Inputs(x[None]))[0], rtol=1e-14, atol=0)


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_it_can_be_guided(gamma: float) -> None:
    k, length = 2, 4
    world, both = lookup_world(k, length), Conjoined(lookup_world(k, length), PAIR)
    guided = draw(FirstHittingSampler(), ClassifierFree(both, 1, gamma), length)
    assert asymmetry(guided, PAIR) < EXACT
    assert distance(guided, draw(FirstHittingSampler(), both, length)) > 1e-2
    assert asymmetry(draw(FirstHittingSampler(), ClassifierFree(world, 1, gamma), length), PAIR) > (
        1e-2
    )
    calls = ClassifierFree(both, 1, gamma).evaluations(Inputs(torch.full((1, length), k)))
    assert calls.tolist() == [2 if gamma == 1 else 4]


def test_constraints_that_are_their_own_other_strand() -> None:
    """SNW reads WNS on the other strand, so it has no symmetry; RNY reads RNY."""
    rny = torch.tensor([[1, 0, 1, 0], [1, 1, 1, 1], [0, 1, 0, 1]]).bool()
    snw = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1], [1, 0, 0, 1]]).bool()
    both = Conjoined(lookup(4, 3), DNA)
    for allowed, symmetric in ((rny, True), (snw, False)):
        distribution = draw(FirstHittingSampler(), both, 3, allowed=allowed)
        assert all(allowed[i, letter] for x in distribution for i, letter in enumerate(x))
        assert (asymmetry(distribution, DNA) < EXACT) == symmetric


def test_an_equivariant_network_stays_as_it_is() -> None:
    torch.manual_seed(0)
    sizes = {"num_embeddings": 5, "num_logits": 4, "complement": (*DNA, 4), "d_state": 4}
    rows = Inputs(torch.randint(0, 5, (6, 9)))
    for variant, same in (("ps", True), ("ph", False)):
        network = Caduceus(8, 2, variant=variant, **sizes).eval()
        torch.nn.init.normal_(network.embedding.weight)
        denoiser = masked_model(network)
        with torch.no_grad():
            gap = (Conjoined(denoiser, DNA)(rows).exp() - denoiser(rows).exp()).abs().max()
        assert (float(gap) < 1e-5) == same


def small(sampler: Sampler) -> Sampler:
    if isinstance(sampler, SemiAutoregressiveSampler):
        return SemiAutoregressiveSampler(window=2, stride=1)
    if isinstance(sampler, SMCSampler):
        return SMCSampler(reward=lambda x: x.sum(dim=-1) % 2 * 1.0, num_particles=1)
    return type(sampler)(num_steps=2) if isinstance(sampler, GridSampler) else type(sampler)()


class AnyLength(TableBackbone):
    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.tables = torch.nn.ModuleList(LookupBackbone(k, n, seed=4) for n in range(4))

    def logits(self, inputs):
        return self.tables[inputs.tokens.shape[1]](inputs)


@pytest.mark.parametrize("sampler", ALL, ids=lambda s: type(s).__name__)
def test_directed_says_which_samplers_prefer_an_end(sampler: Sampler) -> None:
    length = 3 if isinstance(sampler, SemiAutoregressiveSampler) else 2
    distribution = draw(small(sampler), Conjoined(masked_model(AnyLength(2)), PAIR), length)
    assert (asymmetry(distribution, PAIR) > 1e-3) == sampler.order_dependent
    assert sampler.order_dependent or asymmetry(distribution, PAIR) < EXACT


@pytest.mark.parametrize("complement", [(0, 1, 2), (3, 2, 1, 4), (1, 2, 3, 0), (3, 3, 0, 0)])
def test_what_is_no_involution_raises(complement: Tokens) -> None:
    with pytest.raises(ValueError, match=r"^Conjoined\.complement must be its own inverse on the"):
        Conjoined(lookup(4, 2), complement)
