"""The callback of sequential Monte Carlo receives the actual steps of the sample."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqdiff.samplers import Sampler, SemiAutoregressiveSampler, SMCSampler
from seqdiff.samplers.smc import Swarm
from tests.oracles import LookupBackbone, TableBackbone, masked_model

K, L, ROWS = 3, 5, 40


def reward(tokens: Tensor) -> Tensor:
    return tokens.double().sum(dim=-1)


class Watched(SMCSampler):
    """Records the states of every particle, including those of its ancestors."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.__dict__.update(histories=[], origin=None)

    def _resample(self, swarm, unfinished, step):
        self.__dict__["origin"] = super()._resample(swarm, unfinished, step)
        return self.origin

    def _step(self, swarm, step):
        before = self.histories or [[] for _ in swarm.canvas.x_t]
        super()._step(swarm, step)
        origin = range(len(before)) if step == 0 else self.origin.tolist()
        states = swarm.canvas.x_t.tolist()
        self.histories[:] = [
            [*before[parent], state] for parent, state in zip(origin, states, strict=True)
        ]


class Even(TableBackbone):
    """Predicts a uniform distribution for rows of any length."""

    def logits(self, inputs):
        return torch.zeros((*inputs.tokens.shape, K), dtype=torch.float64)


def told(
    sampler: Sampler, x_init: Tensor, backbone: TableBackbone | None = None
) -> tuple[list[Tensor], Tensor]:
    """The states that the callback receives, from ``x_init`` on, and the samples."""
    states = [x_init]

    def keep(step: int, x_t: Tensor) -> None:
        assert 1 <= step <= len(states)
        states[step:] = [x_t.clone()]

    denoiser = masked_model(backbone or LookupBackbone(K, L, seed=3))
    output = sampler.sample(
        denoiser,
        x_init,
        generator=torch.Generator().manual_seed(1),
        callback=keep,
    )
    return states, output.tokens


def templates() -> Tensor:
    x_init = torch.full((ROWS, L), K)
    x_init[::3, 1] = 2
    x_init[1] = torch.arange(L) % K
    return x_init


def strangers(num_steps: int | None = None) -> int:
    """Rows whose reported states are those of no particle that ended as the sample did."""
    options = {"num_particles": 4, "reward_temperature": 0.3, "ess_threshold": 0.9}
    sampler = Watched(reward=reward, num_steps=num_steps, **options)
    states, tokens = told(sampler, templates())
    assert torch.equal(states[-1], tokens)
    histories = [sampler.histories[4 * row : 4 * row + 4] for row in range(ROWS)]
    found = torch.stack(states[1:], dim=1).tolist()
    pairs = zip(found, histories, tokens.tolist(), strict=True)
    return sum(row not in [h for h in own if h[-1] == end] for row, own, end in pairs)


@pytest.mark.parametrize("num_steps", [None, 3, 1])
def test_the_steps_are_those_of_the_chosen_particle(num_steps: int | None) -> None:
    assert strangers(num_steps) == 0


def test_the_first_particle_is_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin: the callback receives the first particle until the last step."""
    right = Swarm.show

    def first(self: Swarm, particle: Tensor, step: int) -> None:
        right(self, particle if step == L - 1 else torch.zeros_like(particle), step)

    monkeypatch.setattr(Swarm, "show", first)
    assert strangers() > 4


@pytest.mark.parametrize("window", [2, L])
def test_within_windows_steps_follow_on_each_other(window: int) -> None:
    """No symbol changes, each step reveals one, and the start of a window stays."""
    inner = SMCSampler(reward=reward, num_particles=4, reward_temperature=0.3, ess_threshold=0.9)
    sampler = SemiAutoregressiveSampler(window=window, stride=window, inner=inner)
    states, tokens = told(sampler, torch.full((ROWS, L), K), Even(K))
    assert torch.equal(states[-1], tokens) and len(states) == L + 1
    for before, after in pairwise(states):
        changed = before != after
        assert (before[changed] == K).all() and (changed.sum(dim=-1) == 1).all()
