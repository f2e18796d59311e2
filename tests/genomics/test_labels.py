"""Classes of FASTA records: the table, the rows, and errors."""

from pathlib import Path

import numpy as np
import pytest
import torch

from genomics.data.datamodules import FastaDataModule
from tests.genomics.conftest import random_dna


@pytest.fixture
def table(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "labels.tsv"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def pair(fasta) -> Path:
    """Records that differ in every base."""
    return fasta(f">acs\n{'AC' * 2000}\n>gts x\n{'TG' * 3000}\n")


def kinds(tokens: np.ndarray) -> np.ndarray:
    """0 for the record of A and C on the plus strand, 1 for the other."""
    return (np.asarray(tokens) >= 2).all(axis=-1).astype(int)


LABELS = ["enhancer", "promoter"]


def test_rows_have_the_class_of_their_record(pair, table):
    file = table("# record\tclass\ngts\tenhancer\n\nacs\tpromoter\nelsewhere\tpromoter\n")
    data = FastaDataModule(pair, 32, labels=LABELS, label_file=file)
    for split in ("train", "valid", "test"):
        dataset = data.dataset(split)
        everything = np.arange(len(dataset))
        wanted = 1 - kinds(dataset.rows(everything)[0])
        assert dataset.labels(everything).tolist() == wanted.tolist()
        assert 0 < wanted.mean() < 1
        backwards = everything[::-1].copy()
        assert dataset.labels(backwards).tolist() == wanted[::-1].tolist()
    loader = iter(data.training_loader())
    for _ in range(3):
        batch = next(loader)
        by_chance = torch.tensor(kinds(batch.tokens))
        assert not torch.equal(batch.label, 1 - by_chance), "strands are flipped, classes are not"
    data.reverse_complement = False
    unflipped = FastaDataModule(pair, 32, labels=LABELS, label_file=file, reverse_complement=False)
    batch = next(iter(unflipped.training_loader()))
    assert torch.equal(batch.label, 1 - torch.tensor(kinds(batch.tokens)))
    batch = next(iter(unflipped.evaluation_loader("test")))
    assert torch.equal(batch.label, 1 - torch.tensor(kinds(batch.tokens)))


def test_records_of_another_file_are_in_the_same_table(pair, fasta, table):
    other = fasta(f">more\n{random_dna(500)}\n")
    file = table("gts\tenhancer\nacs\tpromoter\nmore\tpromoter\n")
    data = FastaDataModule(pair, 32, labels=LABELS, label_file=file, test_fasta=other)
    dataset = data.dataset("test")
    assert set(dataset.labels(np.arange(len(dataset)))) == {1}


def test_without_a_table_there_are_no_labels(pair):
    data = FastaDataModule(pair, 32)
    assert data.labels is None
    assert next(iter(data.training_loader())).label is None
    assert data.dataset("test").labels(np.arange(1)) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gts\tpromotor\n", r"labels\.tsv:1: label must be one of enhancer, promoter, got 'promo"),
        ("gts promoter\n", r"labels\.tsv:1: a line needs a record and its label, got 1 columns; s"),
        ("#\ngts\tpromoter\t3\n", r"labels\.tsv:2: a line needs .*, got 3 columns"),
        (
            "gts\tpromoter\nacs\tpromoter\ngts\tenhancer\n",
            r"labels\.tsv:3: record 'gts' has two labels; keep one line",
        ),
        (
            "gts\tpromoter\n",
            r"^FastaDataModule\.label_file must have a line for every record that is used, got "
            r"none for 1 of .*genome1\.fa \(acs\); add them",
        ),
    ],
)
def test_bad_tables(pair, table, text, message):
    data = FastaDataModule(pair, 32, labels=LABELS, label_file=table(text))
    with pytest.raises(ValueError, match=message) as caught:
        data.dataset("train")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("held_out", "message"),
    [
        (
            None,
            r"^FastaDataModule\.labels must all occur in the training records, got 'silencer' in "
            r"no record that is used; give this label to a record, or drop the name$",
        ),
        (
            "valid",
            r"'silencer' only in valid; move one of its records to training, or drop the name and",
        ),
        (
            "test",
            r"'silencer' only in test; move one of its records to training, or drop the name and",
        ),
    ],
)
@pytest.mark.parametrize("by", ["chroms", "fasta"])
def test_labels_that_training_never_sees(pair, fasta, table, held_out, by, message):
    """If all records of a class are held out, its embedding would never be trained."""
    lines = "acs\tpromoter\ngts\tenhancer\n"
    source, keys = pair, {}
    if held_out is not None:
        lines += "rare\tsilencer\n"
        more = f">rare\n{random_dna(500)}\n"
        if by == "chroms":
            source, keys = fasta(pair.read_text() + more), {f"{held_out}_chroms": ["rare"]}
        else:
            keys = {f"{held_out}_fasta": fasta(more)}
    names, file = [*LABELS, "silencer"], table(lines)
    data = FastaDataModule(source, 32, labels=names, label_file=file, **keys)
    with pytest.raises(ValueError, match=message) as caught:
        data.prepare()
    assert "\n" not in str(caught.value)


def test_a_label_is_seen_if_one_of_its_records_is_trained_on(pair, fasta, table):
    source = fasta(f"{pair.read_text()}>b\n{random_dna(500)}\n>c\n{random_dna(500, 1)}\n")
    file = table("acs\tpromoter\ngts\tpromoter\nb\tenhancer\nc\tenhancer\n")
    data = FastaDataModule(source, 32, labels=LABELS, label_file=file, test_chroms=["b"])
    assert data.dataset("train").classes() == data.dataset("test").classes() | {1} == {0, 1}


def test_tables_that_cannot_be_read(pair, tmp_path):
    absent = FastaDataModule(pair, 32, labels=LABELS, label_file=tmp_path / "absent.tsv")
    with pytest.raises(FileNotFoundError, match=r"absent\.tsv: no such file"):
        absent.dataset("train")
    (tmp_path / "x.tsv.gz").write_bytes(b"\x1f\x8b\xff\xfe")
    packed = FastaDataModule(pair, 32, labels=LABELS, label_file=tmp_path / "x.tsv.gz")
    with pytest.raises(ValueError, match=r"x\.tsv\.gz: the gzip file is truncated"):
        packed.dataset("train")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"labels": LABELS}, r"^FastaDataModule\.label_file must be given with labels, got none"),
        ({"label_file": "x"}, r"^FastaDataModule\.labels must be given with label_file, got none"),
        ({"labels": [], "label_file": "x"}, r"labels must be different names, at least one, got"),
        ({"labels": ["a", "a"], "label_file": "x"}, r"different names, .*; list each once"),
        ({"labels": ["a", " "], "label_file": "x"}, r"different names, .*; list each once"),
    ],
)
def test_keys_that_do_not_fit(keys, message):
    with pytest.raises(ValueError, match=message):
        FastaDataModule("absent.fa", 32, **keys)
