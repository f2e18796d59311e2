"""Invalid rewards, and when they are reported."""

import math

import pytest
import torch
from torch import Tensor

from seqdiff.samplers import SMCSampler
from tests.exact.test_smc import reward, world
from tests.oracles import TableBackbone, masked_model


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            lambda tokens: reward(tokens) / 0,
            r"give numbers, got (nan|inf) from .*lambda> for \[\d, \d\]\.\.\.; -inf excludes",
        ),
        (lambda tokens: reward(tokens) * math.nan, r"give numbers, got nan from .*lambda> for \["),
        (
            lambda tokens: reward(tokens) - math.inf,
            r"^SMCSampler\.reward must be above -inf for some particle of every row, got -inf for "
            r"all 16 of row 0; raise num_particles or num_drafts, or exclude symbols by allowed$",
        ),
    ],
)
def test_a_reward_that_gives_bad_numbers(bad, message: str) -> None:
    denoiser, start = world(2, 2)
    x_init, generator = start.expand(30, -1), torch.Generator().manual_seed(0)
    with pytest.raises(ValueError, match=message) as caught:
        SMCSampler(reward=bad).sample(denoiser, x_init, generator=generator)
    assert "\n" not in str(caught.value)


TAKES = (
    r"^SMCSampler\.reward must take ids \[n, L\] and give a tensor with one number per row, \[n\], "
)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            lambda tokens: reward(tokens)[0],
            r"got shape \(\) from .*lambda> for 2 rows; write a fun",
        ),
        (lambda tokens: reward(tokens)[:1], r"got shape \(1,\) from"),
        (lambda tokens: reward(tokens)[:, None], r"got shape \(2, 1\) from"),
        (lambda tokens: reward(tokens).tolist(), r"got a list from"),
        (lambda tokens: 1.0, r"got a float from"),
        (math.floor, r"got \w+Error from math\.floor: .*; write a function like lambda ids"),
        (str.upper, r"got TypeError from \?\.str\.upper: .* apply to a 'Tensor' object; write"),
    ],
)
@pytest.mark.parametrize("allowed", [False, True])
def test_what_is_no_reward_is_refused_before_the_network(bad, message: str, allowed: bool) -> None:
    class Untouched(TableBackbone):
        def logits(self, inputs):
            raise AssertionError("the network was called")

    letters = torch.tensor([False, True]).expand(30, 2, 2) if allowed else None
    with pytest.raises(ValueError, match=TAKES + message) as caught:
        SMCSampler(reward=bad).sample(
            masked_model(Untouched(2)),
            torch.full((30, 2), 2),
            generator=torch.Generator().manual_seed(0),
            allowed=letters,
        )
    assert "\n" not in str(caught.value)


def test_a_reward_is_tried_within_what_is_allowed() -> None:
    denoiser, start = world(2, 3)
    allowed, seen = torch.tensor([[[True, False], [False, True], [True, True]]]), []

    def noted(tokens: Tensor) -> Tensor:
        seen.append(tokens)
        return reward(tokens)

    SMCSampler(reward=noted).sample(denoiser, start[None], seeds=torch.arange(1), allowed=allowed)
    assert seen[0].shape == (2, 3)
    assert all((tokens[:, 0] == 0).all() and (tokens[:, 1] == 1).all() for tokens in seen)
