"""Tables of sequences with measured values: reading, splits, rows and errors."""

import gzip
import sys
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genomics.data import TableDataModule
from genomics.data.windows import mirror
from genomics.io import canonical, hashed_fraction, read_table, split_rows, tables
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
    assert found.rows.tolist() == [1, 2, 3, 4], "a parquet file has no row of names"


def test_blanks_do_not_count_and_missing_values_have_several_names(tmp_path: Path) -> None:
    cells = ["1", " 2 ", "", " ", "NA", "N/A", "nan", "NaN"]
    lines = [f" ac{'gt' * i} \t{cell}\t{i}" for i, cell in enumerate(cells)]
    found = read_table(write(tmp_path, "\n".join(["sequence\tx\ty", *lines])), signals=["x", "y"])
    assert found.sequences == ["AC" + "GT" * i for i in range(8)]
    assert np.array_equal(found.values[:, 0], [1, 2, *[np.nan] * 6], equal_nan=True)


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
    "a missing sequence": (
        "sequence\tx\nA\t1\nNA\t2\n",
        {"signals": ["x"]},
        "row 3 must have a sequence",
    ),
    "no sequence": ("sequence\tx\nA\t1\n\t2\n", {"signals": ["x"]}, "row 3 must have a sequence"),
    "no row": ("sequence\tx\n", {"signals": ["x"]}, "must hold at least one sequence"),
    "no text": ("", {}, "must hold a table, got an empty file"),
    "a bad split": (
        TEXT,
        {"split": "cell"},
        "row 2: cell must be train, valid or test, got",
    ),
    "unknown bases": ("sequence\tx\nA\t1\nNN\t2\n", {}, "row 3 must have a known base, got 2"),
    "a misspelt split": (
        TEXT.replace("valid", "val"),
        {},
        "row 4: split must be train, valid or test, got 'val'",
    ),
    "more cells than names": ("sequence\tx\nA\t1\t9\n", {}, "row 2 must not have more cells than"),
    "a row after a blank line": ("sequence\tx\n\nA\t1\nC!\t2\n", {}, "row 4: .*'!'"),
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


def test_the_metadata_of_pandas_is_not_read(tmp_path: Path) -> None:
    """It may be damaged, and an index is a column."""
    frame = pd.DataFrame({"id": ["a", "b"], "sequence": ["AC", "G"]}).set_index("id")
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", name="id").names == ["a", "b"]
    table = pq.read_table(tmp_path / "t.parquet")
    pq.write_table(table.replace_schema_metadata({"pandas": "{}"}), tmp_path / "t.parquet")
    assert read_table(tmp_path / "t.parquet", name="id").names == ["a", "b"]


def test_parquet_needs_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pd.DataFrame({"sequence": ["AC"]}).to_parquet(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ValueError, match=r"^genomics.io.tables must have the package pyarrow, got"):
        read_table(tmp_path / "t.parquet")


def test_another_column_named_split_is_not_used(tmp_path: Path) -> None:
    found = read_table(write(tmp_path, "sequence\tsplit\nA\tleft\nC\tright\n"))
    assert found.split is None


# Arrays

ONE_HOT = np.eye(4)[[[0, 1, 2], [3, 0, 1], [2, 2, 2]]]  # ACG, TAC, GGG
VECTORS = np.array([[1.5, -2], [np.nan, 4], [0, 1]])
TRACKS = np.arange(18, dtype=float).reshape(3, 3, 2)


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    return path


