"""Sequential Monte Carlo: the exact measure of its particles, over every outcome."""

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.samplers import FirstHittingSampler, Particles, SMCSampler, WordAutomaton
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.draws import SeededDraws
from seqdiff.samplers.smc import Swarm, Weights, systematic
from tests.enumeration import Distribution, distance, outcomes
from tests.oracles import LookupBackbone, masked_model

EXACT = 1e-10


def reward(tokens: Tensor) -> Tensor:
    tokens = tokens.double()
    return 1.5 * tokens.sum(dim=-1) * tokens[:, 0] - tokens[:, 1]


def world(k: int, length: int) -> tuple[Denoiser, Tensor]:
    return masked_model(LookupBackbone(k, length, seed=3)), torch.full((length,), k)


def tilted(distribution: Distribution, temperature: float) -> Distribution:
    """p(x) exp(reward(x) / temperature), not normalised."""
    return {
        x: chance * float((reward(torch.tensor([x])) / temperature).exp())
        for x, chance in distribution.items()
    }


def measure(
    sampler: SMCSampler, denoiser: Denoiser, x_init: Tensor, **more: WordAutomaton
) -> tuple[Distribution, Distribution]:
    """Return the mean unnormalised measure of the particles, and the sample's distribution."""
    seen: list[Particles] = []

    class Recorded(type(sampler)):
        def fill(self, canvas: Canvas) -> None:
            seen.append(self.particles(canvas))

    options = {f.name: getattr(sampler, f.name) for f in dataclasses.fields(sampler)}
    found = outcomes(Recorded(**options), denoiser, x_init, **more)
    total: Distribution = {}
    tokens, shares = torch.cat([p.tokens for p in seen]), torch.cat([p.log_weights for p in seen])
    normalizer = torch.cat([p.log_normalizer for p in seen]).exp()
    masses = shares.exp() * (normalizer * found.probability)[:, None]
    for x, mass in zip(tokens.flatten(0, 1).tolist(), masses.flatten().tolist(), strict=True):
        total[tuple(x)] = total.get(tuple(x), 0.0) + mass
    return total, found.distribution


CASES = {
    "always": (2, 2, {"ess_threshold": 1.0}),
    "sometimes": (2, 2, {"ess_threshold": 0.7}),
    "never": (2, 2, {"ess_threshold": 0.0}),
    "three letters": (3, 2, {"ess_threshold": 1.0}),
    "drafts": (2, 2, {"ess_threshold": 1.0, "num_drafts": 2}),
    "temperatures": (2, 2, {"ess_threshold": 1.0, "temperature": 2.0, "reward_temperature": 0.5}),
    "in steps": (2, 3, {"ess_threshold": 1.0, "num_steps": 2}),
}


def build(options: dict[str, float]) -> SMCSampler:
    return SMCSampler(reward=reward, num_particles=2, resampling="multinomial", **options)


@pytest.mark.parametrize("name", CASES)
def test_the_measure_is_unbiased_for_every_number_of_particles(name: str) -> None:
    """E[Z-hat sum_n W_n 1(x_n = x)] = p(x) exp(reward(x) / temperature), for every x."""
    k, length, options = CASES[name]
    base = FirstHittingSampler(
        options.get("num_steps"), temperature=options.get("temperature", 1.0)
    )
    right = tilted(
        outcomes(base, *world(k, length)).distribution, options.get("reward_temperature", 1.0)
    )
    found, distribution = measure(build(options), *world(k, length))
    assert distance(found, right) < EXACT
    normalizer = sum(right.values())
    target = {x: mass / normalizer for x, mass in right.items()}
    gap, untilted = (
        distance(distribution, target),
        distance(outcomes(base, *world(k, length)).distribution, target),
    )
    assert 1e-2 < gap < untilted, "two particles are nearer than one, but not there"


def test_one_particle_is_first_hitting() -> None:
    found, distribution = measure(SMCSampler(reward=reward, num_particles=1), *world(3, 2))
    base = outcomes(FirstHittingSampler(), *world(3, 2)).distribution
    assert distance(distribution, base) < EXACT
    assert distance(found, tilted(base, 1.0)) < EXACT


def keeps_weights(self: Weights, rows: Tensor) -> None:
    self.log_normalizer = torch.where(rows, self.total, self.log_normalizer)


def forgets_the_mean(self: Weights, rows: Tensor) -> None:
    self.log_weights = self.log_weights.masked_fill(rows[:, None], 0.0)


def test_broken_twins_of_the_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    k, length, options = CASES["always"]
    right = tilted(outcomes(FirstHittingSampler(), *world(k, length)).distribution, 1.0)

    def gap(**patches) -> float:
        with monkeypatch.context() as patched:
            for name, value in patches.items():
                patched.setattr(Swarm if name == "weigh" else Weights, name, value)
            return distance(measure(build(options), *world(k, length))[0], right)

    def without_division(swarm, which, worth):
        swarm.worth[which] = worth
        gain = swarm.worth.view_as(swarm.weights.log_weights)
        swarm.weights.log_weights = swarm.weights.log_weights + gain

    def no_weights(swarm, which, worth):
        swarm.worth[which] = worth

    assert gap() < EXACT
    assert gap(settle=keeps_weights) > 1e-2
    assert gap(settle=forgets_the_mean) > 1e-2
    assert gap(weigh=without_division) > 1e-2
    assert gap(weigh=no_weights) > 1e-2


