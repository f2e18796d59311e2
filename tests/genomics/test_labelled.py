"""Readers of labelled sequences, by files written out by hand, and what training has seen."""

import gzip
import os
from pathlib import Path

import numpy as np
import pytest

from genomics.alphabet import decode, encode
from genomics.bed import Interval
from genomics.indexed import IndexedFasta
from genomics.labelled import Labelled, LabelledTask, Row, gather
from genomics.labelled_files import read_class_folder, read_intervals, read_table
from genomics.labelled_leaks import seen
from genomics.labelled_tasks import Reading, find_tasks, load_task

#         0123456789
GENOME = "AACCGGTTAC"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def letters(rows: list[Row]) -> list[tuple[str, str]]:
    return [(decode(row.ids), row.label) for row in rows]


def spelt(data: Labelled) -> list[tuple[str, int]]:
    return [(decode(ids), int(label)) for ids, label in zip(data.ids, data.labels, strict=True)]


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return write(tmp_path / "genome.fa", f">chr1\n{GENOME}\n>chr2\nTTTT\n")


def interval_task(folder: Path, train: str = "", test: str = "") -> Path:
    header = "id,region,start,end,strand\n"
    write(folder / "train/neg.csv.gz", header + (train or "a,chr1,0,3,+\n"))
    write(folder / "train/pos.csv.gz", header + "b,chr1,4,7,-\n")
    write(folder / "test/neg.csv.gz", header + (test or "c,chr1,7,9,\n"))
    write(folder / "test/pos.csv.gz", header + "d,chr2,0,2,-\n")
    return folder


# Tables


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "sequence,label\nacgN,x\nTT,y\n"),
        ("a.csv.gz", "label,seq\nx,acgN\ny,TT\n"),
        ("a.tsv", "id\tDNA\tclass\n1\tacgN\tx\n\n2\tTT\ty\n"),
        ("a.tsv.gz", "\ufeffseq\tlabel\r\nacgN\tx\r\nTT\ty\r\n"),
    ],
)
def test_a_table_is_read(name: str, text: str, tmp_path: Path) -> None:
    assert letters(read_table(write(tmp_path / name, text))) == [("ACGN", "x"), ("TT", "y")]


def test_columns_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "sequence,label,promoter,active\nAA,u,CC,1\n")
    rows = read_table(path, sequence_column="promoter", label_column="active")
    assert letters(rows) == [("CC", "1")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"a\.csv:1: a table must begin with a header"),
        ("sequence,label\n", r"a\.csv:2: a table must hold rows"),
        ("sequence,score\nAC,1\n", r"a\.csv:1: header must name a label column.*--label_column"),
        ("name,label\nAC,1\n", r"a\.csv:1: header must name a sequence column"),
        ("sequence,label\nAC,1\nAXC,0\n", r"a\.csv:3: 'X' at offset 1.*not DNA"),
        ("sequence,label\nAC,1\n,0\n", r"a\.csv:3: sequence must not be empty"),
        ("sequence,label\nAC,1\nAC,\n", r"a\.csv:3: label must not be empty"),
        ("sequence,label\nAC,1,2\n", r"a\.csv:2: a line must have 2 columns.*got 3"),
    ],
)
def test_an_unsound_table_names_file_and_line(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_table(write(tmp_path / "a.csv", text))
    assert "\n" not in str(caught.value)


def test_a_cut_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv.gz"
    path.write_bytes(gzip.compress(b"sequence,label\n" + os.urandom(64).hex().encode())[:-12])
    with pytest.raises(ValueError, match=r"a\.csv\.gz:\d+: must be whole"):
        read_table(path)


# Intervals


def test_intervals_are_cut_on_their_strand(tmp_path: Path, fasta: Path) -> None:
    text = "id,region,start,end,strand\n1,chr1,1,4,+\n2,chr1,1,4,-\n3,chr1,1,4,\n4,chr1,8,10,-\n"
    rows = read_intervals(write(tmp_path / "p.csv.gz", text), "p", IndexedFasta(fasta))
    assert letters(rows) == [("ACC", "p"), ("GGT", "p"), ("ACC", "p"), ("GT", "p")]
    assert rows[1].interval == Interval("chr1", 1, 4, "p", "-")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("2,chrX,0,3,+", r"p\.csv:3: .*no record 'chrX'"),
        ("2,chr1,8,11,+", r"p\.csv:3: .*must lie inside chr1"),
        ("2,chr1,3,3,+", r"p\.csv:3: .*start must be below end"),
        ("2,chr1,a,3,+", r"p\.csv:3: .*invalid literal"),
        ("2,chr1,1,3,*", r"p\.csv:3: .*strand must be one of"),
        ("2,chr1,1,3", r"p\.csv:3: a line must have 5 columns"),
    ],
)
def test_an_unsound_interval_names_file_and_line(
    line: str, message: str, tmp_path: Path, fasta: Path
) -> None:
    path = write(tmp_path / "p.csv", f"id,region,start,end,strand\n1,chr1,0,3,+\n{line}\n")
    with pytest.raises(ValueError, match=message):
        read_intervals(path, "p", IndexedFasta(fasta))