@pytest.mark.parametrize("suffix", [".npz", ".h5", ".hdf5"])
def test_arrays_of_every_layout_are_tables(suffix: str, tmp_path: Path) -> None:
    first, last = slice(0, 2), slice(2, 3)
    files = {
        "long": {
            f"{kind}_{split}": array[rows]
            for split, rows in (("train", first), ("test", last))
            for kind, array in (("onehot", ONE_HOT.astype(np.uint8)), ("y", VECTORS))
        },
        "wide": {
            f"{kind}_{split}": array[rows]
            for split, rows in (("train", first), ("test", last))
            for kind, array in (
                ("X", ONE_HOT.astype(np.float32).swapaxes(1, 2)),
                ("Y", VECTORS),
                ("X_dinucShuff", ONE_HOT),
            )
        },
    }
    for name, arrays in files.items():
        if name == "wide":  # three positions, so that [R, 4, L] is no [R, L, 4]
            assert arrays["X_train"].shape == (2, 4, 3)
        found = read_table(write_arrays(tmp_path / f"{name}{suffix}", arrays), signals=["a", "b"])
        assert found.sequences == ["ACG", "TAC", "GGG"] and found.columns == ("a", "b")
        assert found.names == ["train_0", "train_1", "test_0"]
        assert found.split == ["train", "train", "test"] and found.rows.tolist() == [0, 1, 0]
        assert np.array_equal(found.values, VECTORS, equal_nan=True)
        assert found.values.dtype == np.float64
    joint = {"train": np.concatenate([ONE_HOT, TRACKS], axis=2)}
    path = write_arrays(tmp_path / f"joint{suffix}", joint)
    found = read_table(path, signals=["a"])
    assert found.values.dtype == np.float32 and found.values[..., 0].tolist() == [
        [0, 2, 4],
        [6, 8, 10],
        [12, 14, 16],
    ]
    assert np.array_equal(read_table(path, signals=["a", "b"]).values, TRACKS)
    assert read_table(path).values.shape == (3, 0)
    plain = {"X": ONE_HOT, "y": VECTORS[:, 1]}
    found = read_table(write_arrays(tmp_path / f"plain{suffix}", plain), signals=["a"])
    assert found.split is None and found.names == ["0", "1", "2"]
    assert found.values.tolist() == [[-2], [4], [1]]


def test_unknown_bases_of_arrays_are_n(tmp_path: Path) -> None:
    one_hot = ONE_HOT.copy()
    one_hot[0, 1], one_hot[1, 2] = 0, 0.25
    found = read_table(write_arrays(tmp_path / "t.npz", {"X": one_hot}))
    assert found.sequences == ["ANG", "TAN", "GGG"]


def test_arrays_are_read_in_blocks_of_rows(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tables, "_BLOCK_ROWS", 2)
    for suffix in (".npz", ".h5"):
        path = write_arrays(tmp_path / f"t{suffix}", {"train": np.dstack([ONE_HOT, TRACKS])})
        found = read_table(path, signals=["a", "b"])
        assert found.sequences == ["ACG", "TAC", "GGG"] and np.array_equal(found.values, TRACKS)
    bad = write_arrays(tmp_path / "bad.npz", {"X": ONE_HOT * [[[1]], [[1]], [[2]]]})
    with pytest.raises(ValueError, match=r"X\[2\] must be one-hot"):
        read_table(bad)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.text("ACGTN", min_size=5, max_size=5).filter(lambda s: s != "NNNNN"), min_size=1)
)
def test_sequences_survive_arrays(tmp_path: Path, sequences: list[str]) -> None:
    one_hot = np.array([np.eye(5)[encode(text)][:, :4] for text in sequences])
    for array in (one_hot, one_hot.swapaxes(1, 2)):
        found = read_table(write_arrays(tmp_path / "t.h5", {"onehot_valid": array}))
        assert found.sequences == sequences and set(found.split) == {"valid"}


