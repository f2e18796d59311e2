"""The error of sequential Monte Carlo falls as one over the number of particles."""

import math

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.samplers import Particles, SMCSampler
from seqdiff.samplers.canvas import Canvas
from seqdiff.samplers.draws import SeededDraws
from tests import distributions
from tests.oracles import LookupBackbone, UniformBackbone, all_sequences, masked_model

pytestmark = pytest.mark.slow

# Two-sided: a standard normal exceeds this with probability 1e-6.
Z_ALARM = 4.9
K, L = 2, 3


def reward(tokens: Tensor) -> Tensor:
    tokens = tokens.double()
    return 1.5 * tokens.sum(dim=-1) * tokens[:, 0] - tokens[:, 1]


def run(sampler: SMCSampler, denoiser: Denoiser, rows: int, length: int, seed: int) -> Particles:
    draws = SeededDraws(torch.arange(rows) + seed * 2**32)
    canvas = Canvas.open(denoiser, draws, torch.full((rows, length), K))
    return sampler.particles(canvas)


def tilted_distribution(denoiser: Denoiser) -> tuple[Tensor, float]:
    """Enumerate the tilted distribution over K^L and its normalising constant."""
    base = distributions.random_order((K,) * L, distributions.table(denoiser, K, L), K)
    sequences = all_sequences(K, L)
    chances = torch.tensor([base[tuple(x)] for x in sequences.tolist()], dtype=torch.float64)
    masses = chances * reward(sequences).exp()
    return masses / masses.sum(), float(masses.sum())


def distribution_of(found: Particles) -> Tensor:
    """Weighted distribution over K^L of each row: ``[rows, K^L]``."""
    codes = (found.tokens * K ** torch.arange(L - 1, -1, -1)).sum(dim=-1)
    distribution = torch.zeros(len(codes), K**L, dtype=torch.float64)
    return distribution.scatter_add_(1, codes, found.log_weights.exp())


def bias_at_the_mode(count: int, rows: int, **options: object) -> tuple[float, float]:
    """Target minus mean at the most likely sequence, and its standard error."""
    denoiser = masked_model(LookupBackbone(K, L, seed=3))
    target, _ = tilted_distribution(denoiser)
    mode = int(target.argmax())
    sampler = SMCSampler(reward=reward, num_particles=count, **options)
    shares = distribution_of(run(sampler, denoiser, rows, L, count))[:, mode]
    return float(target[mode] - shares.mean()), float(shares.std() / math.sqrt(rows))


def fit(rows: int, **options: object) -> tuple[float, float, float]:
    """Slope of log bias over log N at N = 4, 8, 16, its standard error, and the bias at 16."""
    xs, ys, errors = [], [], []
    for count in (4, 8, 16):
        bias, error = bias_at_the_mode(count, rows, **options)
        assert bias > Z_ALARM * error, "seen clearly, so the logarithm is safe"
        xs.append(math.log(count))
        ys.append(math.log(bias))
        errors.append(error / bias)
    mean = sum(xs) / 3
    spread = sum((x - mean) ** 2 for x in xs)
    slope = sum((x - mean) * y for x, y in zip(xs, ys, strict=True)) / spread
    error = math.sqrt(sum(((x - mean) * e) ** 2 for x, e in zip(xs, errors, strict=True))) / spread
    return slope, error, bias


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_the_bias_falls_like_one_over_particles(resampling: str, threshold: float) -> None:
    """The fitted order is -1 within 4.9 errors (false-alarm rate 1e-6) and 0.15 for curvature.

    A twin with an error of order 1/sqrt(N) is off by 0.5, and one that never converges by 1. These
    are at least 4 and 9 errors of 0.06 above the threshold; the power against the second exceeds
    0.999.
    """
    slope, error, _ = fit(50_000, resampling=resampling, ess_threshold=threshold)
    assert error < 0.06
    assert abs(slope + 1) < Z_ALARM * error + 0.15


