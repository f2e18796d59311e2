"""Nominal and actual reveal rates with a vocabulary of 50,257 symbols.

Zheng et al. 2024, arXiv:2409.02908: a Gumbel-argmax in float32 over all symbols and the mask
truncates the Gumbel's tail. Here it turns a nominal rate of 0.002 per step into 0.00087.

The samplers receive evenly spaced 32-bit words instead of random ones, so that the n positions get
n evenly spaced uniforms and a rate is exact to 1 / n. A loss of 1% is two of 100,000 positions and
is always found, without false alarms. Random words are tested by their tails: with a false-alarm
rate of 1e-6 per assertion, 2,097,152 draws have a power above 0.999 against a rate that is off by a
seventh. ``tests/exact/test_rng.py`` has the known answers of their generator.
"""

import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from seqdiff import rng
from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.samplers import (
    AncestralSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    RemaskConfSampler,
    RemaskLoopSampler,
    RemaskRescaleSampler,
    Sampler,
)
from seqdiff.samplers.draws import SeededDraws
from seqdiff.schedules import Linear
from seqdiff.types import Inputs
from tests.oracles import TableBackbone
from tests.statistics import FALSE_ALARM

K, STEPS = 50_257, 500
NOMINAL = 1 / STEPS
ROWS, LENGTH = 100, 1000
POSITIONS = ROWS * LENGTH
PROCESS = Absorbing(K, Linear())


class Flat(TableBackbone):
    """All symbols are equally likely; no memory is used for the rows of logits."""

    def logits(self, inputs: Inputs) -> Tensor:
        return torch.zeros(1, 1, K).expand(*inputs.tokens.shape, K)


class FlatDenoiser(Denoiser):
    """The normalised distribution, expanded in the same way."""

    def forward(self, inputs: Inputs, where: Tensor | None = None) -> Tensor:
        distribution = torch.full((K,), 1 / K, dtype=torch.float64).log().float()
        return distribution.expand(
            *(inputs.tokens.shape if where is None else (int(where.sum()),)), K
        )


class Stop(Exception):
    """Raised after the first step, the only one that is tested."""


def even_words(counter: tuple[Tensor, ...], key: tuple[int, int]) -> tuple[Tensor, ...]:
    """Replacement of Philox: words that increase evenly along the draws of a call."""
    del key
    count = counter[2].numel()
    words = torch.arange(count) * 2**32 // count
    return words, torch.zeros_like(words), words, torch.zeros_like(words)


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "philox", even_words)


def first_step(sampler: Sampler) -> int:
    """Positions that the first of 500 steps reveals."""
    seen: list[int] = []

    def stop(step: int, x_t: Tensor) -> None:
        seen.append(int((x_t != K).sum()))
        raise Stop

    with pytest.raises(Stop):
        sampler.sample(
            FlatDenoiser(Flat(K), PROCESS),
            PROCESS.blank((ROWS, LENGTH)),
            seeds=torch.arange(ROWS),
            callback=stop,
        )
    return seen[0]


# The loop's first step goes to alpha = 0.9 * NOMINAL / (1 - 0.55). Cached ancestral draws the same
# bits as ancestral. The others reveal by count or by confidence and have no rate. The
# predictor-corrector draws three times, each time to within one position.
SAMPLERS = [
    (AncestralSampler(STEPS), NOMINAL, 1),
    (RemaskCapSampler(STEPS), NOMINAL, 1),
    (RemaskRescaleSampler(STEPS), NOMINAL, 1),
    (RemaskConfSampler(STEPS), NOMINAL, 1),
    (RemaskLoopSampler(STEPS), 2 * NOMINAL, 1),
    (PredictorCorrectorSampler(STEPS), NOMINAL, 3),
]
every = pytest.mark.parametrize(
    ("sampler", "nominal", "slack"),
    SAMPLERS,
    ids=lambda v: "" if isinstance(v, float | int) else type(v).__name__,
)


@every
@pytest.mark.usefixtures("even")
def test_the_reveal_rate_is_nominal(sampler: Sampler, nominal: float, slack: int) -> None:
    assert abs(first_step(sampler) - nominal * POSITIONS) <= slack


def shrunk(self: SeededDraws, where: Tensor) -> Tensor:
    """Broken twin: times never reach 1, which loses 28% of the reveals of the first step."""
    return RIGHT["unmask_times"](self, where) * 0.9994


def lifted(self: SeededDraws, where: Tensor) -> Tensor:
    """Broken twin: times never reach 0."""
    return torch.where(where, 1 - (1 - RIGHT["unmask_times"](self, where)) * 0.9994, 0.0)


