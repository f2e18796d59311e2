"""Guarantees of the absorbing process beyond those of every process: exact counts, clean ends."""

import itertools

import pytest
import torch

from seqdiff.process import Absorbing
from seqdiff.schedules import Cosine, Geometric, Linear, LogLinear, NoiseSchedule
from tests.oracles import COMPLETE_SCHEDULES

K = 3


@pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=repr)
def test_reverse_step_is_normalised_and_ends_without_masks(schedule: NoiseSchedule) -> None:
    process = Absorbing(K, schedule)
    log_probs = torch.randn(2, 5, K, dtype=torch.float64).log_softmax(-1)
    z = torch.tensor([[3, 0, 3, 1, 3], [3, 3, 2, 2, 3]])
    s, t = torch.tensor([[0.0, 0.2], [0.4, 1.0]], dtype=torch.float64)[..., None].expand(2, 2, 5)
    distribution = process.log_posterior(log_probs, z, s, t).exp()
    torch.testing.assert_close(distribution.sum(-1), torch.ones(2, 5, dtype=torch.float64))
    assert distribution[0, :, K].tolist() == [0.0] * 5
    visible = z < K
    assert (distribution[visible].gather(-1, z[visible][:, None]) == 1).all(), "visible tokens stay"


@pytest.mark.parametrize("schedule", COMPLETE_SCHEDULES, ids=repr)
def test_corruption_masks_with_the_marginal_probability(schedule: NoiseSchedule) -> None:
    """On a grid of noise the masked fraction is 1 - alpha to the grid's resolution."""
    process, n = Absorbing(K, schedule), 10_000
    grid = ((torch.arange(n) + 0.5) / n).double()[None]
    for t in (0.0, 0.1, 0.5, 0.9, 1.0):
        time = torch.tensor([t], dtype=torch.float64)
        x_t = process.corrupt(torch.zeros(1, n, dtype=torch.int64), time, noise=grid)
        fraction = (x_t == K).double().mean()
        assert fraction == pytest.approx(float(1 - schedule.alpha(time)), abs=0.5 / n)


def test_kept_positions_are_never_corrupted() -> None:
    process = Absorbing(K, Linear())
    x0, keep = torch.tensor([[0, 1, 2, K]]), torch.tensor([[True, False, True, True]])
    noise = torch.full((1, 4), 1e-9).double()
    x_t = process.corrupt(x0, torch.tensor([0.9]).double(), keep=keep, noise=noise)
    assert x_t.tolist() == [[0, K, 2, K]]
    exactly = process.corrupt_exactly(x0, torch.tensor([1]), keep=keep, noise=noise)
    assert exactly.tolist() == [[0, K, 2, K]]
    assert x0.tolist() == [[0, 1, 2, K]]


@pytest.mark.parametrize("count", range(5))
def test_exact_corruption_gives_every_subset_equally_often(count: int) -> None:
    process = Absorbing(K, Linear())
    noise = torch.tensor(list(itertools.permutations([0.1, 0.3, 0.6, 0.8]))).double()
    x0 = torch.ones(len(noise), 4, dtype=torch.int64)
    x_t = process.corrupt_exactly(x0, torch.full((len(noise),), count), noise=noise)
    subsets, times = (x_t == K).unique(dim=0, return_counts=True)
    assert (subsets.sum(-1) == count).all()
    assert len(times) == [1, 4, 6, 4, 1][count]
    assert (times == times[0]).all()


@pytest.mark.parametrize("schedule", [LogLinear(1e-3), Cosine(1e-2), Geometric()], ids=repr)
def test_incomplete_schedules_raise(schedule: NoiseSchedule) -> None:
    with pytest.raises(ValueError, match=r"alpha\(0\) = 1 and alpha\(1\) = 0, got .* Completed"):
        Absorbing(K, schedule)


def test_an_empty_vocabulary_raises() -> None:
    with pytest.raises(ValueError, match=r"Absorbing\.vocab_size must be at least 1"):
        Absorbing(0, Linear())


def test_a_blank_row_is_all_masks() -> None:
    assert Absorbing(K, Linear()).blank((2, 3)).tolist() == [[K] * 3] * 2
