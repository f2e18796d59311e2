"""Held-out parts of a FASTA file: by fractions, records, a BED file, or other files."""

import numpy as np
import pytest

from genomics.data.datamodules import FastaDataModule
from genomics.sequence.intervals import overlaps
from seqdiff.data.dataset import SPLITS
from tests.genomics.conftest import bed, meets, random_dna, rows


@pytest.mark.parametrize("stride", [None, 7])
@pytest.mark.parametrize("off_end", ["shift", "drop", "pad"])
def test_shares_of_one_file_have_no_base_in_common(genome, stride, off_end):
    data = FastaDataModule(genome, 32, stride=stride, off_end=off_end, split=(0.6, 0.2, 0.2))
    assert not any(meets(data, split).any() for split in SPLITS)
    bases = {s: len(data.dataset(s)) * 32 for s in ("valid", "test")}
    assert all(abs(found / 10_090 - 0.2) < 0.02 for found in bases.values())


def test_the_split_does_not_follow_the_run_seed(genome):
    first, second, other = (FastaDataModule(genome, 32, split_seed=s) for s in (0, 0, 1))
    first.seed, second.seed = 1, 2
    assert rows(first, "test") == rows(second, "test")
    assert rows(first, "test") != rows(other, "test")


def test_whole_chromosomes(genome):
    data = FastaDataModule(genome, 45, valid_chroms=["c"], test_chroms=["b"])
    assert rows(data, "valid") == [random_dna(90, 2)[:45], random_dna(90, 2)[45:]]
    assert set(data.dataset("test").windows.chrom) == {1}
    assert set(data.dataset("train").windows.chrom) == {0}


@pytest.mark.parametrize("named", ["valid", "test"])
def test_records_for_one_split_leave_the_other_its_share_of_the_rest(genome, named):
    other = "test" if named == "valid" else "valid"
    data = FastaDataModule(genome, 10, split=(0.7, 0.15, 0.15), **{f"{named}_chroms": ["b"]})
    assert len(data.dataset(named)) == 400 and set(data.dataset(named).windows.chrom) == {1}
    # 6,090 bases remain; the broken twin, which uses a fraction of all 10,090, would hold out 151.
    assert abs(len(data.dataset(other)) - 0.15 * 609) <= 4
    assert len(data.dataset("train")) + len(data.dataset(other)) == pytest.approx(609, abs=10)
    assert not any(meets(data, split).any() for split in SPLITS)
    assert rows(data, other) != rows(
        FastaDataModule(
            genome, 10, split=(0.7, 0.15, 0.15), split_seed=1, **{f"{named}_chroms": ["b"]}
        ),
        other,
    )


def test_records_for_one_split_and_no_share_for_the_other(genome):
    data = FastaDataModule(genome, 10, split=(0.9, 0.0, 0.1), test_chroms=["b"])
    assert len(data.dataset("train")) == 609
    with pytest.raises(
        ValueError,
        match=r"there is no valid split, only train and test; evaluate another with --split test, "
        r"or give valid sequence by data\.split, data\.valid_chroms, data\.valid_fasta or rows",
    ):
        data.dataset("valid")


def test_intervals_that_overlap_count_once_in_a_held_out_record(genome, tmp_path):
    path = bed(tmp_path, "a\t0\t6000\nb\t0\t60\nb\t30\t100\n")
    data = FastaDataModule(genome, 20, bed=path, test_chroms=["b"])
    assert data.dataset("test").windows.start.tolist() == [0, 20, 40, 60, 80]


def test_the_bed_column(genome, tmp_path):
    text = "a\t0\t70\ttrain\na\t100\t130\tvalid\nb\t5\t35\ttest\na\t120\t180\ttrain\n"
    data = FastaDataModule(genome, 30, bed=bed(tmp_path, text))
    a, b = random_dna(6000), random_dna(4000, 1)
    # [120, 150) overlaps the valid row and is dropped; [40, 70) is moved inside its row.
    assert rows(data, "train") == [a[0:30], a[30:60], a[40:70], a[150:180]]
    assert rows(data, "valid") == [a[100:130]]
    assert rows(data, "test") == [b[5:35]]


