"""Rewards of -inf: excluded sequences are never drawn, and the measure stays unbiased."""

import math

import pytest
import torch
from torch import Tensor

from seqdiff.samplers import FirstHittingSampler, SMCSampler
from seqdiff.samplers.smc import Swarm
from tests.enumeration import distance, outcomes
from tests.exact.test_smc import EXACT, measure, reward, world

FORBIDDEN = (1, 0)


def forbidding(tokens: Tensor) -> Tensor:
    """The reward of the other tests, with -inf for 1 followed by 0."""
    never = ((tokens[:, :-1] == 1) & (tokens[:, 1:] == 0)).any(dim=-1)
    return reward(tokens).masked_fill(never, -math.inf)


def only_one(tokens: Tensor) -> Tensor:
    """A single sequence is possible, so whole rows of drafts often are not."""
    return torch.where((tokens == 1).all(dim=-1), 0.0, -math.inf).double()


def bury(self, weights) -> None:
    """Give rows without a living particle weight 0 instead of raising an error."""
    extinct = weights.log_weights.isneginf().all(dim=-1)
    weights.log_weights = weights.log_weights.masked_fill(extinct[:, None], 0.0)
    weights.log_normalizer = weights.log_normalizer.masked_fill(extinct, -math.inf)


@pytest.mark.parametrize("bad", [forbidding, only_one])
@pytest.mark.parametrize("drafts", [1, 2])
@pytest.mark.parametrize("resampling", [0.0, 1.0])
def test_the_measure_is_unbiased(monkeypatch, bad, drafts: int, resampling: float) -> None:
    """E[Z-hat sum_n W_n 1(x_n = x)] = p(x) exp(reward(x)), which is 0 where forbidden."""
    monkeypatch.setattr(SMCSampler, "_refuse_extinct", bury)
    k, length = 2, 2
    base = outcomes(FirstHittingSampler(), *world(k, length)).distribution
    right = {x: p * float(bad(torch.tensor([x])).exp()) for x, p in base.items()}
    sampler = SMCSampler(
        reward=bad,
        num_particles=2,
        num_drafts=drafts,
        ess_threshold=resampling,
        resampling="multinomial",
    )
    found, _ = measure(sampler, *world(k, length))
    assert found.get(FORBIDDEN, 0.0) == 0
    assert distance(found, right) < EXACT


def unspared(self, worth: Tensor, before: Tensor) -> Tensor:
    """Broken twin: an impossible draft kills its particle, although it could have ended well."""
    return worth


def stays_dead(swarm, which: Tensor, worth: Tensor) -> None:
    before = swarm.worth.clone()
    swarm.worth[which] = worth
    gain = torch.where(before.isneginf(), -math.inf, swarm.worth - before)
    swarm.weights.log_weights = swarm.weights.log_weights + gain.view_as(swarm.weights.log_weights)


def test_particles_that_are_not_spared_would_be_found(monkeypatch) -> None:
    monkeypatch.setattr(SMCSampler, "_spare", unspared)
    monkeypatch.setattr(Swarm, "weigh", stays_dead)
    with pytest.raises(AssertionError):
        test_the_measure_is_unbiased(monkeypatch, only_one, 1, 0.0)


def test_what_is_forbidden_never_comes() -> None:
    denoiser, start = world(2, 3)
    x_init = start.expand(200, -1)
    sampler = SMCSampler(reward=forbidding, num_particles=32)
    drawn = sampler.sample(denoiser, x_init, seeds=torch.arange(200))
    assert forbidding(drawn.tokens).isfinite().all()
    free = FirstHittingSampler().sample(denoiser, x_init, seeds=torch.arange(200))
    assert not forbidding(free.tokens).isfinite().all()