class NoWeights(SMCSampler):
    """Broken twin: computes the reward and ignores it."""

    def _worth(self, swarm, rows: Tensor) -> Tensor:
        return torch.zeros_like(super()._worth(swarm, rows))


class WeightsStay(SMCSampler):
    """Broken twin: a resampled particle keeps its weight."""

    def _resample(self, swarm, unfinished: Tensor, step: int) -> Tensor:
        before = swarm.weights.log_weights.flatten()
        origin = super()._resample(swarm, unfinished, step)
        swarm.weights.log_weights = before[origin].view_as(swarm.weights.log_weights)
        return origin


def test_many_particles_are_right_and_twins_are_not() -> None:
    """Mean total variation of 64 particles, known to 0.005; the twins are further off."""
    denoiser = masked_model(LookupBackbone(K, L, seed=3))
    target, _ = tilted_distribution(denoiser)
    for cls, right in ((SMCSampler, True), (NoWeights, False), (WeightsStay, False)):
        sampler = cls(reward=reward, num_particles=64, ess_threshold=1.0)
        shares = distribution_of(run(sampler, denoiser, 10_000, L, seed=64))
        gap = float((shares.mean(dim=0) - target).abs().sum() / 2)
        error = float(shares.std(dim=0).sum() / 2 / math.sqrt(len(shares)))
        assert error < 0.005
        assert gap < 0.01 + Z_ALARM * error if right else gap > 0.03 + 10 * error


@pytest.mark.parametrize("resampling", ["systematic", "multinomial"])
@pytest.mark.parametrize("count", [1, 3, 10])
def test_the_normalizer_is_unbiased(resampling: str, count: int) -> None:
    """Mean of Z-hat over rows against the sum over K^L, with a false-alarm rate of 1e-6 (z = 4.9).

    The twin that averages log Z-hat is off by more than 9 standard errors, for a power above 0.999.
    """
    denoiser = masked_model(LookupBackbone(K, L, seed=3))
    _, normalizer = tilted_distribution(denoiser)
    sampler = SMCSampler(
        reward=reward, num_particles=count, ess_threshold=1.0, resampling=resampling
    )
    found = run(sampler, denoiser, 30_000, L, seed=count)
    estimates = found.log_normalizer.exp()
    error = float(estimates.std()) / math.sqrt(len(estimates))
    assert abs(float(estimates.mean()) - normalizer) < Z_ALARM * error
    geometric = float(found.log_normalizer.mean().exp())
    assert abs(geometric - normalizer) > (Z_ALARM + 4) * error


def test_resampling_on_the_way_helps_long_rows() -> None:
    """A uniform model tilted towards one symbol, where everything is known and weights degenerate.

    Of 40 symbols, 20 are that symbol by chance and 35.2 under the tilt. Sixteen weighted particles
    are off by 9.7 symbols and 9.1 nats of log Z; with resampling by 1.0 and 3.1, over 400 rows with
    standard errors below 0.1 and 0.3. Both bounds below are 5 errors away.
    """
    length, tilt = 40, 2.0
    denoiser = masked_model(UniformBackbone(K))
    exact = length * math.log((1 + math.exp(tilt)) / 2)
    mean_ones = length * math.exp(tilt) / (1 + math.exp(tilt))

    def errors(threshold: float) -> tuple[float, float]:
        sampler = SMCSampler(
            reward=lambda tokens: tilt * tokens.double().sum(dim=-1), ess_threshold=threshold
        )
        found = run(sampler, denoiser, 400, length, seed=0)
        ones = (found.tokens.sum(dim=-1) * found.log_weights.exp()).sum(dim=-1)
        rms = float((found.log_normalizer - exact).square().mean().sqrt())
        return rms, mean_ones - float(ones.mean())

    (steered, near), (weighted, far) = errors(0.5), errors(0.0)
    assert 2 * steered < weighted
    assert 5 * near < far
