"""Dinucleotide shuffles against all arrangements of short rows."""

from collections import Counter
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch

from genomics.sequence import shuffle
from genomics.sequence.alphabet import encode
from genomics.sequence.kmers import count_kmers
from genomics.sequence.shuffle import dinucleotide_shuffle
from tests.statistics import pearson, power


def pairs(row) -> Counter:
    return Counter(pairwise(row))


def arrangements(row: np.ndarray) -> list[bytes]:
    """Every sequence with the same ends and dinucleotides as a row."""
    first, *middle, last = row.tolist()
    wanted = pairs(row.tolist())
    every = {(first, *inner, last) for inner in set(permutations(middle))}
    return sorted(bytes(found) for found in every if pairs(found) == wanted)


def draw_counts(text: str, distribution: list[bytes], draws: int) -> torch.Tensor:
    generator = np.random.default_rng(0)
    found = Counter(map(bytes, dinucleotide_shuffle(np.tile(encode(text), (draws, 1)), generator)))
    assert set(found) <= set(distribution)
    return torch.tensor([found[row] for row in distribution], dtype=torch.float64)


@pytest.mark.parametrize(
    "text", ["ACGACATACA", "AACATAACTA", "ACACAGATCA", "GACGTCATG", "ACACATCACT"]
)
def test_every_arrangement_is_equally_likely(text: str) -> None:
    """2,000 expected rows each: false-alarm rate 1e-6, power > .999 for one at 0.7 of its
    frequency.
    """
    distribution = arrangements(encode(text))
    assert len(distribution) > 3
    draws = 2000 * len(distribution)
    uniform = torch.full((len(distribution),), 1 / len(distribution), dtype=torch.float64)
    statistic, threshold = pearson(draw_counts(text, distribution, draws), uniform)
    assert statistic < threshold
    wrong = torch.full(
        (len(distribution),),
        (1 - 0.7 / len(distribution)) / (len(distribution) - 1),
        dtype=torch.float64,
    )
    wrong[0] = 0.7 / len(distribution)
    assert power(wrong, uniform, draws) > 0.999


def test_trees_that_ignore_how_often_a_step_is_there_fail(monkeypatch) -> None:
    """Broken twin: draws each tree with the same probability."""
    real, text = shuffle._last_steps, "ACACATCACT"
    distribution = arrangements(encode(text))
    uniform = torch.full((len(distribution),), 1 / len(distribution), dtype=torch.float64)
    monkeypatch.setattr(
        shuffle, "_last_steps", lambda counts, *rest: real(np.minimum(counts, 1), *rest)
    )
    statistic, threshold = pearson(
        draw_counts(text, distribution, 2000 * len(distribution)), uniform
    )
    assert statistic > threshold


def test_rows_of_any_kind_keep_their_dinucleotides() -> None:
    generator = np.random.default_rng(1)
    rows = generator.choice(4, (200, 301), p=[0.6, 0.05, 0.05, 0.3]).astype(np.uint8)
    rows[0], rows[1, :-1], rows[1, -1] = 2, 0, 3
    shuffled = dinucleotide_shuffle(rows, generator)
    for before, after in zip(rows, shuffled, strict=True):
        for ours, theirs in zip(count_kmers(before)[:2], count_kmers(after)[:2], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    assert (rows[:, [0, -1]] == shuffled[:, [0, -1]]).all()
    assert (rows[2:] != shuffled[2:]).any(axis=1).all()
    before, after = (sum(count_kmers(row)[2] for row in every) for every in (rows, shuffled))
    assert (before != after).any(), "longer words do not stay"


@pytest.mark.parametrize("shape", [(0, 5), (3, 1), (3, 2), (2, 0)])
def test_rows_without_choice_stay(shape: tuple[int, int]) -> None:
    rows = np.ones(shape, dtype=np.uint8)
    generator = np.random.default_rng(0)
    np.testing.assert_array_equal(dinucleotide_shuffle(rows, generator), rows)


def test_unknown_bases_are_refused() -> None:
    with pytest.raises(ValueError, match=r"rows must hold ids in 0\.\.3, got 4; leave rows with N"):
        dinucleotide_shuffle(np.full((1, 5), 4, dtype=np.uint8), np.random.default_rng(0))
