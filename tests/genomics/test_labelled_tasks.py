"""Finding and loading tasks: splits, names, order of labels."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from genomics.finetune.labelled import Row, gather, seen
from genomics.finetune.tasks import find_tasks
from genomics.sequence.alphabet import decode, encode, reverse_complement
from seqdiff.cli.app import main
from tests.genomics.labelled_data import load, spelt, write

TABLE = "sequence,label\nGA,1\nAC,0\n"

# Folders, and the order of labels


def test_a_folder_task_has_one_label_order(tmp_path: Path) -> None:
    """The files are written so that the order in the folder differs between the splits."""
    for split, names in (("train", ("zeta", "alpha")), ("test", ("alpha", "zeta"))):
        for name in names:
            write(tmp_path / f"t/{split}/{name}/10.txt", "AC\n" if name == "alpha" else "gt")
            write(tmp_path / f"t/{split}/{name}/9.txt", "CA")
    task = load(tmp_path / "t")
    assert task.classes == ("alpha", "zeta")
    assert spelt(task.train) == [("CA", 0), ("AC", 0), ("CA", 1), ("GT", 1)]
    assert spelt(task.test) == spelt(task.train)


def test_labels_by_first_appearance_would_differ() -> None:
    """Broken twin: numbers the labels by first appearance in each split."""
    train = [Row(encode("AC"), "b"), Row(encode("GG"), "a")]
    test = [Row(encode("GG"), "a"), Row(encode("AC"), "b")]
    first_seen = [tuple(dict.fromkeys(row.label for row in part)) for part in (train, test)]
    assert first_seen[0] != first_seen[1]
    assert gather(train, ("a", "b")).labels.tolist() == [1, 0]
    assert gather(test, ("a", "b")).labels.tolist() == [0, 1]


def test_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name in ("a", "b"):
            write(tmp_path / f"s/t/{split}/{name}/1.txt", "AC")
    (tmp_path / "s/t/test/c").symlink_to("nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"test/c: is a link to nowhere, which does not exist"
    ):
        load(tmp_path / "s")
    (tmp_path / "s/t/test/c").unlink()
    (tmp_path / "s/other.csv").symlink_to("nowhere")
    with pytest.raises(
        FileNotFoundError, match=r"other\.csv: is a link .* correct or remove the link"
    ):
        load(tmp_path / "s")
    with pytest.raises(FileNotFoundError, match=r"other\.csv: is a link to nowhere"):
        find_tasks(tmp_path / "s/other.csv")
    (tmp_path / "s/other.csv").unlink()
    assert load(tmp_path / "s").classes == ("a", "b")


def test_a_split_that_is_a_link_to_nothing_is_named(tmp_path: Path) -> None:
    """It is not treated as a missing split."""
    write(tmp_path / "g/train.csv", TABLE)
    (tmp_path / "g/test.csv").symlink_to("nowhere")
    with pytest.raises(FileNotFoundError, match=r"g/test\.csv: is a link to nowhere"):
        find_tasks(tmp_path)


# Splits


@pytest.mark.parametrize("form", ["tables", "folders"])
@pytest.mark.parametrize("name", ["dev", "valid", "val", "validation"])
def test_a_task_with_a_validation_set(name: str, form: str, tmp_path: Path) -> None:
    for split, first in (("train", "AC"), (name, "CC"), ("test", "TT")):
        if form == "tables":
            write(tmp_path / f"g/{split}.csv.gz", f"sequence,label\n{first},0\nGA,1\n")
        else:
            write(tmp_path / f"g/{split}/0/a.txt", first)
            write(tmp_path / f"g/{split}/1/a.txt", "GA")
    task = load(tmp_path)
    assert task.valid is not None
    assert [spelt(p) for p in (task.train, task.valid, task.test)] == [
        [("AC", 0), ("GA", 1)],
        [("CC", 0), ("GA", 1)],
        [("TT", 0), ("GA", 1)],
    ]
    assert task.note.startswith(f"validation is {name}")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("train.csv", "dev.csv", "valid.csv", "test.csv"),
            r"one valid set, got dev\.csv and valid",
        ),
        (
            ("train.csv", "train.csv.gz", "test.csv"),
            r"one train set, got train\.csv and train\.csv\.",
        ),
        (
            ("train.csv", "dev.csv"),
            r"must hold train and test, got dev\.csv and train\.csv without",
        ),
        (("valid.csv", "test.csv"), r"got test\.csv and valid\.csv without train; complete"),
        (("train.csv",), r"got train\.csv without test.*a single table, which is split"),
        (("train/0/1.txt", "dev/0/1.txt"), r"got dev and train without test"),
        (
            ("train/0/1.txt", "val/0/1.txt", "dev/0/1.txt", "test/0/1.txt"),
            r"one valid set, got dev a",
        ),
    ],
)
def test_splits_that_do_not_fit_are_one_line(
    names: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    for name in names:
        write(tmp_path / "s/g" / name, TABLE)
    with pytest.raises(ValueError, match=rf"s/g: .*{message}") as caught:
        find_tasks(tmp_path / "s")
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_called_test_may_hold_tasks(tmp_path: Path) -> None:
    write(tmp_path / "test/a.csv", TABLE)
    assert [source.name for source in find_tasks(tmp_path)] == ["a"]


def test_names_that_are_repeated_are_made_distinct(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write(tmp_path / folder / "x.csv", TABLE)
        for split in ("train", "test"):
            write(tmp_path / folder / f"tf/0/{split}.csv", TABLE)
    write(tmp_path / "b/y.tsv", TABLE)
    assert [source.name for source in find_tasks(tmp_path)] == [
        "a/tf/0",
        "a/x.csv",
        "b/tf/0",
        "b/x.csv",
        "y",
    ]


def test_a_task_that_is_a_number_is_named_with_its_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"tf/0/{split}.csv", TABLE)
    assert [source.name for source in find_tasks(tmp_path / "tf/0")] == ["tf/0"]


def test_a_lone_table_is_split_by_content(tmp_path: Path) -> None:
    """A sequence and its reverse complement are in the same part, at any position.

    Tenths: the first eight bytes of the SHA-256 of the lesser strand, modulo 100.
    """
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4, 12, dtype=np.uint8) for _ in range(400)]
    both = rows + [reverse_complement(row) for row in rows]
    text = "sequence,label\n" + "".join(f"{decode(r)},{i % 2}\n" for i, r in enumerate(both))
    task = load(write(tmp_path / "one.csv", text))
    assert task.valid is not None and "not the official" in task.note
    expected: list[list[bytes]] = [[], [], []]
    for row in both:
        key = min(row.tobytes(), reverse_complement(row).tobytes())
        percent = int(hashlib.sha256(key).hexdigest()[:16], 16) % 100
        expected[0 if percent < 10 else 1 if percent < 20 else 2].append(row.tobytes())
    parts = (task.test, task.valid, task.train)
    assert [[ids.tobytes() for ids in part.ids] for part in parts] == expected
    assert not seen(task.train, task.test).any() and not seen(task.train, task.valid).any()


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_class_only_is_refused(split: str, tmp_path: Path) -> None:
    for name in ("train", "test"):
        text = "GA,1\nAC,1\n" if name == split else "GA,1\nAC,0\n"
        write(tmp_path / f"g/{name}.csv", f"sequence,label\n{text}")
    with pytest.raises(
        ValueError, match=rf"g/{split}\.csv:3: every split must hold every.*got no 0"
    ):
        load(tmp_path)
    write(tmp_path / "one.csv", "sequence,label\nGA,1\n\nAC,1\n")
    with pytest.raises(
        ValueError, match=r"one\.csv:4: a task must have .* two classes, got only 1"
    ):
        load(tmp_path / "one.csv")


def test_a_class_that_a_folder_lacks_is_named(tmp_path: Path) -> None:
    for name in ("train/a", "train/b", "test/a"):
        write(tmp_path / f"t/{name}/1.txt", "AC")
    with pytest.raises(ValueError, match=r"t/test: every split must hold every class, got no b;"):
        load(tmp_path / "t")


def test_what_the_split_leaves_out_is_said(tmp_path: Path) -> None:
    """A class with one row cannot be in three parts."""
    rng = np.random.default_rng(0)
    rows = [f"{decode(rng.integers(0, 4, 20, dtype=np.uint8))},a" for _ in range(100)]
    rows.insert(40, "ACGT,rare")
    path = write(tmp_path / "one.csv", "\n".join(["sequence,label", *rows, ""]))
    text = r"one\.csv:42: .* no row of class 'rare' \(1 rows, .*\) in (train|valid) after .*; give "
    with pytest.raises(ValueError, match=text):
        load(path)
    percent = int(hashlib.sha256(encode("ACGT").tobytes()).hexdigest()[:16], 16) % 100
    left_out = "valid" if percent >= 20 else "train"
    with pytest.raises(ValueError, match=rf"in {left_out} after the split .*; give tables for"):
        load(path)


def test_no_task_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must exist"):
        find_tasks(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="must hold a task"):
        find_tasks(tmp_path)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("d/train.csv", "d/dev.csv"), "d: must hold train and test, got dev.csv and train.csv"),
        (("d/a.csv", "link"), "is a link to nowhere"),
    ],
)
def test_the_command_says_it_in_one_line_and_writes_nothing(
    names: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names:
        if name == "link":
            (tmp_path / "d/link.csv").symlink_to("nowhere")
        else:
            write(tmp_path / name, TABLE)
    command = ["finetune", "--data", str(tmp_path / "d"), "--out", str(tmp_path / "out")]
    assert main(command) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and message in lines[0]
    assert not (tmp_path / "out").exists()
