"""Expectations of the block objectives, and independent noise of the blocks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.objectives import BlockNELBO, Objective, WeightedMLM
from seqdiff.objectives.time_sampling import Stratified, TimeSampler, Uniform
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Cosine, NoiseSchedule
from seqdiff.types import Inputs
from tests.block_worlds import BlockLookup, block_denoiser, enumerated_block_bound, mask_weights
from tests.oracles import all_masks, copies

K, L, ROWS = 2, 6, 200_000
ROW = torch.tensor([1, 0, 0, 1, 1, 0])
FALSE_ALARM = 4.9  # standard errors; two-sided 1e-6


def table(size: int, schedule: NoiseSchedule | None = None) -> Denoiser:
    return block_denoiser(BlockLookup(K, L, seed=6), size, schedule)


def draw(objective: Objective, model: Denoiser, seed: int = 11) -> tuple[Tensor, Tensor]:
    """Terms of many copies of one row, and the positions of their masks."""
    seen: list[Tensor] = []

    class Watching(Denoiser):
        def nats(self, inputs: Inputs, x0: Tensor, where: Tensor) -> Tensor:
            seen.append(inputs.tokens)
            return super().nats(inputs, x0, where)

    watching = Watching(model.backbone, model.process)
    terms = objective.terms(watching, copies(ROW, ROWS), CounterNoise(seed))
    return terms, seen[0] == K


def deviation(values: Tensor, exact: float) -> float:
    """Distance of the mean from the exact value in standard errors."""
    return abs(float(values.mean()) - exact) / (float(values.std()) / math.sqrt(len(values)))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("interval", [(0.1, 0.4), (0.6, 0.95)], ids=str)
def test_terms_mean_the_integral_over_the_interval(
    size: int, interval: tuple[float, float]
) -> None:
    """False-alarm rate 1e-6; power above .999 against no weight and against another interval.

    With a masked fraction near 0 the variance would be infinite. With one token per block every
    interval has the same mean.
    """
    schedule = Cosine()
    model = table(size, schedule)
    terms, masked = draw(BlockNELBO(*interval), model)
    exact = enumerated_block_bound(model, ROW, fractions=interval)
    assert deviation(terms.sum(dim=-1), exact) < FALSE_ALARM
    t = schedule.inverse(1 - torch.tensor(sum(interval) / 2, dtype=torch.float64))
    unweighted = terms / float(schedule.nelbo_weight(t)) * masked
    assert deviation(unweighted.sum(dim=-1), exact) > 8
    if size > 1:
        fractions = (0.1, 0.4) if interval == (0.6, 0.95) else (0.6, 0.95)
        other = enumerated_block_bound(model, ROW, fractions=fractions)
        assert deviation(terms.sum(dim=-1), other) > 8


@pytest.mark.parametrize("size", [2, 3, 4, 6])
def test_exact_counts_mean_the_bound(size: int) -> None:
    """False-alarm rate 1e-6; a mean over masked tokens only is more than 20 standard errors off."""
    terms, masked = draw(WeightedMLM(), table(size))
    exact = enumerated_block_bound(table(size), ROW)
    assert deviation(terms.sum(dim=-1), exact) < FALSE_ALARM
    counts = masked.unflatten(1, (-1, size)).sum(dim=-1) if L % size == 0 else None
    if counts is not None:
        assert (counts >= 1).all()
        weight = (size / counts).repeat_interleave(size, dim=1)
        mean_over_masked = (terms / weight / counts.repeat_interleave(size, dim=1)).sum(dim=-1)
        assert deviation(mean_over_masked, exact) > 20


def joint_distribution(masked: Tensor) -> Tensor:
    """Count how often each pattern of masks occurs."""
    code = (masked * 2 ** torch.arange(L - 1, -1, -1)).sum(dim=-1)
    return torch.bincount(code, minlength=2**L).double() / len(masked)


def expected_distribution(
    size: int, interval: tuple[float, float], *, one_time: bool = False
) -> Tensor:
    """Probability of every pattern; blocks are independent unless they share one time."""
    masks = all_masks(L)
    if one_time:
        return pattern_distribution(masks, interval)
    parts = [pattern_distribution(part, interval) for part in masks.split(size, dim=1)]
    return torch.stack(parts).prod(dim=0)


def pattern_distribution(masks: Tensor, interval: tuple[float, float]) -> Tensor:
    """P(pattern) with the masked fraction uniform on the interval."""
    low, high = interval
    middles = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    fraction = (low + (high - low) * middles)[:, None]
    hidden = masks.sum(dim=-1)
    return (fraction**hidden * (1 - fraction) ** (masks.shape[1] - hidden)).mean(dim=0)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("sampler", [Uniform(), Stratified(3 * 7)], ids=["uniform", "stratified"])
def test_every_block_has_a_noise_of_its_own(size: int, sampler: TimeSampler) -> None:
    """False-alarm rate 1e-6 over 64 cells; one time per row is more than 20 standard errors off.

    Blocks in one group of stratified times are slightly dependent, because they share no stratum.
    """
    interval = (0.2, 0.9)
    _, masked = draw(BlockNELBO(*interval, sampler), table(size))
    found, right = joint_distribution(masked), expected_distribution(size, interval)
    error = (right * (1 - right) / ROWS).sqrt()
    off = ((found - right) / error).abs().max()
    if isinstance(sampler, Uniform):
        assert float(off) < 5.7
    else:
        marginal = masked[:, :size].double().mean()
        assert abs(float(marginal) - 0.55) < 0.01
    wrong = expected_distribution(size, interval, one_time=True)
    assert float(((found - wrong) / error).abs().max()) > 20


def test_the_weights_of_the_enumeration_add_up() -> None:
    """The sum over masks of weight times masked tokens is n: E[masked / fraction] = n."""
    for interval in ((0.0, 1.0), (0.3, 0.8)):
        masks = all_masks(3)
        total = float(mask_weights(masks, interval) @ masks.sum(dim=-1).double())
        assert total == pytest.approx(3, abs=1e-10)
