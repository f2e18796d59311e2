"""The strata of ``SmallK``: every k belongs to one, with its weight in the bound."""

import pytest
import torch

from seqdiff.likelihood import BlockBound, SmallK, StratifiedK, usual_contrast
from seqdiff.likelihood.estimator import PassNoise
from seqdiff.likelihood.masks import strata
from seqdiff.process import Absorbing
from seqdiff.rng import CounterNoise
from seqdiff.schedules import Linear
from seqdiff.types import Batch
from tests.block_worlds import BlockLookup, block_denoiser

LENGTHS = (1, 2, 3, 5, 16, 31, 200)


class Fixed(PassNoise):
    """The same uniform for every draw of k."""

    def __init__(self, value: float) -> None:
        super().__init__(CounterNoise(0))
        object.__setattr__(self, "value", value)

    def scalar(self, batch, draw):
        return torch.full((len(batch.tokens),), self.value, dtype=torch.float64)


def weights(estimator: StratifiedK, length: int) -> torch.Tensor:
    """Frequency times weight of each k, over the draws of a pass.

    A stratum with n values of k gets uniforms in the centres of n cells, which draw each k once.
    """
    total = torch.zeros(length + 1, dtype=torch.float64)
    x0 = torch.zeros(estimator.evaluations, length, dtype=torch.long)
    draws = torch.arange(len(x0))
    batch = Batch(x0, torch.ones_like(x0, dtype=torch.bool), draws)
    begin, end, _ = strata(batch.num_tokens, estimator.evaluations // 2, draws // 2)
    for cells in set((end - begin).tolist()):
        for cell in range(cells):
            query = estimator.query(
                batch, draws, noise=Fixed((cell + 0.5) / cells), process=Absorbing(4, Linear())
            )
            count = (query.x_t == 4).sum(dim=-1)
            own = end - begin == cells
            assert (begin[own] < count[own]).all() and (count[own] <= end[own]).all()
            total.index_add_(0, count[own], query.weight[own] / cells)
    return total[1:] / estimator.evaluations


@pytest.mark.parametrize("evaluations", [2, 8, 32])
@pytest.mark.parametrize("length", LENGTHS)
def test_each_k_counts_as_in_the_bound(evaluations: int, length: int) -> None:
    """The bound is the sum over k of the mean cost of k masked tokens, divided by k."""
    found = weights(SmallK(evaluations), length)
    want = 1 / torch.arange(1, length + 1, dtype=torch.float64)
    torch.testing.assert_close(found, want, rtol=1e-12, atol=0)


def test_strata_by_hand() -> None:
    """5 (h / 4)^2.5 is 0, 0.16, 0.88, 2.4 and 5: the second pair borrows from the first."""
    found = strata(torch.full((4,), 5), 4, torch.arange(4))
    assert [part.tolist() for part in found] == [[0, 0, 1, 3], [1, 1, 3, 5], [2, 2, 1, 1]]


def test_models_of_blocks_take_it_block_by_block() -> None:
    assert usual_contrast(block_denoiser(BlockLookup(3, 4, seed=0), 2)) == BlockBound(2, SmallK())
