"""The forward process and its posterior against Bayes' rule by enumeration."""

import itertools

import pytest
import torch
from torch import Tensor

from seqdiff.process import MaskedDiffusion
from seqdiff.schedules import Cosine, Geometric, Linear, LogLinear, NoiseSchedule
from tests.oracles import COMPLETE_SCHEDULES

K = 3
schedules = pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=repr)


def transition(schedule: NoiseSchedule, s: float, t: float) -> Tensor:
    """The kernel q(x_t | x_s) over K+1 states, from absorption alone."""
    alpha_s, alpha_t = schedule.alpha(torch.tensor([s, t], dtype=torch.float64))
    stay = alpha_t / alpha_s
    kernel = torch.eye(K + 1, dtype=torch.float64) * stay
    kernel[:, K] = 1 - stay
    kernel[K] = torch.nn.functional.one_hot(torch.tensor(K), K + 1)
    return kernel


@schedules
def test_posterior_is_bayes_rule(schedule: NoiseSchedule) -> None:
    process, s, t = MaskedDiffusion(K, schedule), 0.3, 0.7
    to_s, s_to_t = transition(schedule, 0.0, s), transition(schedule, s, t)
    for x0, x_t in itertools.product(range(K), range(K + 1)):
        joint = to_s[x0] * s_to_t[:, x_t]
        if joint.sum() == 0:
            continue
        log_x0 = torch.nn.functional.one_hot(torch.tensor([[x0]]), K).double().log()
        ours = process.reverse_log_probs(
            log_x0,
            torch.tensor([[x_t]]),
            torch.tensor([s], dtype=torch.float64),
            torch.tensor([t], dtype=torch.float64),
        )
        torch.testing.assert_close(ours.exp()[0, 0], joint / joint.sum(), atol=1e-12, rtol=0)


@schedules
def test_reverse_law_is_normalised_and_ends_without_masks(schedule: NoiseSchedule) -> None:
    process = MaskedDiffusion(K, schedule)
    log_probs = torch.randn(2, 5, K, dtype=torch.float64).log_softmax(-1)
    x_t = torch.tensor([[3, 0, 3, 1, 3], [3, 3, 2, 2, 3]])
    s, t = torch.tensor([[0.0, 0.2], [0.4, 1.0]], dtype=torch.float64)
    law = process.reverse_log_probs(log_probs, x_t, s, t).exp()
    torch.testing.assert_close(law.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    assert law[0, :, K].tolist() == [0.0] * 5


@schedules
def test_corruption_masks_with_the_marginal_probability(schedule: NoiseSchedule) -> None:
    """On a grid of noise the masked share is 1 - alpha to the grid's resolution."""
    process, n = MaskedDiffusion(K, schedule), 10_000
    grid = ((torch.arange(n) + 0.5) / n).double()[None]
    for t in (0.0, 0.1, 0.5, 0.9, 1.0):
        time = torch.tensor([t], dtype=torch.float64)
        x_t = process.corrupt(torch.zeros(1, n, dtype=torch.int64), time, noise=grid)
        share = (x_t == K).double().mean()
        assert share == pytest.approx(float(1 - schedule.alpha(time)), abs=0.5 / n)


def test_kept_positions_are_never_corrupted() -> None:
    process = MaskedDiffusion(K, Linear())
    x0, keep = torch.tensor([[0, 1, 2, K]]), torch.tensor([[True, False, True, True]])
    noise = torch.full((1, 4), 1e-9).double()
    x_t = process.corrupt(x0, torch.tensor([0.9]).double(), keep=keep, noise=noise)
    assert x_t.tolist() == [[0, K, 2, K]]
    exactly = process.corrupt_exactly(x0, torch.tensor([1]), keep=keep, noise=noise)
    assert exactly.tolist() == [[0, K, 2, K]]
    assert x0.tolist() == [[0, 1, 2, K]]


@pytest.mark.parametrize("count", range(5))
def test_exact_corruption_gives_every_subset_equally_often(count: int) -> None:
    process = MaskedDiffusion(K, Linear())
    noise = torch.tensor(list(itertools.permutations([0.1, 0.3, 0.6, 0.8]))).double()
    x0 = torch.ones(len(noise), 4, dtype=torch.int64)
    x_t = process.corrupt_exactly(x0, torch.full((len(noise),), count), noise=noise)
    subsets, times = (x_t == K).unique(dim=0, return_counts=True)
    assert (subsets.sum(-1) == count).all()
    assert len(times) == [1, 4, 6, 4, 1][count]
    assert (times == times[0]).all()


@pytest.mark.parametrize("schedule", [LogLinear(1e-3), Cosine(1e-2), Geometric()], ids=repr)
def test_incomplete_schedules_are_refused(schedule: NoiseSchedule) -> None:
    with pytest.raises(ValueError, match=r"alpha\(0\) = 1 and alpha\(1\) = 0, got .* Completed"):
        MaskedDiffusion(K, schedule)


def test_empty_vocabulary_is_refused() -> None:
    with pytest.raises(ValueError, match="vocab_size must be at least 1"):
        MaskedDiffusion(0, Linear())


def test_prior_is_all_mask() -> None:
    assert MaskedDiffusion(K, Linear()).prior((2, 3)).tolist() == [[K] * 3] * 2