def rare(self: SeededDraws, probability: Tensor, where: Tensor, step: int) -> Tensor:
    """Broken twin: coins lose 5% of their heads."""
    return RIGHT["coins"](self, probability * 0.95, where, step)


RIGHT = {"unmask_times": SeededDraws.unmask_times, "coins": SeededDraws.coins}


@every
@pytest.mark.usefixtures("even")
def test_draws_that_lose_reveals_are_found(
    sampler: Sampler, nominal: float, slack: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SeededDraws, "unmask_times", shrunk)
    monkeypatch.setattr(SeededDraws, "coins", rare)
    assert nominal * POSITIONS - first_step(sampler) > slack


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.usefixtures("even")
def test_the_library_in_half_precision_is_found(dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's noise with 11 or 8 bits, which are few near 1, where the first times are.

    Float32 would keep the rate, because the library draws separately when to reveal and which
    symbol.
    """
    right = rng._open_uniform
    monkeypatch.setattr(rng, "_open_uniform", lambda *words: right(*words).to(dtype).double())
    assert abs(first_step(AncestralSampler(STEPS)) - NOMINAL * POSITIONS) > 1


def cells() -> Tensor:
    """Count the evenly spaced times, out of 100,000, in each of 500 steps."""
    where = torch.ones(ROWS, LENGTH, dtype=torch.bool)
    edges = torch.linspace(1, 0, STEPS + 1, dtype=torch.float64)
    found = SeededDraws(torch.arange(ROWS)).unmask_steps(edges, where)
    return found.flatten().bincount(minlength=STEPS + 2)[1:]


@pytest.mark.usefixtures("even")
def test_every_step_reveals_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    right = cells()
    assert (right[:-1] - NOMINAL * POSITIONS).abs().max() <= 1 and right[-1] == 0
    for twin, place in ((shrunk, 0), (lifted, -2)):
        monkeypatch.setattr(SeededDraws, "unmask_times", twin)
        assert cells()[place] < 0.75 * NOMINAL * POSITIONS


# The generator's own words


DRAWS = 1 << 21


def tails() -> dict[str, int]:
    """Count the library's draws beyond a rate of 0.002."""
    draws = SeededDraws(torch.arange(DRAWS // 1024))
    where = torch.ones(DRAWS // 1024, 1024, dtype=torch.bool)
    times = draws.unmask_times(where)
    heads = draws.coins(torch.full(where.shape, NOMINAL, dtype=torch.float64), where, 3)
    counted = {"high": times > 1 - NOMINAL, "low": times <= NOMINAL, "coins": heads}
    return {name: int(found.sum()) for name, found in counted.items()}


@pytest.mark.slow
def test_random_tails_have_their_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    low, high = bounds(DRAWS)
    assert all(low <= count <= high for count in tails().values())
    for rate in (6 / 7 * NOMINAL, 8 / 7 * NOMINAL):
        assert binom.cdf(low - 1, DRAWS, rate) + binom.sf(high, DRAWS, rate) > 0.999
    monkeypatch.setattr(SeededDraws, "unmask_times", shrunk)
    assert tails()["high"] < low
    monkeypatch.setattr(SeededDraws, "unmask_times", lifted)
    assert tails()["low"] < low


def bounds(draws: int) -> tuple[float, float]:
    """Two-sided binomial test at the nominal rate."""
    tail = FALSE_ALARM / 2
    return binom.ppf(tail, draws, NOMINAL), binom.isf(tail, draws, NOMINAL)


def float32_gumbel() -> int:
    """The published error: argmax of p / exponential noise in float32 over the symbols and the
    mask.

    It is simulated, because running it would take five billion draws. All symbols are equally
    likely, so only the largest of their K uniforms matters. Float32 uniforms are multiples of
    2^-24, and floor(2^24 v^(1/K)) has the distribution of the largest of K of them.
    """
    generator = torch.Generator().manual_seed(0)
    v = torch.rand(POSITIONS, dtype=torch.float64, generator=generator)
    largest = ((v ** (1 / K) * 2**24).floor() / 2**24).float()
    mask = torch.rand(POSITIONS, generator=generator)

    def weigh(probability: float, u: Tensor) -> Tensor:
        return torch.tensor(probability) / (1e-10 - (u + 1e-10).log())

    return int((weigh(NOMINAL / K, largest) >= weigh(1 - NOMINAL, mask)).sum())


def test_float32_draws_over_all_letters_fail() -> None:
    """Their rate, .00087, is found to be too low with a power above 0.999."""
    low, _ = bounds(POSITIONS)
    count = float32_gumbel()
    assert count < low
    assert count / POSITIONS == pytest.approx(0.00087, abs=4e-4)
    assert binom.cdf(low - 1, POSITIONS, 0.00087) > 0.999