def test_an_interval_task(tmp_path: Path, fasta: Path) -> None:
    folder = interval_task(tmp_path / "suite" / "task")
    (source,) = find_tasks(folder.parent)
    task = load_task(source, Reading(fasta))
    assert (source.name, source.form, task.classes) == ("task", "intervals", ("neg", "pos"))
    assert spelt(task.train) == [("AAC", 0), ("ACC", 1)]
    assert spelt(task.test) == [("TA", 0), ("AA", 1)]
    assert task.valid is None


def test_intervals_need_a_genome(tmp_path: Path) -> None:
    (source,) = find_tasks(interval_task(tmp_path / "task"))
    with pytest.raises(ValueError, match=r"finetune\.fasta must be given"):
        load_task(source, Reading())


def test_metadata_must_name_the_classes_that_are_there(tmp_path: Path, fasta: Path) -> None:
    folder = interval_task(tmp_path / "task")
    write(folder / "metadata.yaml", "version: 0\nclasses:\n  neg: {url: a}\n  pos: {url: b}\n")
    load_task(find_tasks(folder)[0], Reading(fasta))
    write(folder / "metadata.yaml", "version: 0\nclasses:\n  neg: {url: a}\n  other: {url: b}\n")
    with pytest.raises(ValueError, match=r"metadata\.yaml: classes must be those of the files"):
        load_task(find_tasks(folder)[0], Reading(fasta))


# Folders, and the order of labels


def test_a_folder_task_has_one_label_order(tmp_path: Path) -> None:
    """Written so that the order of the folder differs between the splits."""
    for split, names in (("train", ("zeta", "alpha")), ("test", ("alpha", "zeta"))):
        for name in names:
            write(tmp_path / f"t/{split}/{name}/10.txt", "AC\n" if name == "alpha" else "gt")
            write(tmp_path / f"t/{split}/{name}/9.txt", "CA")
    task = load_task(find_tasks(tmp_path / "t")[0], Reading())
    assert task.classes == ("alpha", "zeta")
    assert spelt(task.train) == [("CA", 0), ("AC", 0), ("CA", 1), ("GT", 1)]
    assert spelt(task.test) == spelt(task.train)


def test_labels_by_first_appearance_would_differ() -> None:
    """The broken twin: numbers given in the order of each split."""
    train = [Row(encode("AC"), "b"), Row(encode("GG"), "a")]
    test = [Row(encode("GG"), "a"), Row(encode("AC"), "b")]
    first_seen = [tuple(dict.fromkeys(row.label for row in part)) for part in (train, test)]
    assert first_seen[0] != first_seen[1]
    assert gather(train, ("a", "b")).labels.tolist() == [1, 0]
    assert gather(test, ("a", "b")).labels.tolist() == [0, 1]


def test_an_unsound_class_folder(tmp_path: Path) -> None:
    write(tmp_path / "c/1.txt", "AC")
    write(tmp_path / "c/2.txt", "A-C")
    with pytest.raises(ValueError, match=r"2\.txt:1: '-' at offset 1.*not DNA"):
        read_class_folder(tmp_path / "c", "c")
    write(tmp_path / "c/2.txt", "\n")
    with pytest.raises(ValueError, match=r"2\.txt:1: sequence must not be empty"):
        read_class_folder(tmp_path / "c", "c")
    (tmp_path / "d").mkdir()
    with pytest.raises(ValueError, match=r"d: a class must hold \.txt files"):
        read_class_folder(tmp_path / "d", "d")


# Splits