def test_particles_cost_what_they_say_and_rows_end_on_their_own() -> None:
    denoiser, _ = world(2, 3)
    x_init = torch.tensor([[2, 2, 2], [0, 2, 1], [1, 0, 1]])
    drafted: list[int] = []

    def counted(tokens: Tensor) -> Tensor:
        drafted.append(len(tokens))
        assert (tokens < 2).all(), "a reward of a row that still has masks"
        return reward(tokens)

    sampler = SMCSampler(reward=counted, num_particles=5, num_drafts=2)
    canvas = Canvas.open(denoiser, SeededDraws(torch.arange(3)), x_init)
    found = sampler.particles(canvas)
    assert canvas.nfe.tolist() == [15, 5, 0]
    assert drafted == [2, 5, 5, 5, 5, 15], "a trial, two drafts at each of two steps, and the ends"
    assert found.tokens.shape == (3, 5, 3)
    assert (found.tokens[1, :, [0, 2]] == torch.tensor([0, 1])).all()
    torch.testing.assert_close(found.log_weights.exp().sum(dim=-1), torch.ones(3).double())
    alone = reward(x_init[2:])
    torch.testing.assert_close(found.log_normalizer[2:], alone)


@dataclass(frozen=True)
class Ledger(SeededDraws):
    """Records every use of noise except for drafts, which share theirs by design."""

    used: Counter = field(default_factory=Counter)

    def _uniform(self, where: Tensor, kind: int, step: int = 0) -> Tensor:
        for row, position in where.nonzero().tolist():
            self.used[int(self.seeds[row]), position + self.offset, kind, step] += 1
        return super()._uniform(where, kind, step)

    def repeated(self, count: int) -> SeededDraws:
        return SeededDraws(super().repeated(count).seeds, self.offset)


class SameLetters(Ledger):
    """Broken twin: a symbol that is redrawn gets the same noise again."""

    def tokens(self, log_probs: Tensor, where: Tensor, step: int) -> Tensor:
        return super().tokens(log_probs, where, 0)


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
def test_no_noise_is_used_twice(resampling: str) -> None:
    denoiser, start = world(2, 6)
    sampler = SMCSampler(reward=reward, ess_threshold=1.0, resampling=resampling)
    for cls, repeats in ((Ledger, False), (SameLetters, True)):
        draws = cls(torch.arange(10))
        sampler.particles(Canvas.open(denoiser, draws, start.expand(10, -1)))
        assert len(draws.used) > 10 * 16 * 6
        assert (max(draws.used.values()) > 1) == repeats


# Weights


def test_systematic_takes_each_particle_its_share_on_average_and_almost_surely() -> None:
    """Counts are constant between breakpoints of the start, so their mean is an exact sum."""
    generator = torch.Generator().manual_seed(0)
    count = 7
    for _ in range(20):
        noise = torch.randn(1, count, dtype=torch.float64, generator=generator)
        shares = (3 * noise).log_softmax(dim=-1)
        edges = (count * shares.exp().cumsum(dim=-1)[0]).frac().sort().values
        edges = torch.cat((torch.zeros(1).double(), edges, torch.ones(1).double()))
        starts, widths = (edges[1:] + edges[:-1]) / 2, edges.diff()
        chosen = systematic(shares.expand(len(starts), -1), starts)
        counts = torch.nn.functional.one_hot(chosen, count).sum(dim=1).double()
        expected = count * shares.exp()[0]
        mean = (widths[:, None] * counts).sum(dim=0)
        torch.testing.assert_close(mean, expected, atol=EXACT, rtol=0)
        assert ((counts - expected).abs()[widths > 1e-9] < 1 + 1e-9).all()
        twin = systematic(shares.expand(len(starts), -1), torch.full_like(starts, 0.5))
        fixed = torch.nn.functional.one_hot(twin, count).sum(dim=1).double()
        assert not torch.allclose((widths[:, None] * fixed).sum(dim=0), expected, atol=1e-3)


def test_effective_size_and_normalizer() -> None:
    raw = torch.tensor([[1, 1, 1, 1], [3, 1, 0, 0], [1e-300, 0, 0, 0]], dtype=torch.float64)
    weights = Weights(raw.log(), torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64))
    assert weights.effective_size.tolist() == pytest.approx([4.0, 16 / 10, 1.0])
    assert weights.total[1].item() == pytest.approx(2.0 + float(torch.tensor(1.0).log()))
    weights.settle(torch.tensor([False, True, False]))
    assert weights.log_weights[1].tolist() == [0, 0, 0, 0] and weights.log_normalizer[0] == 0
    assert weights.total[1].item() == pytest.approx(2.0)
    assert weights.normalised[0].exp().tolist() == pytest.approx([0.25] * 4)


# Errors


def unchecked(**options: object) -> None:
    """Check options without the shape checker, which would find the errors first."""
    sampler = object.__new__(SMCSampler)
    for name, value in {**dataclasses.asdict(SMCSampler(reward=reward)), **options}.items():
        object.__setattr__(sampler, name, value)
    sampler.__post_init__()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_particles": 0}, r"^SMCSampler\.num_particles must be at least 1, got 0"),
        ({"num_particles": 2.5}, r"^SMCSampler\.num_particles must be an integer, got 2\.5"),
        ({"num_drafts": 0}, r"^SMCSampler\.num_drafts must be at least 1, got 0"),
        ({"reward": 3}, r"^SMCSampler\.reward must be a function of ids \[n, L\], got 3; give one"),
        ({"reward_temperature": math.nan}, r"^SMCSampler\.reward_temperature must .*, got nan"),
        ({"reward_temperature": math.inf}, r"^SMCSampler\.reward_temperature must .*, got inf"),
        ({"reward_temperature": 0.0}, r"^SMCSampler\.reward_temperature must be above 0 and fini"),
        ({"ess_threshold": 1.1}, r"^SMCSampler\.ess_threshold must be in \[0, 1\], got 1\.1"),
        ({"temperature": -1.0}, r"^SMCSampler\.temperature must be above 0"),
    ],
)
def test_bad_options(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        unchecked(**options)
