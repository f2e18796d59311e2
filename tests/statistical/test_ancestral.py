"""The ancestral sampler against its enumerated distribution.

The false-alarm rate of every assertion is 1e-6. The power against each named wrong sampler is
computed from its enumerated distribution and must exceed 0.999.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.samplers import AncestralSampler
from seqdiff.schedules import CosineSquared, Linear, NoiseSchedule, Polynomial
from seqdiff.types import Inputs
from tests.oracles import Joint, LookupBackbone, OracleBackbone, all_sequences, masked_model
from tests.statistics import pearson, power

K, L, DRAWS = 2, 3, 40_000
STATES = all_sequences(K + 1, L)


def codes(tokens: Tensor, base: int) -> Tensor:
    return (tokens * base ** torch.arange(tokens.shape[1] - 1, -1, -1)).sum(-1)


def step_kernel(denoiser: Denoiser, s: float, t: float) -> Tensor:
    """P(x_s | x_t) between all states; positions are independent."""
    inputs, earlier = (torch.full((len(STATES),), v, dtype=torch.float64) for v in (t, s))
    distribution = denoiser.log_reverse(Inputs(STATES, inputs), earlier).exp()
    columns = [distribution[:, position][:, STATES[:, position]] for position in range(L)]
    return torch.stack(columns).prod(dim=0)


def final_distribution(denoiser: Denoiser, grid: list[float]) -> Tensor:
    """Distribution over the K^L sequences after all steps of the time grid, starting from all
    masks.
    """
    distribution = torch.zeros(len(STATES), dtype=torch.float64)
    distribution[codes(torch.full((1, L), K), K + 1)] = 1
    for t, s in itertools.pairwise(grid):
        distribution = distribution @ step_kernel(denoiser, s, t)
    return distribution[(STATES != K).all(dim=-1)]


def grid(steps: int) -> list[float]:
    return [1 - i / steps for i in range(steps)] + [0.0]


def counts(denoiser: Denoiser, steps: int) -> Tensor:
    output = AncestralSampler(steps).sample(
        denoiser,
        torch.full((DRAWS, L), K),
        generator=torch.Generator().manual_seed(0),
    )
    return codes(output.tokens, K).bincount(minlength=K**L).double()


@pytest.mark.parametrize("schedule", [Linear(), CosineSquared()], ids=repr)
@pytest.mark.parametrize("steps", [1, 2, 5])
def test_samples_follow_the_enumerated_distribution(schedule: NoiseSchedule, steps: int) -> None:
    denoiser = masked_model(LookupBackbone(K, L, seed=3), schedule)
    distribution = final_distribution(denoiser, grid(steps))
    assert float(distribution.sum()) == pytest.approx(1, abs=1e-12)
    statistic, threshold = pearson(counts(denoiser, steps), distribution)
    assert statistic < threshold


def test_named_wrong_samplers_would_be_caught() -> None:
    network = LookupBackbone(K, L, seed=3)
    denoiser = masked_model(network)
    distribution = final_distribution(denoiser, grid(2))
    # The published grid linspace(1, 0, T) with steps of 1/T, here for T = 2, has one step too few.
    assert power(final_distribution(denoiser, grid(1)), distribution, DRAWS) > 0.999
    # A sampler with another schedule than the process reveals at the wrong times.
    wrong = final_distribution(masked_model(network, Polynomial(4.0)), grid(2))
    assert power(wrong, distribution, DRAWS) > 0.999
    skewed = [1.0, 0.8, 0.0]
    assert power(final_distribution(denoiser, skewed), distribution, DRAWS) > 0.999


def test_distance_to_the_oracle_falls_like_one_over_steps() -> None:
    joint = Joint.random(K, L, seed=5)
    denoiser = masked_model(OracleBackbone(joint))
    distances = [
        float((final_distribution(denoiser, grid(n)) - joint.probs).abs().sum() / 2)
        for n in (32, 64, 128)
    ]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(distances)]
    assert orders == pytest.approx([1, 1], abs=0.05)