BAD_ARRAYS = {
    "other names": ({"seqs": ONE_HOT}, r"must hold arrays onehot_train and y_train, .* got seqs"),
    "no values": ({"X_train": ONE_HOT}, r"must hold the values of X_train, .*; add y_train"),
    "flat": ({"X": ONE_HOT[:, 0]}, r"X must have shape \[R, L, 4\] or \[R, 4, L\], got \[3, 4\]"),
    "five": ({"X": np.ones((2, 5, 5))}, r"got \[2, 5, 5\]; convert it"),
    "joint": ({"train": np.ones((2, 5, 3))}, r"train must have shape \[R, L, 4 \+ S\], got"),
    "empty": ({"X": ONE_HOT[:0]}, r"X must hold a sequence, got shape \[0, 3, 4\]"),
    "text": ({"X": np.full((2, 3, 4), "A")}, r"X must hold numbers, got <U1; convert it"),
    "objects": ({"X": np.array([[["A", 1.0, None, 2]]], dtype=object)}, "X must hold numbers, got"),
    "soft": (
        {"X": ONE_HOT * 0.9},
        r"X\[0\] must be one-hot, got \[0\.9, 0\.0, 0\.0, 0\.0\] at position 0; write 1",
    ),
    "two bases": (
        {"X": ONE_HOT + 0.5 * np.roll(ONE_HOT, 1, axis=2), "y": VECTORS},
        r"X\[0\] must be one-hot, got \[1\.0, 0\.5, 0\.0, 0\.0\] at position 0",
    ),
    "every base": ({"X": np.ones((2, 3, 4))}, r"X\[0\] must be one-hot, got \[1\.0, 1\.0, 1\.0"),
    "nothing": (
        {"X": ONE_HOT * [[[1]], [[0]], [[1]]], "y": VECTORS},
        r"X\[1\] must have a known base, got none",
    ),
    "width": (
        {"X": ONE_HOT, "y": VECTORS[:, :1]},
        r"y must have shape \[3, 2\] or \[3, 3, 2\] for the signals a, b, got shape \[3, 1\]; name",
    ),
    "length": ({"X": ONE_HOT, "y": TRACKS[:, :2]}, r"got shape \[3, 2, 2\]; name as many"),
    "channels": ({"train": ONE_HOT}, r"train must have shape .*, got 0 channels after the bases"),
    "words": ({"X": ONE_HOT, "y": np.full((3, 2), "low")}, r"y must hold numbers, got <U3"),
    "infinity": (
        {"X": ONE_HOT, "y": VECTORS + np.array([0, np.inf])},
        r"y\[0\] must be finite, got infinity",
    ),
    "constant": (
        {"X": ONE_HOT, "y": VECTORS[:, [0, 0]] * [1, 0] + 2},
        r"b must vary .*, got 2 in every row",
    ),
    "an empty row": (
        {"X": ONE_HOT, "y": TRACKS * [[[1]], [[np.nan]], [[1]]]},
        r"X\[1\] must have a value of a or b, got none, as in 1 rows",
    ),
    "two kinds": (
        {"X_train": ONE_HOT, "y_train": TRACKS, "X_test": ONE_HOT, "y_test": VECTORS},
        r"one shape, got \[3, 2\] in y_train and \[2\] in y_test",
    ),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays_are_refused(name: str, tmp_path: Path) -> None:
    arrays, message = BAD_ARRAYS[name]
    path = write_arrays(tmp_path / "t.npz", arrays)
    with pytest.raises(ValueError, match=rf"t\.npz: .*{message}"):
        read_table(path, signals=["a", "b"])


def test_bad_files_of_arrays_are_refused(tmp_path: Path) -> None:
    for suffix in (".npz", ".h5"):
        with pytest.raises(FileNotFoundError, match="must be an existing file"):
            read_table(tmp_path / f"missing{suffix}")
        whole = write_arrays(tmp_path / f"t{suffix}", {"X": ONE_HOT}).read_bytes()
        for content in (b"", b"no arrays", whole[: len(whole) // 2]):
            (tmp_path / f"t{suffix}").write_bytes(content)
            with pytest.raises(ValueError, match=r"must hold arrays, got: .*; write it again"):
                read_table(tmp_path / f"t{suffix}")
    path = write_arrays(tmp_path / "u.npz", {"X": ONE_HOT, "y": VECTORS})
    with pytest.raises(ValueError, match="arrays have no columns, got the column 'c' of the group"):
        read_table(path, group="c")
    with pytest.raises(ValueError, match="must name each column once"):
        read_table(path, signals=["a", "a"])


def test_a_module_finds_whether_arrays_hold_tracks(tmp_path: Path) -> None:
    arrays = {"X_train": ONE_HOT, "y_train": TRACKS}
    path = write_arrays(tmp_path / "t.npz", arrays)
    data = TableDataModule(path, ["a", "b"], length=4)
    assert not data.signal_tracks and data.found() == {"length": 4, "signal_tracks": True}
    assert data.signal_tracks and TableDataModule(path, ["a"], signal_tracks=True).signal_tracks
    found = EvaluationSet(data.dataset("train"))[1].signal
    wanted = [[6, 7], [8, 9], [10, 11], [np.nan, np.nan]]
    assert np.array_equal(found[0], wanted, equal_nan=True)
    with pytest.raises(ValueError, match=r"signal_tracks must be true for the values of .*, got f"):
        TableDataModule(path, ["a", "b"], signal_tracks=False).dataset("train")


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


def test_rows_without_a_group_are_on_their_own(tmp_path: Path) -> None:
    """In a twin where they form one group, all of them are in one split."""
    lines = random_table(tmp_path).read_text().splitlines()
    bare = [line.rpartition("\t")[0] + "\t" for line in lines[1:]]
    table = read_table(write(tmp_path, "\n".join([lines[0], *bare])), group="group")
    found, alone = split_rows(table), split_rows(read_table(table.path))
    assert all(np.array_equal(found[split], alone[split]) for split in ("train", "valid", "test"))


def test_a_split_without_a_fraction_is_left_out(tmp_path: Path) -> None:
    table = read_table(random_table(tmp_path))
    parts = split_rows(table, (0.5, 0.5, 0.0))
    assert set(parts) == {"train", "valid"} and abs(len(parts["train"]) - 200) < 4.9 * 10


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
    assert data.found() == {"length": 5, "signal_tracks": False} and data.context_length == 5
    train = EvaluationSet(data.dataset("train")).__getitems__([0, 1])
    assert [decode(row) for row in train.tokens.numpy()] == ["ACGTN", "AANNN"]
    assert train.padding.tolist() == [[False] * 4 + [True], [False] * 3 + [True] * 2]
    assert train.loss_mask.tolist() == [[True] * 4 + [False], [True, True] + [False] * 3]
    assert train.label.tolist() == [1, 0]
    assert np.array_equal(train.signal.numpy(), [[1, -2], [np.nan, 4]], equal_nan=True)
    assert EvaluationSet(data.dataset("valid"))[0].label.tolist() == [NO_LABEL]
    assert EvaluationSet(data.dataset("test"))[0].padding is None, "its only row is full"


def test_columns_and_splits_are_those_that_are_named(tmp_path: Path) -> None:
    text = random_table(tmp_path).read_text().replace("sequence", "dna")
    path, fractions = write(tmp_path, text), (0.5, 0.3, 0.2)
    data = TableDataModule(
        path, ["x"], sequence="dna", group="group", split=fractions, split_seed=3
    )
    table = read_table(path, sequence="dna", group="group")
    for split, rows in split_rows(table, fractions, 3).items():
        assert data.dataset(split).table.rows.tolist() == table.rows[rows].tolist()
    named = TableDataModule(
        write(tmp_path, TEXT.replace("split", "part"), "p.tsv"), ["x", "y"], split_column="part"
    )
    assert [named.dataset(s).table.names for s in ("train", "valid", "test")] == [
        ["a", "b"],
        ["c"],
        ["d"],
    ]


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
        deviation = 0.5 * len(seen) ** 0.5  # |z| < 4.9 has a false-alarm rate of 1e-6
        assert not both or abs(sum(seen) - len(seen) / 2) < 4.9 * deviation


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
    "untrained": (
        {"labels": ["brain", "liver", "skin"], "label_column": "cell"},
        "'skin' only in valid or test; drop the name, or move some of its rows",
    ),
    "clip": ({"clip": (1.0, 1.0)}, "clip must be a lower and a higher value"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_refused(name: str, tmp_path: Path) -> None:
    options, message = REFUSED[name]
    text = TEXT.replace("liver\ttest", "skin\ttest") if name == "untrained" else TEXT
    with pytest.raises(ValueError, match=message):
        TableDataModule(write(tmp_path, text), ["x", "y"], **options).dataset("train")


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


def test_baselines_read_the_strands_that_training_reads(tmp_path: Path) -> None:
    """Rows of A and C take a bit for a base, and two bits if T and G of other strands count."""
    rng = np.random.default_rng(0)
    rows = ["".join(rng.choice(list("AC"), 30)) + f"\t{i}" for i in range(100)]
    path = write(tmp_path, "\n".join(["sequence\tx", *rows]))
    for both, bits in ((False, 1.0), (True, 2.0)):
        data = TableDataModule(path, ["x"], reverse_complement=both)
        found = data.baselines("test")["Markov order 0"]
        assert found.bits_per_token == pytest.approx(bits, abs=0.03)


def test_damaged_headers_of_arrays_are_errors(tmp_path: Path) -> None:
    path = write_arrays(tmp_path / "t.npz", {"X": ONE_HOT, "y": VECTORS})
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for damaged in (members["X.npy"].replace(b"}", b" ", 1), b"no array"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in {**members, "X.npy": damaged}.items():
                archive.writestr(name, content)
        with pytest.raises(ValueError, match=r"t\.npz: X must hold numbers, got"):
            read_table(path)