def test_a_bed_without_splits_says_where_to_look(genome, tmp_path):
    path = bed(tmp_path, "a\t1000\t2000\nb\t0\t1000\tgene\n")
    data = FastaDataModule(genome, 10, bed=path, split=(0.5, 0.25, 0.25))
    windows = [data.dataset(split).windows for split in SPLITS]
    assert sum(len(found) for found in windows) > 190
    for found in windows:
        inside = np.where(found.chrom == 0, found.start >= 1000, found.start >= 0)
        assert inside.all() and (found.end <= np.where(found.chrom == 0, 2000, 1000)).all()
    assert not meets(data).any()


def test_a_misspelt_split_is_an_error(genome, tmp_path):
    path = bed(tmp_path, "a\t0\t70\ttrain\na\t100\t130\tvaild\n")
    with pytest.raises(ValueError, match="must be train, valid or test, got 'vaild' at a:100-130"):
        FastaDataModule(genome, 30, bed=path).dataset("train")


@pytest.mark.parametrize("label", ["Train", "VALID", "Test"])
def test_a_split_in_capitals_is_not_taken_for_a_label_of_another_kind(genome, tmp_path, label):
    """Broken twin: divides the rows at random, whatever their labels."""
    path = bed(tmp_path, f"a\t0\t3000\tgene\na\t3000\t6000\t{label}\n")
    with pytest.raises(ValueError, match="must be train, valid or test, got 'gene'"):
        FastaDataModule(genome, 30, bed=path).dataset("train")
    path.write_text(f"a\t3000\t6000\t{label}\n")
    with pytest.raises(ValueError, match=f"train, valid or test, got '{label}' at a:3000-6000"):
        FastaDataModule(genome, 30, bed=path).dataset("train")


def test_a_bed_with_splits_stands_alone(genome, tmp_path):
    path = bed(tmp_path, "a\t0\t70\ttrain\n")
    for given in ({"test_chroms": ["b"]}, {"test_fasta": genome}, {"valid_fasta": genome}):
        (name,) = given
        with pytest.raises(ValueError, match=rf"must not name splits in column 4 if {name} is"):
            FastaDataModule(genome, 32, bed=path, **given).dataset("train")


def test_a_bed_outside_the_file(genome, tmp_path):
    path = bed(tmp_path, "a\t0\t70\ttrain\na\t100\t6001\ttest\n")
    with pytest.raises(ValueError, match=r"x\.bed:2: end 6001 is outside a, which has 6000 bases"):
        FastaDataModule(genome, 30, bed=path).dataset("train")


@pytest.mark.parametrize("own", ["valid", "test"])
def test_other_files_for_evaluation(genome, fasta, own):
    other = fasta(f">x\n{random_dna(100, 5)}\n")
    data = FastaDataModule(genome, 50, split=(0.8, 0.1, 0.1), **{f"{own}_fasta": other})
    assert rows(data, own) == [random_dna(100, 5)[:50], random_dna(100, 5)[50:]]
    # Its fraction goes to training: 10,090 bases in windows of 50, one tenth of them held out.
    assert abs(len(data.dataset("test" if own == "valid" else "valid")) - 20) <= 1
    assert 178 <= len(data.dataset("train")) <= 182
    # A window of the other file has the coordinates of a training window without being one.
    assert overlaps(data.dataset("train").windows, data.dataset(own).windows).any()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": (0.5, 0.5, 0.5)}, r"three fractions .* got \[0\.5, 0\.5, 0\.5\]"),
        ({"split_seed": -1}, r"FastaDataModule\.split_seed must be at least 0, got -1; set data\."),
        (
            {"test_chroms": ["a"], "test_fasta": "x.fa"},
            r"test_fasta must be given alone, got test_chroms too; give only one",
        ),
    ],
)
def test_what_cannot_be_held_out_is_refused_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        FastaDataModule("absent.fa", 8, **arguments)
