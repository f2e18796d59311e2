"""An equivariant model gives both strands of a sequence the same likelihood, to 1e-5 nats."""

import itertools

import numpy as np
import pytest
import torch

from genomics.sequence.alphabet import MASK_ID, reverse_complement
from seqdiff.backbones import Caduceus
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.likelihood import (
    BernoulliTime,
    Estimator,
    FixedOrder,
    ImportanceWeightedOrders,
    Likelihood,
    RandomOrderChain,
    StratifiedK,
    evaluate,
)
from seqdiff.types import Batch, Inputs
from tests.oracles import masked_model

LENGTH = 12


def denoiser(variant: str) -> Denoiser:
    """Weights large enough that the strands of a plain network differ by far more than 1e-5."""
    torch.manual_seed(3)
    network = Caduceus(
        16,
        2,
        num_embeddings=5,
        num_logits=4,
        complement=(3, 2, 1, 0, 4),
        variant="ps" if variant == "ps" else "ph",
        d_state=4,
        backend="reference",
    )
    with torch.no_grad():
        network.embedding.weight.mul_(20)
    return masked_model(network).eval()


def strands(length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    ids = np.random.default_rng(5).integers(0, 4, (6, length))
    ids[0, 3] = MASK_ID
    return torch.from_numpy(ids), torch.from_numpy(reverse_complement(ids).copy())


def score(
    model: Denoiser, tokens: torch.Tensor, estimator: Estimator, *, mirrored: bool = False
) -> Likelihood:
    against = torch.full((len(tokens),), mirrored)
    batch = Batch(tokens, tokens != MASK_ID, torch.arange(len(tokens)), mirrored=against)
    return evaluate(model, [batch], estimator=estimator)


def exact_bound(model: Denoiser, tokens: torch.Tensor) -> torch.Tensor:
    """The bound over every set of masked positions, without sampling."""
    rows, length = tokens.shape
    total = torch.zeros(rows, dtype=torch.float64)
    for k in range(1, length + 1):
        subsets = list(itertools.combinations(range(length), k))
        for hidden in subsets:
            x_t = tokens.clone()
            x_t[:, list(hidden)] = MASK_ID
            at_x0 = model.log_probs(Inputs(x_t)).gather(-1, tokens[..., None])[..., 0]
            total -= at_x0[:, list(hidden)].double().sum(dim=-1) / k / len(subsets)
    return total


@torch.no_grad()
def bounds(variant: str) -> tuple[torch.Tensor, torch.Tensor]:
    model = denoiser(variant)
    forward, backward = (tokens[1:] for tokens in strands(6))
    return exact_bound(model, forward), exact_bound(model, backward)


def orders(variant: str) -> tuple[np.ndarray, np.ndarray]:
    """One strand in some order, and the other in the mirrored order."""
    model = denoiser(variant)
    order = np.random.default_rng(1).permutation(LENGTH).tolist()
    mirrored = [LENGTH - 1 - place for place in order]
    forward, backward = strands()
    return (
        score(model, forward, FixedOrder(order)).nats,
        score(model, backward, FixedOrder(mirrored)).nats,
    )


def test_the_exact_bound_is_the_same_on_both_strands() -> None:
    forward, backward = bounds("ps")
    torch.testing.assert_close(forward, backward, rtol=0, atol=1e-5)
    forward, backward = bounds("ph")
    assert (forward - backward).abs().max() > 1e-2, "a plain network must not pass"


def test_the_likelihood_of_an_order_is_that_of_the_mirrored_order_on_the_other_strand() -> None:
    forward, backward = orders("ps")
    np.testing.assert_allclose(forward, backward, rtol=0, atol=1e-5)
    assert forward.std() > 0.1
    forward, backward = orders("ph")
    assert np.abs(forward - backward).max() > 1e-2, "a plain network must not pass"


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator",
    [BernoulliTime(8), StratifiedK(8), RandomOrderChain(2), ImportanceWeightedOrders(2)],
    ids=str,
)
def test_mirrored_noise_gives_the_same_estimate(estimator: Estimator) -> None:
    model = denoiser("ps")
    forward, backward = strands()
    first = score(model, forward, estimator)
    independent = score(model, backward, estimator)
    second = score(model, backward, estimator, mirrored=True)
    np.testing.assert_allclose(first.nats, second.nats, rtol=0, atol=1e-5)
    np.testing.assert_allclose(first.standard_error, second.standard_error, rtol=0, atol=1e-5)
    assert np.abs(first.nats - independent.nats).max() > 1e-3, "the noise does matter"
