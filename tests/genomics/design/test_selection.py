"""Diverse sets against brute force."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from genomics.design import pairwise_distances, select
from genomics.design.selection import spectrum_similarity
from genomics.sequence import BASES

SOURCE = random.Random(3)
ROWS = ["".join(SOURCE.choices(BASES, k=14)) for _ in range(9)]
ROWS += [ROWS[0][:-1] + ("A" if ROWS[0][-1] != "A" else "C"), ROWS[2]]
QUALITY = np.array([SOURCE.gauss(0, 1) for _ in ROWS])


@pytest.mark.parametrize("spread", [0, 1, 2, 6, 8, 9])
@pytest.mark.parametrize("num", [1, 4, 11])
def test_greedy_takes_the_best_that_is_far_enough(spread: int, num: int) -> None:
    distances = pairwise_distances(ROWS)
    expected: list[int] = []
    for i in sorted(range(len(ROWS)), key=lambda i: -QUALITY[i]):
        if len(expected) < num and all(distances[i, j] >= spread for j in expected):
            expected.append(i)
    found = select(ROWS, QUALITY, num, spread=spread)
    assert found.tolist() == expected
    if spread > 1:
        assert found.tolist() != select(ROWS, QUALITY, num, spread=0).tolist() or num == 1


def test_greedy_keeps_the_order_of_equal_candidates() -> None:
    assert select(ROWS, np.zeros(len(ROWS)), 3, spread=0).tolist() == [0, 1, 2]


def test_each_determinantal_choice_has_the_greatest_determinant() -> None:
    scale = (QUALITY - QUALITY.mean()) / QUALITY.std()
    strength = np.exp(scale / 2)
    kernel = strength[:, None] * spectrum_similarity(ROWS) * strength
    found = select(ROWS, QUALITY, 5, how="determinantal").tolist()
    for size in range(1, 6):
        before = found[: size - 1]
        gains = {
            i: np.linalg.det(kernel[np.ix_([*before, i], [*before, i])])
            for i in range(len(ROWS))
            if i not in before
        }
        assert found[size - 1] == max(gains, key=lambda i: gains[i])
    plain = select(ROWS, QUALITY, 5, spread=0).tolist()
    assert set(found) != set(plain), "a choice by quality alone takes near copies"


def test_copies_are_not_taken_twice() -> None:
    """Row 10 is row 2; the reverse complement of a row has its spectrum, too."""
    rows = [ROWS[2], ROWS[10], ROWS[2][::-1].translate(str.maketrans("ACGT", "TGCA"))]
    assert pairwise_distances(rows).max() == 0
    assert select(rows, np.array([1.0, 2.0, 3.0]), 3, how="determinantal").tolist() == [2]
    assert select(rows, np.array([1.0, 2.0, 3.0]), 3, spread=1).tolist() == [2]


def test_similarity_by_counting() -> None:
    def counts(row: str) -> dict[str, int]:
        both = [row, row[::-1].translate(str.maketrans("ACGT", "TGCA"))]
        words = ["".join(word) for word in itertools.product(BASES, repeat=4)]
        return {w: sum(x.startswith(w, i) for x in both for i in range(len(x))) for w in words}

    table = np.array([list(counts(row).values()) for row in ROWS], dtype=np.float64)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    np.testing.assert_allclose(spectrum_similarity(ROWS), table @ table.T, atol=1e-12)


def test_requests_that_make_no_sense_are_named() -> None:
    with pytest.raises(ValueError, match=r"design.select must be one of greedy, determ"):
        select(ROWS, QUALITY, 3, how="best")
    with pytest.raises(ValueError, match=r"design.spread must be at least 0, got -1"):
        select(ROWS, QUALITY, 3, spread=-1)
    with pytest.raises(ValueError, match=r"design.quality must be finite, got nan for sequence 1;"):
        select(ROWS[:2], np.array([0.0, np.nan]), 1)
    assert select([], np.zeros(0), 3).tolist() == []
