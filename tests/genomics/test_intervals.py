import numpy as np
import pytest

from genomics.sequence.intervals import Interval, Regions, extended_windows, merge, overlaps, tile


def regions(*rows):
    return Regions(*np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy())


def rows(found):
    return list(zip(found.chrom.tolist(), found.start.tolist(), found.end.tolist(), strict=True))


def test_merge_joins_what_overlaps_or_touches():
    merged = merge(regions((1, 5, 9), (0, 0, 4), (0, 4, 6), (0, 8, 9), (1, 6, 7), (1, 0, 5)))
    assert rows(merged) == [(0, 0, 6), (0, 8, 9), (1, 0, 9)]
    assert len(merge(regions())) == 0


def test_overlaps_is_half_open_and_minds_the_chromosome():
    asked = regions((0, 0, 5), (0, 5, 9), (1, 0, 5), (0, 20, 21), (0, 2, 30))
    assert overlaps(asked, regions((0, 5, 6), (0, 18, 20))).tolist() == [
        False,
        True,
        False,
        False,
        True,
    ]
    assert overlaps(asked, regions()).tolist() == [False] * 5
    assert overlaps(regions(), asked).tolist() == []


@pytest.mark.parametrize(
    ("off_end", "expected"),
    [
        ("drop", [(0, 0, 4), (0, 4, 8), (2, 7, 11)]),
        ("shift", [(0, 0, 4), (0, 4, 8), (0, 6, 10), (2, 7, 11)]),
        ("pad", [(0, 0, 4), (0, 4, 8), (0, 8, 10), (1, 3, 6), (2, 7, 11)]),
    ],
)
def test_what_becomes_of_a_window_that_passes_the_end(off_end, expected):
    windows = tile(regions((0, 0, 10), (1, 3, 6), (2, 7, 11)), 4, 4, off_end)
    assert rows(windows) == expected
    assert windows.length == 4


@pytest.mark.parametrize(
    ("off_end", "starts"), [("drop", [0, 2, 4]), ("shift", [0, 2, 4, 5]), ("pad", [0, 2, 4, 6])]
)
def test_overlapping_windows_end_with_one_that_passes(off_end, starts):
    assert tile(regions((0, 0, 9)), 4, 2, off_end).start.tolist() == starts


def test_windows_with_gaps():
    assert tile(regions((0, 0, 20)), 3, 7, "shift").start.tolist() == [0, 7, 14]
    assert tile(regions((0, 0, 16)), 3, 7, "shift").start.tolist() == [0, 7, 13]
    assert tile(regions((0, 0, 13)), 3, 7, "pad").start.tolist() == [0, 7]


def test_an_unknown_policy(unchecked):
    with pytest.raises(ValueError, match=r"tile\.off_end must be shift, drop or pad, got 'wrap'"):
        tile(regions((0, 0, 9)), 4, 4, "wrap")


def test_bad_tilings():
    with pytest.raises(ValueError, match=r"tile\.length must be at least 1, got 0; give it in b"):
        tile(regions((0, 0, 9)), 0, 1, "drop")
    with pytest.raises(ValueError, match=r"tile\.stride must be at least 1, got 0"):
        tile(regions((0, 0, 9)), 4, 0, "drop")


def test_extended_windows_are_shifted_inside_the_chromosome():
    lengths = np.array([100, 13])
    windows = extended_windows(regions((0, 90, 95), (1, 3, 5)), lengths, 4, 16)
    assert rows(windows) == [
        (0, 90, 94),
        (0, 94, 98),
        (0, 96, 100),
        (0, 96, 100),
        (1, 3, 7),
        (1, 7, 11),
        (1, 9, 13),
        (1, 9, 13),
    ]


def test_bad_extensions():
    with pytest.raises(
        ValueError, match=r"extended_windows\.length must divide 16, got 5; use a power"
    ):
        extended_windows(regions((0, 0, 5)), np.array([100]), 5, 16)
    with pytest.raises(ValueError, match=r"shortest chromosome in use \(7 bases\), got 8"):
        extended_windows(regions((1, 0, 5)), np.array([100, 7]), 8, 16)


def test_conversion_from_intervals():
    found = Regions.from_intervals([Interval("b", 3, 5), Interval("a", 0, 1)], ["a", "b"])
    assert rows(found) == [(1, 3, 5), (0, 0, 1)]
    assert len(Regions.from_intervals([], ["a"])) == 0
    assert rows(Regions.whole(np.array([5, 6]))) == [(0, 0, 5), (1, 0, 6)]
