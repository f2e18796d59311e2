"""Overlap with the training rows, and the digest that identifies results."""

from dataclasses import replace

import numpy as np
import pytest

from genomics.finetune.labelled import SHARED_BASES, Labelled, LabelledTask, seen, seen_in_task
from genomics.sequence.alphabet import encode, reverse_complement
from genomics.sequence.intervals import Interval
from tests.genomics.labelled_data import data

# Overlap with the training rows


def test_copies_on_either_strand_are_seen() -> None:
    found = seen(data("ACCT", "GGGN"), data("ACCT", "AGGT", "ACCTA", "NCCC", "TGGA", "TCCA"))
    assert found.tolist() == [True, True, False, True, False, False]


def test_overlaps_are_seen_and_neighbours_are_not() -> None:
    train = [Interval("a", 10, 20), Interval("a", 40, 50), Interval("b", 0, 5)]
    asked = [(0, 10), (0, 11), (12, 15), (19, 40), (20, 40), (49, 60), (5, 60)]
    test = [Interval("a", start, end, strand="-") for start, end in asked]
    test.append(Interval("b", 5, 9))
    found = seen(data(*["A" * 9] * 3, at=train), data(*[f"C{'G' * n}" for n in range(8)], at=test))
    assert found.tolist() == [False, True, True, True, False, True, True, False]


def test_overlaps_by_hand_and_by_definition() -> None:
    rng = np.random.default_rng(1)
    made = []
    for _ in range(2):
        starts = rng.integers(0, 500, 40)
        widths = rng.integers(1, 12, 40)
        made.append(
            [Interval("c", int(s), int(s + w)) for s, w in zip(starts, widths, strict=True)]
        )
    train, test = made
    expected = [any(i.start < j.end and j.start < i.end for j in train) for i in test]
    one, two = (encode("A"),), (encode("C"),)
    zeros = np.zeros(40, dtype=np.int64)
    found = seen(Labelled(one * 40, zeros, tuple(train)), Labelled(two * 40, zeros, tuple(test)))
    assert found.tolist() == expected and 0 < sum(expected) < 40


# Without known coordinates

OURS, THEIRS = (
    np.random.default_rng(seed).integers(0, 4, 200, dtype=np.uint8) for seed in range(2)
)


def labelled(*rows: np.ndarray) -> Labelled:
    return Labelled(tuple(rows), np.zeros(len(rows), dtype=np.int64))


def bounded(word: np.ndarray) -> np.ndarray:
    """A word in letters that differ from those beside it."""
    start = next(i for i in range(200) if np.array_equal(OURS[i : i + len(word)], word))
    before, after = (OURS[start - 1] + 1) % 4, (OURS[start + len(word)] + 1) % 4
    return np.concatenate([THEIRS[:30], [before], word, [after], THEIRS[-30:]]).astype(np.uint8)


@pytest.mark.parametrize("opposite", [False, True])
@pytest.mark.parametrize(("shared", "expected"), [(51, True), (50, True), (49, False)])
def test_fifty_bases_in_a_row_are_the_same_place(
    shared: int, expected: bool, opposite: bool
) -> None:
    assert SHARED_BASES == 50
    row = bounded(OURS[60 : 60 + shared])
    if opposite:
        row = reverse_complement(row)
    found = seen(labelled(THEIRS[60:140], OURS), labelled(THEIRS[:50] ^ 1, row, OURS[60:110]))
    assert found.tolist() == [False, expected, True]


@pytest.mark.parametrize("side", ["train", "test", "both"])
def test_an_n_is_shared_with_nothing(side: str) -> None:
    """49 bases, an N, 49 bases; without the N they are 99 in a row."""
    train, row = OURS.copy(), bounded(OURS[60:159])
    assert seen(labelled(train), labelled(row)).tolist() == [True]
    if side != "test":
        train[109] = 4
    if side != "train":
        row[31 + 49] = 4
    assert seen(labelled(train), labelled(row)).tolist() == [False]