def test_a_task_with_a_dev_split(tmp_path: Path) -> None:
    for split, first in (("train", "AC"), ("dev", "CC"), ("test", "TT")):
        write(tmp_path / f"g/{split}.csv.gz", f"sequence,label\nGA,1\n{first},0\n")
    task = load_task(find_tasks(tmp_path)[0], Reading())
    assert task.valid is not None
    assert [spelt(p) for p in (task.train, task.valid, task.test)] == [
        [("GA", 1), ("AC", 0)],
        [("GA", 1), ("CC", 0)],
        [("GA", 1), ("TT", 0)],
    ]
    assert "dev" in task.note


def test_a_task_that_is_a_number_is_named_with_its_folder(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"tf/0/{split}.csv", "sequence,label\nGA,1\nAC,0\n")
    assert [source.name for source in find_tasks(tmp_path / "tf/0")] == ["tf/0"]


def test_a_lone_table_is_split_by_content(tmp_path: Path) -> None:
    """A sequence and its reverse complement fall into the same part, wherever they stand."""
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, 4, 12, dtype=np.uint8) for _ in range(400)]
    both = rows + [3 - row[::-1] for row in rows]
    text = "sequence,label\n" + "".join(f"{decode(r)},{i % 2}\n" for i, r in enumerate(both))
    task = load_task(find_tasks(write(tmp_path / "one.csv", text))[0], Reading())
    assert task.valid is not None and "not the official" in task.note
    assert sum(map(len, (task.train, task.valid, task.test))) == 800
    assert 0.7 < len(task.train) / 800 < 0.9
    assert not seen(task.train, task.test).any() and not seen(task.train, task.valid).any()


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_class_only_is_refused(split: str, tmp_path: Path) -> None:
    for name in ("train", "test"):
        text = "GA,1\nAC,1\n" if name == split else "GA,1\nAC,0\n"
        write(tmp_path / f"g/{name}.csv", f"sequence,label\n{text}")
    with pytest.raises(ValueError, match=rf"g/{split}: every split must hold every class"):
        load_task(find_tasks(tmp_path)[0], Reading())
    write(tmp_path / "one.csv", "sequence,label\nGA,1\nAC,1\n")
    with pytest.raises(ValueError, match=r"at least two classes, got only '?1"):
        load_task(find_tasks(tmp_path / "one.csv")[0], Reading())


def test_no_task_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="must exist"):
        find_tasks(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="must hold a task"):
        find_tasks(tmp_path)


# What training has seen


def data(*sequences: str, at: list[Interval] | None = None) -> Labelled:
    labels = np.zeros(len(sequences), dtype=np.int64)
    return Labelled(tuple(map(encode, sequences)), labels, None if at is None else tuple(at))


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


def test_the_fingerprint_sees_a_letter_a_label_and_the_order() -> None:
    def fingerprint(*rows: str) -> str:
        return LabelledTask("t", ("a", "b"), data(*rows), None, data("AA")).fingerprint

    assert len({fingerprint(*rows) for rows in (("AC", "G"), ("AC", "T"), ("G", "AC"))}) == 3
    assert fingerprint("AC", "G") != fingerprint("A", "CG")


@pytest.mark.skipif("SEQDIFF_DATA" not in os.environ, reason="no real data")
def test_intervals_of_real_promoters_are_the_published_sequences(tmp_path: Path) -> None:
    """What is cut from the slice of chr20 that is there is in the published table of sequences."""
    root = Path(os.environ["SEQDIFF_DATA"])
    table = read_table(root / "genomic_benchmarks/test_human_nontata_promoters.csv.gz")
    known = {row.ids.tobytes() for row in table}
    packed = (root / "hg38/hg38_chr20_1-1000000.fa.gz").read_bytes()
    (tmp_path / "chr20.fa").write_bytes(gzip.decompress(packed))
    fasta = IndexedFasta(tmp_path / "chr20.fa")
    (record, length), *_ = fasta.lengths.items()
    folder = root / "genomic_benchmarks/intervals/human_nontata_promoters/test"
    checked = 0
    for file in sorted(folder.iterdir()):
        for line in gzip.decompress(file.read_bytes()).decode().splitlines()[1:]:
            _, region, start, end, strand = line.split(",")
            if region == "chr20" and int(end) <= length:
                cut = fasta.fetch(Interval(record, int(start), int(end), "", strand))
                checked += 1
                assert encode(cut).tobytes() in known, (line, strand)
    assert checked == 3
