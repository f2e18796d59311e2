"""Variances of the loss under clipped intervals, and their standard errors, worked out by hand."""

import math

import numpy as np
import pytest
import torch

from seqdiff.objectives import BlockNELBO
from seqdiff.rng import CounterNoise
from seqdiff.training.clipping import ClippedEstimates, Interval, Variances
from tests.block_worlds import BlockLookup, block_denoiser

INTERVALS = (Interval(0.1, 0.7), Interval(0.3, 0.8), Interval(0.5, 1.0))
# Four losses with mean 4 and deviations -3, -2, 0, 5, and the same ones moved and stretched.
LOSSES = np.array([1.0, 2.0, 4.0, 9.0])
TABLE = np.stack([LOSSES, LOSSES - 40, 3 * LOSSES], axis=1)
VARIANCE = (9 + 4 + 0 + 25) / 3
FOURTH = (81 + 16 + 0 + 625) / 4
ERROR = math.sqrt((FOURTH - VARIANCE**2 * (4 - 3) / (4 - 1)) / 4)


def assert_by_hand(found: Variances) -> None:
    assert found.num_batches == 4
    assert found.standard_errors is not None
    assert found.values == pytest.approx([VARIANCE, VARIANCE, 9 * VARIANCE], rel=1e-12)
    assert found.standard_errors == pytest.approx([ERROR, ERROR, 9 * ERROR], rel=1e-12)


def test_the_variance_and_its_standard_error() -> None:
    assert_by_hand(Variances.of(TABLE, INTERVALS))


def test_losses_are_per_counted_token() -> None:
    tokens = np.array([2.0, 5.0, 3.0, 10.0])
    totals = torch.from_numpy(np.column_stack([TABLE * tokens[:, None], tokens]))
    denoiser = block_denoiser(BlockLookup(2, 4, seed=0), 2)
    estimates = ClippedEstimates(BlockNELBO(), denoiser, CounterNoise(0), intervals=INTERVALS)
    assert_by_hand(estimates.variances(totals))


def test_equal_losses_have_no_variance() -> None:
    found = Variances.of(np.full((5, 3), 0.1), INTERVALS)
    assert found.standard_errors is not None
    assert found.values == pytest.approx(0, abs=1e-15)
    assert found.standard_errors == pytest.approx(0, abs=1e-15)
