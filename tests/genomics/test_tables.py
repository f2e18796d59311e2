"""Tables of sequences with measured values: reading, splits, rows and errors."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genomics.data import TableDataModule
from genomics.data.windows import mirror
from genomics.io import canonical, hashed_fraction, read_table, split_rows
from genomics.sequence import decode, encode, reverse_complement
from seqdiff.data import Examples
from seqdiff.data.dataset import EvaluationSet, TrainingStream
from seqdiff.types import NO_LABEL

TEXT = """name\tsequence\tx\ty\tcell\tsplit
a\tacgt\t1\t-2\tliver\ttrain
b\tAAN\t\t4\tbrain\ttrain
c\tCCCC\t3\tNA\t\tvalid
d\tGATTA\t-1.5\t2e1\tliver\ttest
"""


def write(folder: Path, text: str = TEXT, name: str = "t.tsv") -> Path:
    path = folder / name
    path.write_text(text)
    return path


# Reading


def test_cells_are_read_as_they_are_meant(tmp_path: Path) -> None:
    found = read_table(write(tmp_path), signals=["y", "x"], label="cell")
    assert found.names == ["a", "b", "c", "d"] and found.rows.tolist() == [2, 3, 4, 5]
    assert found.sequences == ["ACGT", "AAN", "CCCC", "GATTA"]
    assert found.columns == ("y", "x")
    wanted = [[-2, 1], [4, np.nan], [np.nan, 3], [20, -1.5]]
    assert np.array_equal(found.values, wanted, equal_nan=True)
    assert found.split == ["train", "train", "valid", "test"] and found.groups is None
    assert found.labels == ["liver", "brain", "", "liver"]
    part = found.select(np.array([3, 0]))
    assert part.names == ["d", "a"] and part.values[:, 1].tolist() == [-1.5, 1]
    assert part.split == ["test", "train"] and part.labels == ["liver", "liver"]


def test_every_format_holds_the_same_table(tmp_path: Path) -> None:
    wanted = read_table(write(tmp_path), signals=["x", "y"])
    write(tmp_path, TEXT.replace("\t", ","), "t.csv")
    (tmp_path / "t.tsv.gz").write_bytes(gzip.compress(TEXT.encode()))
    frame = pd.read_csv(tmp_path / "t.tsv", sep="\t")
    frame.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.tsv.gz", "t.parquet"):
        found = read_table(tmp_path / name, signals=["x", "y"])
        assert found.sequences == wanted.sequences and found.names == wanted.names
        assert np.array_equal(found.values, wanted.values, equal_nan=True)
        assert found.split == wanted.split


BAD = {
    "an unknown column": (TEXT, {"signals": ["z"]}, "must have a column 'z', got the columns name"),
    "a column twice": (TEXT, {"signals": ["x", "x"]}, "must name each column once, got 'x' twice"),
    "a word": (TEXT.replace("-1.5", "low"), {"signals": ["x"]}, "row 5: x must be a finite number"),
    "infinity": (TEXT.replace("-1.5", "inf"), {"signals": ["x"]}, "row 5: x must be a finite"),
    "a constant": ("sequence\tx\nA\t1\nC\t1\n", {"signals": ["x"]}, "got 1 in every row; drop it"),
    "nothing": ("sequence\tx\nA\t\nC\tNA\n", {"signals": ["x"]}, "got no value; drop it"),
    "an empty row": (
        "sequence\tx\ty\nA\t1\t2\nC\tNA\t\nG\t3\t1\n",
        {"signals": ["x", "y"]},
        "row 3 must have a value of x or y, got none, as in 1 rows",
    ),
    "no DNA": ("sequence\tx\nA\t1\nC!\t2\n", {"signals": ["x"]}, "row 3: .*'!'"),
    "no sequence": ("sequence\tx\nA\t1\n\t2\n", {"signals": ["x"]}, "row 3 must have a sequence"),
    "no row": ("sequence\tx\n", {"signals": ["x"]}, "must hold at least one sequence"),
    "no text": ("", {}, "must hold a table, got an empty file"),
    "a bad split": (
        TEXT,
        {"split": "cell"},
        "row 2: cell must be train, valid or test, got",
    ),
    "ragged": ("sequence\tx\nA\t1\nC\t2\t3\n", {"signals": ["x"]}, "must be a table, got"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused(name: str, tmp_path: Path) -> None:
    text, options, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        read_table(write(tmp_path, text), **options)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"^data\.table must be an existing file, got"):
        read_table(tmp_path / "missing.tsv")
    with pytest.raises(ValueError, match="the file name must end in"):
        read_table(write(tmp_path, TEXT, "t.xlsx"))
    with pytest.raises(ValueError, match="must be a table, got"):
        read_table(write(tmp_path, TEXT, "t.tsv.gz"))
    with pytest.raises(ValueError, match="must be a table, got"):
        read_table(write(tmp_path, TEXT, "t.parquet"))


# Splits

DNA = st.text("ACGT", min_size=1, max_size=12)


@settings(max_examples=60)
@given(DNA)
def test_both_strands_have_one_name(sequence: str) -> None:
    other = decode(reverse_complement(encode(sequence)))
    assert canonical(sequence) == canonical(other) == min(sequence, other)


def test_a_hash_is_the_same_everywhere_and_uniform() -> None:
    """Of 4,000 draws 400 +- 19 lie below .1; |z| < 4.9 has a false-alarm rate of 1e-6."""
    assert hashed_fraction("ACGT", 0) == pytest.approx(0.04019757058372925, abs=1e-12)
    draws = np.array([hashed_fraction(str(i), 0) for i in range(4000)])
    assert 0 <= draws.min() and draws.max() < 1
    assert abs(int((draws < 0.1).sum()) - 400) < 4.9 * 19
    assert hashed_fraction("a", 0) != hashed_fraction("a", 1)


def random_table(folder: Path, rows: int = 400, groups: int = 40) -> Path:
    rng = np.random.default_rng(0)
    lines = ["sequence\tx\tgroup"]
    for i in range(rows):
        text = "".join(rng.choice(list("ACGT"), 30))
        lines.append(f"{text}\t{i}\tg{i % groups}")
    return write(folder, "\n".join(lines) + "\n", "r.tsv")


def test_hashed_splits_keep_groups_and_strands_together(tmp_path: Path) -> None:
    path = random_table(tmp_path)
    table = read_table(path, signals=["x"])
    parts = split_rows(table)
    assert sorted(np.concatenate(list(parts.values())).tolist()) == list(range(400))
    assert 280 < len(parts["train"]) < 355 and len(parts["valid"]) > 20 and len(parts["test"]) > 20
    turned = [decode(reverse_complement(encode(s))) for s in table.sequences]
    other = split_rows(table.__class__(**(vars(table) | {"sequences": turned})))
    assert all(np.array_equal(parts[split], other[split]) for split in parts)
    again = split_rows(table.select(np.arange(200)))
    assert set(again["test"]) == {i for i in parts["test"] if i < 200}, "rows do not move"
    assert not np.array_equal(split_rows(table, seed=1)["test"], parts["test"])
    grouped = read_table(path, signals=["x"], group="group")
    groups = [{grouped.groups[i] for i in rows} for rows in split_rows(grouped).values()]
    assert len(groups) == 3 and not (groups[0] & groups[1] or groups[0] & groups[2])
    assert any(groups[0] & {f"g{i % 40}" for i in rows} for rows in (parts["test"],)), "the twin"


def test_copies_in_two_splits_are_refused(tmp_path: Path) -> None:
    for copy in ("ACGA", "TCGT"):
        text = f"sequence\tsplit\nACGA\ttrain\nCCCC\ttest\n{copy}\ttest\n"
        with pytest.raises(ValueError, match=r"got row 2 again in row 4 of another split, and 1"):
            split_rows(read_table(write(tmp_path, text)))
    with pytest.raises(ValueError, match="the train split must hold a row"):
        split_rows(read_table(write(tmp_path, "sequence\tsplit\nACGA\ttest\n")))


# The data module


def test_rows_hold_sequences_values_classes_and_padding(tmp_path: Path) -> None:
    data = TableDataModule(
        write(tmp_path), ["x", "y"], labels=["brain", "liver"], label_column="cell"
    )
    assert data.signals == ["x", "y"] and data.context_length is None
    assert data.found() == {"length": 5} and data.context_length == 5
    train = EvaluationSet(data.dataset("train")).__getitems__([0, 1])
    assert [decode(row) for row in train.tokens.numpy()] == ["ACGTN", "AANNN"]
    assert train.padding.tolist() == [[False] * 4 + [True], [False] * 3 + [True] * 2]
    assert train.loss_mask.tolist() == [[True] * 4 + [False], [True, True] + [False] * 3]
    assert train.label.tolist() == [1, 0]
    assert np.array_equal(train.signal.numpy(), [[1, -2], [np.nan, 4]], equal_nan=True)
    assert EvaluationSet(data.dataset("valid"))[0].label.tolist() == [NO_LABEL]
    assert EvaluationSet(data.dataset("test"))[0].padding is None, "its only row is full"


def test_full_rows_have_no_padding_and_clipped_values(tmp_path: Path) -> None:
    data = TableDataModule(random_table(tmp_path), ["x"], clip=(10.0, 50.0))
    batch = EvaluationSet(data.dataset("train")).__getitems__(range(len(data.dataset("train"))))
    assert batch.padding is None and batch.label is None
    assert float(batch.signal.min()) == 10 and float(batch.signal.max()) == 50


def test_the_other_strand_keeps_padding_at_the_end_and_turns_tracks() -> None:
    tokens = np.array([[0, 1, 2, 4], [0, 1, 2, 3]], dtype=np.uint8)
    padding = np.array([[False] * 3 + [True], [False] * 4])
    track = np.arange(8, dtype=np.float32).reshape(2, 4, 1)
    rows = Examples(tokens, tokens < 4, None, padding, track)
    found = mirror(rows, np.array([True, False]))
    assert found.tokens.tolist() == [[1, 2, 3, 4], [0, 1, 2, 3]]
    assert found.signal[..., 0].tolist() == [[2, 1, 0, 3], [4, 5, 6, 7]]
    assert found.loss_mask.tolist() == [[True] * 3 + [False], [True] * 4]
    vector = Examples(tokens, tokens < 4, None, None, track[:, 0])
    assert mirror(vector, np.array([True, True])).signal is vector.signal


def test_strands_are_mixed_only_if_asked(tmp_path: Path) -> None:
    path = random_table(tmp_path)
    for both in (False, True):
        data = TableDataModule(path, ["x"], reverse_complement=both)
        dataset = data.dataset("train")
        batch = TrainingStream(dataset, 0).__getitems__(list(range(len(dataset))))
        known = {sequence for sequence in dataset.table.sequences}
        seen = [decode(row) in known for row in batch.tokens.numpy()]
        assert all(seen) != both


REFUSED = {
    "length": ({"length": 0}, "length must be at least 1, got 0"),
    "short": ({"length": 4}, r"length must be at least that of the longest .*, 5, got 4"),
    "split": ({"split": (0.5, 0.1, 0.1)}, "split must be fractions of train, valid and test"),
    "labels": ({"labels": ["a"]}, "label_column must be given too, got none"),
    "column": ({"label_column": "cell"}, "labels must be given too, got none"),
    "repeated": ({"labels": ["a", "a"], "label_column": "cell"}, "labels must be different names"),
    "unknown": ({"labels": ["brain"], "label_column": "cell"}, "row 2: cell must be one of brain"),
    "absent": (
        {"labels": ["brain", "liver", "skin"], "label_column": "cell"},
        "labels must all occur in .*, got 'skin' in no row",
    ),
    "clip": ({"clip": (1.0, 1.0)}, "clip must be a lower and a higher value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        TableDataModule(write(tmp_path), ["x", "y"], **options).dataset("train")


def test_a_split_without_rows_is_named(tmp_path: Path) -> None:
    text = "\n".join(TEXT.splitlines()[:-1]) + "\n"
    with pytest.raises(ValueError, match=r"there is no test split in .*, only train and valid"):
        TableDataModule(write(tmp_path, text, "u.tsv"), ["x", "y"]).dataset("test")


def test_baselines_are_fitted_to_the_training_rows(tmp_path: Path) -> None:
    data = TableDataModule(random_table(tmp_path), ["x"])
    found = data.baselines("test")
    tokens = len(data.dataset("test")) * 30
    assert int(found["Markov order 0"].num_tokens.sum()) == tokens
    assert found["Markov order 0"].bits_per_token == pytest.approx(2.0, abs=0.02)
    assert any(name.startswith("interpolated") for name in found)
