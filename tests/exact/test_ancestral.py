"""What the ancestral sampler promises besides its law."""

import itertools

import pytest
import torch

from seqdiff.parameterization import Denoiser
from seqdiff.process import MaskedDiffusion
from seqdiff.samplers import AncestralSampler
from seqdiff.schedules import Linear
from tests.oracles import LookupBackbone

K, L = 3, 5
PROCESS = MaskedDiffusion(K, Linear())


def sample(x_init: torch.Tensor, steps: int = 4, seed: int = 0, callback=None):
    backbone = LookupBackbone(K, L, seed=0)
    output = AncestralSampler(steps).sample(
        Denoiser(backbone, K),
        PROCESS,
        x_init,
        generator=torch.Generator().manual_seed(seed),
        callback=callback,
    )
    return output, backbone


def test_visible_tokens_stay_and_every_mask_is_filled() -> None:
    x_init = torch.tensor([[0, K, 2, K, 1], [K] * 5, [1, 1, 1, 1, 1]])
    before = x_init.clone()
    output, _ = sample(x_init)
    visible = x_init != K
    assert torch.equal(output.tokens[visible], x_init[visible])
    assert (output.tokens < K).all()
    assert torch.equal(x_init, before)


def test_nfe_counts_the_rows_the_network_really_saw() -> None:
    x_init = PROCESS.prior((6, L))
    x_init[2] = 1
    output, backbone = sample(x_init, steps=40)
    assert int(output.nfe.sum()) == sum(backbone.rows_seen)
    assert output.nfe[2] == 0
    assert (output.nfe <= L).all(), "a step that reveals nothing must cost nothing"
    single, _ = sample(PROCESS.prior((2, L)), steps=1)
    assert single.nfe.tolist() == [1, 1]


def test_the_generator_is_the_only_randomness() -> None:
    x_init = PROCESS.prior((20, L))
    first, second, other = (sample(x_init, seed=seed)[0].tokens for seed in (1, 1, 2))
    assert torch.equal(first, second) and not torch.equal(first, other)


def test_callback_sees_every_step_and_masks_only_disappear() -> None:
    seen: list[torch.Tensor] = []
    sample(PROCESS.prior((4, L)), steps=6, callback=lambda step, x: seen.append(x.clone()))
    assert len(seen) == 6 and (seen[-1] < K).all()
    for earlier, later in itertools.pairwise(seen):
        shown = earlier != K
        assert torch.equal(later[shown], earlier[shown])


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="num_steps must be at least 1, got 0"):
        AncestralSampler(0)
    with pytest.raises(ValueError, match=r"got 9 at row 1, position 2"):
        sample(torch.tensor([[0] * 5, [0, 0, 9, 0, 0]]))
