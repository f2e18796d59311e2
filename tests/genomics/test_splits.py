import math
from itertools import permutations

import numpy as np
import pytest

from genomics.data.splits import (
    split_by_chromosome,
    split_by_fraction,
    split_by_label,
)
from genomics.sequence.intervals import Interval, Regions, overlaps
from seqdiff.checks import check_fractions
from seqdiff.data.dataset import SPLITS


def bases(regions):
    return int((regions.end - regions.start).sum())


def test_labels():
    rows = [Interval("a", 0, 5, "test"), Interval("b", 1, 2, "train"), Interval("a", 7, 9, "train")]
    found = split_by_label(rows, ["a", "b"])
    assert {split: part.start.tolist() for split, part in found.items()} == {
        "train": [1, 7],
        "test": [0],
    }


def test_a_misspelt_label_is_named():
    with pytest.raises(
        ValueError, match="must be train, valid or test, got 'vaild' at a:3-5; correct"
    ):
        split_by_label([Interval("a", 3, 5, "vaild")], ["a"])


def test_chromosomes():
    whole = Regions.whole(np.array([10, 20, 30]))
    found = split_by_chromosome(whole, ["a", "b", "c"], ["c"], ["a"])
    assert [found[split].chrom.tolist() for split in SPLITS] == [[1], [2], [0]]
    assert set(split_by_chromosome(whole, ["a", "b", "c"], [], ["a"])) == {"train", "test"}


def test_bad_chromosomes():
    whole = Regions.whole(np.array([10, 20]))
    with pytest.raises(ValueError, match=r"test_chroms must be records .* \(a, b\), got 'c'"):
        split_by_chromosome(whole, ["a", "b"], [], ["c"])
    with pytest.raises(ValueError, match="test_chroms must differ, got 'a' in both"):
        split_by_chromosome(whole, ["a", "b"], ["a"], ["a"])


def test_fractions_are_met_to_a_block_and_follow_the_seed():
    whole = Regions.whole(np.array([3_000_000, 1_000_001]))
    found = split_by_fraction(whole, (0.8, 0.15, 0.05), 100, 0)
    assert sum(bases(found[split]) for split in SPLITS) == 4_000_001
    for split, share in zip(SPLITS, (0.8, 0.15, 0.05), strict=True):
        assert abs(bases(found[split]) / 4_000_001 - share) < 2 / 256
    assert set(found["test"].chrom) == {0, 1}  # from all records
    other = split_by_fraction(whole, (0.8, 0.15, 0.05), 100, 1)
    again = split_by_fraction(whole, (0.8, 0.15, 0.05), 100, 0)
    assert not np.array_equal(found["test"].start, other["test"].start)
    assert np.array_equal(found["test"].start, again["test"].start)


def test_a_share_of_nothing_is_no_split_and_a_share_too_small_is_an_empty_one():
    found = split_by_fraction(Regions.whole(np.array([10_000])), (1.0, 0.0, 0.0), 10, 0)
    assert {split: bases(part) for split, part in found.items()} == {"train": 10_000}
    found = split_by_fraction(Regions.whole(np.array([30])), (0.9, 0.05, 0.05), 10, 0)
    assert {split: bases(part) for split, part in found.items()} == {
        "train": 20,
        "valid": 10,
        "test": 0,
    }


def test_intervals_that_overlap_are_dealt_once():
    twice = Regions(np.array([0, 0]), np.array([0, 500]), np.array([1000, 1500]))
    found = split_by_fraction(twice, (0.5, 0.25, 0.25), 10, 0)
    assert sum(bases(found[split]) for split in SPLITS) == 1500
    assert not overlaps(found["train"], found["test"]).any()


@pytest.mark.parametrize(
    "fractions",
    [(0.9, 0.2, -0.1), (0.5, 0.2, 0.2), (1.0, 1.0, 1.0), *permutations((math.nan, 0.5, 0.5))],
)
def test_bad_fractions(fractions):
    with pytest.raises(
        ValueError, match=r"three fractions .* that add up to 1, got \[.*for example"
    ):
        check_fractions(fractions)
