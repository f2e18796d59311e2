"""The times at which samplers evaluate a time-dependent network."""

import pytest
import torch
from torch import Tensor

from seqdiff.samplers import (
    AncestralSampler,
    ConfidenceSampler,
    FirstHittingSampler,
    PredictorCorrectorSampler,
    RemaskCapSampler,
    RemaskLoopSampler,
    Sampler,
    SMCSampler,
)
from seqdiff.samplers.draws import SeededDraws
from seqdiff.schedules import CosineSquared, Linear, NoiseSchedule
from tests.oracles import LookupBackbone, masked_model

K, L = 3, 5


class Clock(LookupBackbone):
    """Records its times."""

    def __init__(self) -> None:
        super().__init__(K, L, seed=0)
        self.times: list[Tensor] = []

    def logits(self, inputs):
        assert inputs.t is not None and inputs.t.shape == (len(inputs.tokens),)
        self.times.append(inputs.t)
        return super().logits(inputs)


def ask(sampler: Sampler, schedule: NoiseSchedule, rows: int = 40, given: int = 0) -> list[Tensor]:
    clock, x_init = Clock(), torch.full((rows, L), K)
    x_init[:, :given] = 1
    generator = torch.Generator().manual_seed(0)
    sampler.sample(masked_model(clock, schedule), x_init, generator=generator)
    return clock.times


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (AncestralSampler(4), {1.0, 0.75, 0.5, 0.25}),
        (RemaskCapSampler(4), {1.0, 0.75, 0.5, 0.25}),
        # Steps at 1, 3/4, 1/2, 1/4: the first is below t = 1 by 5/8 of the way to alpha = 0.8.
        (
            RemaskLoopSampler(4, eta=0.9, t_on=0.6, t_off=0.1, alpha_on=0.8),
            {1.0, 0.2 + 0.8 * 0.375, 0.2},
        ),
        # The corrector returns from alpha_r = 0.9 alpha_s: at s = 1/2, and not at s = 0.
        (PredictorCorrectorSampler(2), {1.0, 0.55, 0.5}),
    ],
    ids=lambda v: type(v).__name__,
)
def test_grid_times(sampler: Sampler, expected: set[float]) -> None:
    seen = {round(float(t), 12) for times in ask(sampler, Linear()) for t in times}
    assert seen == {round(t, 12) for t in expected}


@pytest.mark.parametrize("schedule", [Linear(), CosineSquared()], ids=repr)
def test_certainty_asks_at_the_time_of_the_mask_rate(schedule: NoiseSchedule) -> None:
    """With one of five tokens given, four, three, two and one are masked."""
    times = ask(ConfidenceSampler(), schedule, given=1)
    shares = [float(1 - schedule.alpha(t).unique()) for t in times]
    assert shares == pytest.approx([0.8, 0.6, 0.4, 0.2], abs=1e-12)


def test_padding_does_not_count_as_revealed() -> None:
    """Rows of 5, 3 and 1 real positions: all masked at time 1, whatever the padding."""
    clock, schedule = Clock(), CosineSquared()
    lengths = torch.tensor([5, 3, 1])
    padding = torch.arange(L) >= lengths[:, None]
    x_init = torch.full((3, L), K)
    x_init[padding] = 0
    ConfidenceSampler().sample(
        masked_model(clock, schedule), x_init, padding=padding, seeds=torch.arange(3)
    )
    shares = [(1 - schedule.alpha(t)).tolist() for t in clock.times]
    right = [[1.0, 1.0, 1.0], [4 / 5, 2 / 3], [3 / 5, 1 / 3], [2 / 5], [1 / 5]]
    padded = [[1.0, 3 / 5, 1 / 5], [4 / 5, 2 / 5], [3 / 5, 1 / 5], [2 / 5], [1 / 5]]
    assert shares == [pytest.approx(row, abs=1e-12) for row in right]
    assert shares != [pytest.approx(row, abs=1e-12) for row in padded], "the twin that counts it"


@pytest.mark.parametrize(
    "sampler",
    [FirstHittingSampler(), SMCSampler(reward=lambda x: x[:, 0].double(), num_particles=1)],
    ids=lambda s: type(s).__name__,
)
def test_first_hitting_asks_at_the_times_of_the_process(sampler: Sampler) -> None:
    """The j-th of 5 reveals has E[1 - alpha] = (5 - j) / 6; sd at most 0.19, n = 4000, 5 SE."""
    stacked = torch.stack(ask(sampler, CosineSquared(), rows=4000))
    assert (stacked[1:] < stacked[:-1]).all()
    level = (1 - CosineSquared().alpha(stacked)).mean(dim=1)
    assert level.tolist() == pytest.approx([(5 - j) / 6 for j in range(5)], abs=5 * 0.19 / 63)
    equal_steps = torch.tensor([1 - j / 5 for j in range(5)])
    assert (level - equal_steps).abs().max() > 0.1, "the twin on an equal grid"


@pytest.mark.parametrize("num_steps", [1, 2, 3, 7])
@pytest.mark.parametrize("cls", [FirstHittingSampler, SMCSampler], ids=lambda c: c.__name__)
def test_a_step_of_first_hitting_asks_at_its_first_time(
    cls: type[Sampler], num_steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of five, four and one masked tokens; 0.9 is the first unmask time of the first row."""
    drawn = torch.tensor(
        [[0.3, 0.9, 0.1, 0.5, 0.7], [0.0, 0.2, 0.8, 0.4, 0.6], [0.0, 0.0, 0.0, 0.0, 0.35]],
        dtype=torch.float64,
    )
    right = SeededDraws.unmask_times

    def times(self: SeededDraws, where: Tensor) -> Tensor:
        return drawn if where.shape == drawn.shape else right(self, where)

    monkeypatch.setattr(SeededDraws, "unmask_times", times)
    clock, schedule = Clock(), CosineSquared()
    extra = {"reward": lambda x: x[:, 0].double(), "num_particles": 1} if cls is SMCSampler else {}
    x_init = torch.where(drawn > 0, K, 1)
    sampler = cls(num_steps=num_steps, **extra)
    sampler.sample(masked_model(clock, schedule), x_init, seeds=torch.arange(3))
    asked = [(1 - schedule.alpha(t)).tolist() for t in clock.times]
    by_hand = {
        1: [[0.9, 0.8, 0.35]],
        2: [[0.9, 0.8, 0.35], [0.3, 0.4]],
        3: [[0.9, 0.8, 0.35], [0.5, 0.4], [0.1, 0.2]],
        7: [[0.9, 0.8, 0.35], [0.7, 0.6], [0.5, 0.4], [0.3, 0.2], [0.1]],
    }
    assert asked == [pytest.approx(row, abs=1e-12) for row in by_hand[num_steps]]
