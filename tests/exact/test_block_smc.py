"""Sequential Monte Carlo for block diffusion: the exact measure of its particles, and its rules."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser import Denoiser
from seqdiff.samplers import (
    BlockClassifierFree,
    BlockSampler,
    FirstHittingSampler,
    SMCSampler,
    WordAutomaton,
)
from seqdiff.samplers.block import Growth
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.draws import SeededDraws
from seqdiff.samplers.smc import Swarm
from tests.block_distributions import by_blocks
from tests.block_worlds import BlockLookup, LabelledBlocks, block_denoiser
from tests.enumeration import Distribution, distance, outcomes
from tests.exact.test_smc import Ledger, SameLetters, measure, reward

K, EXACT = 2, 1e-10


def unfinished(tokens: Tensor) -> Tensor:
    """Any guess of the reward: it has another value for each unfinished row."""
    assert (tokens == K).any(dim=-1).all(), "a finished row"
    return (tokens.double() * torch.tensor([1.1, 0.6, 0.4, 0.2])[: tokens.shape[1]]).sum(dim=-1)


def tilted(base: Distribution) -> Distribution:
    return {x: chance * float(reward(torch.tensor([x])).exp()) for x, chance in base.items()}


def build(**options) -> SMCSampler:
    given = {"num_particles": 2, "ess_threshold": 1.0, "resampling": "multinomial"}
    return SMCSampler(reward=reward, **(given | options))


CASES = {
    "drafts": (1, (K, K), {}),
    "two drafts": (1, (K, K), {"num_drafts": 2}),
    "guesses": (1, (K, K), {"unfinished_reward": unfinished}),
    "three blocks": (1, (K, K, K), {"unfinished_reward": unfinished, "ess_threshold": 0.9}),
    "never": (1, (K, K, K), {"ess_threshold": 0.0}),
    "blocks of two": (2, (K, K, K), {"unfinished_reward": unfinished}),
    "a template": (1, (K, 1, K, K), {"unfinished_reward": unfinished}),
    "in steps": (2, (K, K, K), {"unfinished_reward": unfinished, "num_steps": 1}),
}


SLOW = {"two drafts", "three blocks", "in steps"}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CASES]
)
def test_the_measure_is_unbiased_for_every_number_of_particles(name: str) -> None:
    """E[Z-hat sum_n W_n 1(x_n = x)] = p(x) exp(reward(x)), for every x."""
    size, start, options = CASES[name]
    model, x_init = block_denoiser(BlockLookup(K, len(start), seed=3), size), torch.tensor(start)
    inner = FirstHittingSampler(options.get("num_steps"))
    base = outcomes(BlockSampler(inner), model, x_init).distribution
    if inner.num_steps is None:
        assert distance(base, by_blocks(model, inner, start)) < EXACT
    right = tilted(base)
    found, distribution = measure(build(**options), model, x_init)
    assert distance(found, right) < EXACT
    total = sum(right.values())
    target = {x: mass / total for x, mass in right.items()}
    assert 1e-2 < distance(distribution, target) < distance(base, target)


def test_one_particle_is_the_block_sampler() -> None:
    model, x_init = block_denoiser(BlockLookup(K, 3, seed=3), 2), torch.full((3,), K)
    base = outcomes(BlockSampler(), model, x_init).distribution
    found, distribution = measure(
        build(num_particles=1, unfinished_reward=unfinished), model, x_init
    )
    assert distance(distribution, base) < EXACT and distance(found, tilted(base)) < EXACT


def test_broken_twins_of_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x_init = block_denoiser(BlockLookup(K, 3, seed=3), 1), torch.full((3,), K)
    right = tilted(outcomes(BlockSampler(), model, x_init).distribution)

    def gap(owner: type, name: str, broken) -> float:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, broken)
            sampler = build(unfinished_reward=unfinished)
            return distance(measure(sampler, model, x_init)[0], right)

    def keeps_its_prefix(growth, origin):
        """The blocks that a particle is given are not those of its ancestor."""

    def keeps_the_guess(swarm, which, worth):
        swarm.weights.log_weights = swarm.weights.log_weights + torch.where(
            which, swarm.worth.masked_scatter(which, worth), 0.0
        ).view_as(swarm.weights.log_weights)

    assert gap(Growth, "follow", keeps_its_prefix) > 1e-2
    assert gap(Swarm, "weigh", keeps_the_guess) > 1e-2


@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_guidance_by_a_condition_and_by_a_reward_compose(gamma: float) -> None:
    model = block_denoiser(LabelledBlocks(K, 2), 1)
    guided = BlockClassifierFree(model, 1, gamma)
    x_init = torch.full((2,), K)
    base = outcomes(BlockSampler(), guided, x_init).distribution
    found, _ = measure(build(unfinished_reward=unfinished), guided, x_init)
    assert distance(found, tilted(base)) < EXACT
    plain = outcomes(BlockSampler(), model, x_init).distribution
    assert distance(found, tilted(plain)) > 1e-2


def test_words_to_avoid_and_a_reward_compose() -> None:
    """The measure is that of the sampler that avoids the words; states follow the ancestors."""
    model, x_init = block_denoiser(BlockLookup(K, 3, seed=3), 1), torch.full((3,), K)
    avoid = WordAutomaton.build([[{1}, {1}]], K)
    base = outcomes(BlockSampler(), model, x_init, avoid=avoid).distribution
    assert not any((1, 1) in pairwise(x) for x in base)
    found, _ = measure(build(unfinished_reward=unfinished), model, x_init, avoid=avoid)
    assert distance(found, tilted(base)) < EXACT


# With seeds


def rows(model: Denoiser, length: int = 6) -> Tensor:
    x_init = model.process.blank((5, length))
    x_init[1, 0], x_init[2, 3:], x_init[3, 1:4] = 1, 0, 1
    x_init[4] = torch.arange(length) % K
    return x_init


WORLD = block_denoiser(BlockLookup(K, 6, seed=5), 2)
GUESSES = [None, lambda tokens: 0.5 * tokens.double().sum(dim=-1)]
each_guess = pytest.mark.parametrize("guess", GUESSES, ids=["drafts", "guesses"])


@each_guess
@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_rows_do_not_depend_on_their_batch(resampling: str, guess) -> None:
    sampler = build(num_particles=6, resampling=resampling, unfinished_reward=guess)
    x_init, seeds = rows(WORLD), torch.arange(5) * 7
    whole = sampler.sample(WORLD, x_init, seeds=seeds)
    assert torch.equal(whole.tokens[x_init < K], x_init[x_init < K])
    for row in range(len(x_init)):
        one = slice(row, row + 1)
        alone = sampler.sample(WORLD, x_init[one], seeds=seeds[one])
        assert torch.equal(alone.tokens[0], whole.tokens[row])


@pytest.mark.slow
def test_the_normaliser_is_unbiased_with_systematic_resampling() -> None:
    """The mean of 1,000 estimates lies within 5 standard errors; their geometric mean does not."""
    model, length = block_denoiser(BlockLookup(K, 4, seed=3), 2), 4
    start = torch.full((length,), K)
    right = sum(tilted(by_blocks(model, FirstHittingSampler(), (K,) * length)).values())
    for options in ({}, {"unfinished_reward": unfinished}):
        sampler = build(num_particles=4, resampling="systematic", ess_threshold=0.8, **options)
        canvas = Canvas.open(model, SeededDraws(torch.arange(1000)), start.expand(1000, -1))
        with torch.no_grad():
            found = sampler.particles(canvas)
        estimates = found.log_normalizer.exp()
        error = float(estimates.std() / 1000**0.5)
        assert abs(float(estimates.mean()) - right) < 5 * error < 0.2 * right
        assert abs(float(found.log_normalizer.mean().exp()) - right) > 5 * error


@each_guess
def test_no_noise_is_used_twice(guess) -> None:
    sampler = build(num_particles=8, unfinished_reward=guess)
    for cls, repeats in ((Ledger, False), (SameLetters, True)):
        draws = cls(torch.arange(4))
        sampler.particles(Canvas.open(WORLD, draws, torch.full((4, 6), K)))
        assert len(draws.used) > 4 * 8 * 6
        assert (max(draws.used.values()) > 1) == repeats


def test_evaluations_count_particles_and_drafts() -> None:
    """Six tokens and two finished blocks that are read, for each particle and each draft."""
    start = torch.full((1, 6), K)
    for options, copies in (({}, 5), ({"num_drafts": 3}, 7), ({"ess_threshold": 0.0}, 4)):
        sampler = build(num_particles=4, **options)
        assert int(sampler.sample(WORLD, start, seeds=torch.arange(1)).nfe) == copies * (6 + 2)
    one = block_denoiser(BlockLookup(K, 6, seed=5), 6)
    found = build(num_particles=4).sample(one, start, seeds=torch.arange(1))
    assert int(found.nfe) == 4 * 6, "no drafts for a single block"


@each_guess
def test_the_steps_are_those_of_the_sample(guess) -> None:
    x_init = rows(WORLD)
    states = [x_init]

    def keep(step: int, x_t: Tensor) -> None:
        assert 1 <= step <= len(states)
        states[step:] = [x_t.clone()]

    sampler = build(num_particles=6, unfinished_reward=guess)
    found = sampler.sample(WORLD, x_init, seeds=torch.arange(5), callback=keep)
    assert torch.equal(states[-1], found.tokens)
    for before, after in pairwise(states):
        changed = before != after
        assert (before[changed] == K).all() and (changed.sum(dim=-1) <= 1).all()
        block = changed.nonzero()[:, 1] // 2
        assert all((after[:, : 2 * b] != K).all() for b in block.tolist()), "block by block"


def test_an_unfinished_reward_that_is_none_raises() -> None:
    def fails(tokens: Tensor) -> Tensor:
        if (tokens == K).any():
            raise IndexError("no symbol 2")
        return reward(tokens)

    message = r"^SMCSampler\.unfinished_reward must take ids \[n, L\] .* got IndexError from .*: no"
    with pytest.raises(ValueError, match=message):
        build(unfinished_reward=fails).sample(WORLD, rows(WORLD), seeds=torch.arange(5))
    with pytest.raises(ValueError, match=r"SMCSampler\.unfinished_reward must be a function .* 3"):
        sampler = object.__new__(SMCSampler)
        for name, value in {**vars(build()), "unfinished_reward": 3}.items():
            object.__setattr__(sampler, name, value)
        sampler.__post_init__()
