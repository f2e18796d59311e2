"""The likelihood of labelled rows is the likelihood given the label."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from seqdiff.likelihood import FixedOrder, evaluate
from seqdiff.types import NO_LABEL, Batch
from tests.guided_worlds import exact_world, joints

K, L = 3, 3


def test_each_row_is_scored_given_its_own_label() -> None:
    parts = joints(K, L)  # p(x | 0), p(x | 1), p(x)
    sequences = parts[0].sequences
    label = torch.tensor([0, 1, NO_LABEL]).repeat(len(sequences) // 3)
    known = torch.ones_like(sequences, dtype=torch.bool)
    known[4] = False  # left out
    batch = Batch(sequences, known, torch.arange(len(sequences)), label)

    def nats(given: Batch) -> np.ndarray:
        return evaluate(exact_world(K, L), [given], estimator=FixedOrder()).nats

    rows = [row for row in range(len(sequences)) if row != 4]
    right = [-float(parts[int(label[row])].probs[row].log()) for row in rows]
    assert nats(batch).tolist() == pytest.approx(right, abs=1e-10)
    assert np.abs(nats(replace(batch, label=None)) - right).max() > 1e-2, "the twin without labels"
