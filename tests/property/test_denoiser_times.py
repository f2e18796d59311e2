"""The time input of a network: sigma if it asks for sigma, otherwise the time."""

import pytest
import torch
from torch import Tensor

from seqdiff.denoiser.discrete import Denoiser
from seqdiff.process import Absorbing
from seqdiff.process import Uniform as UniformNoise
from seqdiff.samplers import AncestralSampler, CachedAncestralSampler
from seqdiff.samplers.guidance import ClassifierFree
from seqdiff.schedules import Completed, Cosine, LogLinear, NoiseSchedule
from seqdiff.types import Inputs
from tests.oracles import UniformBackbone

K = 3
T = torch.tensor([0.25, 0.5, 1.0], dtype=torch.float64)
TOKENS = torch.full((3, 2), K)


class Clock(UniformBackbone):
    """Records its time input."""

    def __init__(self, time_conditioned: bool, num_classes: int | None = None) -> None:
        super().__init__(K)
        self.time_conditioned, self.num_classes = time_conditioned, num_classes
        self.told: list[Tensor | None] = []

    def logits(self, inputs) -> Tensor:
        assert inputs.sigma is None or self.time_conditioned
        self.told.append(inputs.sigma if self.time_conditioned else inputs.t)
        return super().logits(inputs)


@pytest.mark.parametrize("schedule", [LogLinear(), Cosine(), Completed(LogLinear(1e-3))])
def test_a_time_conditioned_network_is_told_sigma(schedule: NoiseSchedule) -> None:
    clock = Clock(True)
    denoiser = Denoiser(clock, Absorbing(K, schedule))
    assert denoiser.time_conditioned
    denoiser(Inputs(TOKENS, T))
    torch.testing.assert_close(clock.told[0], -schedule.alpha(T).log(), atol=1e-12, rtol=1e-12)
    assert not torch.allclose(clock.told[0], T), "the twin that passes the time on"


def test_sigma_by_hand() -> None:
    clock = Clock(True)
    Denoiser(clock, Absorbing(K))(Inputs(TOKENS, T))
    assert clock.told[0].tolist() == pytest.approx(
        [0.2876820724517809, 0.6931471805599453, torch.inf]
    )


def test_others_are_told_the_time() -> None:
    backbone = Clock(False)
    denoiser = Denoiser(backbone, Absorbing(K))
    assert not denoiser.time_conditioned
    denoiser(Inputs(TOKENS, T))
    assert backbone.told[-1] is T
    denoiser(Inputs(TOKENS))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"^Denoiser\.backbone must be told .* time-free Clock"):
        Denoiser(Clock(False), UniformNoise(K))
    with pytest.raises(ValueError, match=r"^Denoiser\.inputs\.t must be given where .* got None"):
        Denoiser(Clock(True), Absorbing(K))(Inputs(TOKENS))


def test_a_guided_denoiser_tells_the_same() -> None:
    clock = Clock(True, num_classes=2)
    guided = ClassifierFree(Denoiser(clock, Absorbing(K)), 1, 2.0)
    assert guided.time_conditioned
    guided(Inputs(TOKENS, T))
    assert torch.equal(clock.told[0], LogLinear().sigma(T).repeat(2))


def test_the_cached_sampler_takes_only_networks_that_ignore_time() -> None:
    timed = Denoiser(Clock(True), Absorbing(K))
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=r"^Sampler\.denoiser must ignore time .* without a cache"):
        CachedAncestralSampler(4).sample(timed, TOKENS, generator=generator)
    assert not timed.backbone.told, "before the network is asked"
    AncestralSampler(4).sample(timed, TOKENS, generator=generator)
    assert timed.backbone.told[0].isinf().all()