@pytest.mark.parametrize("size", [1, 20, 49])
def test_a_shorter_sequence_is_seen_by_a_copy_alone(size: int) -> None:
    row = OURS[60 : 60 + size]
    assert seen(labelled(OURS), labelled(row, OURS)).tolist() == [False, True]
    for copy in (row, reverse_complement(row)):
        assert seen(labelled(THEIRS, copy), labelled(row)).tolist() == [True]
    assert seen(labelled(row), labelled(OURS)).tolist() == [False]


def test_two_sequences_are_not_read_as_one() -> None:
    """The fifty bases occur in train, but half in one sequence and half in the next."""
    found = seen(labelled(OURS[:75], OURS[75:]), labelled(OURS[50:100], OURS[25:75]))
    assert found.tolist() == [False, True]


def test_coordinates_of_one_side_alone_say_nothing() -> None:
    place = (Interval("a", 0, 50),)
    train, test = replace(labelled(OURS), intervals=place), labelled(OURS[60:110])
    assert seen(train, test).tolist() == [True]
    assert seen(labelled(OURS), replace(test, intervals=place)).tolist() == [True]
    there = replace(test, intervals=(Interval("a", 50, 100),))
    assert seen(train, there).tolist() == [False], "coordinates are believed where both have them"
    copy = replace(labelled(OURS), intervals=(Interval("b", 0, 200),))
    assert seen(train, copy).tolist() == [True], "a copy from another place is a copy"


@pytest.mark.parametrize("rule", ["copy", "place", "stretch"])
def test_what_is_in_the_validation_set_is_seen(rule: str) -> None:
    rows = {"copy": OURS[:30], "place": THEIRS[9:12], "stretch": OURS[60:110]}
    test = labelled(THEIRS[:40], rows[rule])
    train, valid = labelled(THEIRS[50:]), labelled(OURS if rule == "stretch" else OURS[:30])
    if rule == "place":
        train = replace(train, intervals=(Interval("a", 50, 200),))
        valid = replace(valid, intervals=(Interval("a", 10, 11),))
        test = replace(test, intervals=(Interval("a", 0, 10), Interval("a", 9, 12)))
    task = LabelledTask("t", ("a", "b"), train, valid, test)
    assert seen_in_task(task).tolist() == [False, True]
    assert seen_in_task(replace(task, valid=None)).tolist() == [False, False], "the broken twin"
    assert seen_in_task(replace(task, train=valid, valid=train)).tolist() == [False, True]


# The digest


def task(**changes: object) -> LabelledTask:
    made = LabelledTask("t", ("a", "b"), data("AC", "G"), None, data("AA", "C"))
    return replace(made, **changes)


def relabelled(part: Labelled) -> Labelled:
    return replace(part, labels=np.array([0, 1]))


PLACES = [Interval("g:a", 0, 2), Interval("g:a", 5, 6)]
MOVED = [[Interval("g:b", 0, 2), PLACES[1]], [PLACES[0], Interval("g:a", 6, 7)]]


def test_the_fingerprint_sees_letters_labels_order_classes_and_places() -> None:
    different = [
        task(),
        task(classes=("a", "c")),
        *(
            task(**{split: part})
            for split in ("train", "test")
            for part in (
                data("AC", "T"),
                data("G", "AC"),
                data("A", "CG"),
                data("ACG"),
                relabelled(data("AC", "G") if split == "train" else data("AA", "C")),
                *(
                    data(*(("AC", "G") if split == "train" else ("AA", "C")), at=places)
                    for places in (PLACES, *MOVED)
                ),
            )
        ),
        task(valid=data("AC", "G")),
        task(valid=relabelled(data("AC", "G"))),
        task(valid=data("AA", "C"), test=data("AC")),
        task(train=data("AC"), valid=data("G")),
    ]
    digests = [made.fingerprint for made in different]
    assert len(set(digests)) == len(digests)
    assert task(name="other", note="x").fingerprint == task().fingerprint
