"""Noise never draws reserved symbols: it equals the process on the other symbols."""

import pytest
import torch

from seqdiff.denoiser.discrete import tweedie
from seqdiff.parameterization import distribution_from_scores, scores_from_distribution
from seqdiff.process import Hybrid, Uniform
from seqdiff.schedules import Cosine, Geometric

# Symbol 1 of 4 is reserved; the others are symbols 0, 1 and 2 of the smaller process.
LEFT = [0, 2, 3]
PAIRS = [
    (Uniform(4, Cosine(), reserved=(1,)), Uniform(3, Cosine())),
    (Uniform(4, Geometric(0.05, 1.0), reserved=(1,)), Uniform(3, Geometric(0.05, 1.0))),
    (Hybrid(4, 0.3, reserved=(1,)), Hybrid(3, 0.3)),
]
S, T = 0.3, 0.7


def small(process: Uniform | Hybrid) -> list[int]:
    """The states of the larger process that the smaller one has."""
    return LEFT if isinstance(process, Uniform) else [*LEFT, 4]


@pytest.mark.parametrize(("process", "smaller"), PAIRS, ids=lambda part: part.name)
def test_it_is_the_process_on_the_other_symbols(process, smaller) -> None:
    states = small(process)
    times = torch.full((smaller.states,), T, dtype=torch.float64)
    earlier = torch.full_like(times, S)
    z, z_small = torch.tensor(states), torch.arange(smaller.states)
    weights = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    distribution_small = weights.log().expand(smaller.states, -1)
    distribution = torch.full((smaller.states, 4), -torch.inf, dtype=torch.float64)
    distribution[:, LEFT] = distribution_small
    for found, wanted in (
        (
            process.log_marginal(distribution, times),
            smaller.log_marginal(distribution_small, times),
        ),
        (process.log_step(z, earlier, times), smaller.log_step(z_small, earlier, times)),
        (process.log_forward(z, earlier, times), smaller.log_forward(z_small, earlier, times)),
        (
            process.log_posterior(distribution, z, earlier, times),
            smaller.log_posterior(distribution_small, z_small, earlier, times),
        ),
        (process.log_prior()[None], smaller.log_prior()[None]),
        (
            scores_from_distribution(distribution, z, times, process),
            scores_from_distribution(distribution_small, z_small, times, smaller),
        ),
    ):
        assert torch.allclose(found[:, states].exp(), wanted.exp(), atol=1e-12)
    rates, wanted = process.rate_into(z, times), smaller.rate_into(z_small, times)
    assert torch.allclose(rates, wanted, rtol=1e-12)
    assert float(process.rate_into(torch.tensor([1]), times[:1])) == 0.0
    for one in (process.log_marginal(distribution, times), process.log_prior()[None]):
        assert bool((one[:, 1] == -torch.inf).all())
    assert torch.allclose(process.prior_kl(z[:3]), smaller.prior_kl(z_small[:3]), atol=1e-12)
    draws = torch.rand(200, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    drawn = process.corrupt(torch.zeros(200, 50).long(), torch.full((200,), 0.9), noise=draws)
    assert set(drawn.flatten().tolist()) == set(states), "the broken twin draws the reserved one"
    scores = scores_from_distribution(distribution, z, times, process)
    again = distribution_from_scores(scores, z, times, process).exp()
    assert torch.allclose(again, distribution.exp(), atol=1e-9)
    back = tweedie(scores, z, earlier, times, process)
    forth = tweedie(scores[:, states], z_small, earlier, times, smaller)
    assert torch.allclose(back[:, states].exp(), forth.exp(), atol=1e-12)


@pytest.mark.parametrize("reserved", [(4,), (-1,), (0, 0), (0, 1, 2, 3)])
def test_reserved_symbols_are_some_of_the_symbols(reserved: tuple[int, ...]) -> None:
    for process in (Uniform, Hybrid):
        with pytest.raises(
            ValueError, match=f"{process.__name__}.reserved must hold different ids"
        ):
            process(4, reserved=reserved)
