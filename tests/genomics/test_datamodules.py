import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from torch.utils.data import DataLoader

from genomics.alphabet import decode
from genomics.datamodules import FastaDataModule, HG38DataModule
from genomics.intervals import overlaps
from seqdiff.types import Batch

BASES = np.array(list("ACGT"))
SPLITS = ("train", "valid", "test")


def random_dna(size: int, seed: int = 0) -> str:
    return "".join(BASES[np.random.default_rng(seed).integers(0, 4, size)])


def rows(data, split):
    dataset = data.dataset(split)
    return [decode(row) for row in dataset.rows(np.arange(len(dataset)))[0]]


@pytest.fixture
def genome(fasta) -> Path:
    return fasta(f">a\n{random_dna(6000)}\n>b\n{random_dna(4000, 1)}\n>c\n{random_dna(90, 2)}\n")


def bed(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.bed"
    path.write_text(text)
    return path


def meets(data, split="train"):
    """Which windows of a split share a base with valid or test windows."""
    windows = {name: data.dataset(name).windows for name in SPLITS}
    others = [windows[name] for name in SPLITS if name != split]
    return overlaps(windows[split], others[0]) | overlaps(windows[split], others[1])


def test_construction_touches_no_file(tmp_path, cache):
    data = FastaDataModule(tmp_path / "absent.fa", 64, bed=tmp_path / "absent.bed")
    HG38DataModule(tmp_path / "absent.fa", tmp_path / "absent.bed", 1024)
    assert not cache.exists()
    with pytest.raises(FileNotFoundError, match=r"absent\.fa: no such file"):
        data.dataset("train")


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


def test_the_bed_column(genome, tmp_path):
    text = "a\t0\t70\ttrain\na\t100\t130\tvalid\nb\t5\t35\ttest\na\t120\t180\ttrain\n"
    data = FastaDataModule(genome, 30, bed=bed(tmp_path, text))
    a, b = random_dna(6000), random_dna(4000, 1)
    # [120, 150) meets the valid row and goes; [40, 70) is shifted inside its row.
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


def test_a_bed_outside_the_file(genome, tmp_path):
    path = bed(tmp_path, "a\t0\t70\ttrain\na\t100\t6001\ttest\n")
    with pytest.raises(ValueError, match=r"x\.bed:2: end 6001 is outside a, which has 6000 bases"):
        FastaDataModule(genome, 30, bed=path).dataset("train")


def test_other_files_for_evaluation(genome, fasta):
    other = fasta(f">x\n{random_dna(100, 5)}\n")
    data = FastaDataModule(genome, 50, test_fasta=other, split=(0.8, 0.1, 0.1))
    assert rows(data, "test") == [random_dna(100, 5)[:50], random_dna(100, 5)[50:]]
    # The share of test goes to training: 10,090 bases in windows of 50, one tenth of them valid.
    assert abs(len(data.dataset("valid")) - 20) <= 1
    assert 178 <= len(data.dataset("train")) <= 182
    # A window of the other file lies at the coordinates of a training window without being one.
    assert len(overlaps(data.dataset("train").windows, data.dataset("test").windows)) > 0


def test_the_same_sequence_under_another_name_is_no_test(genome, fasta):
    copy = fasta(genome.read_text().lower().replace(">a", ">A"))
    with pytest.raises(
        ValueError, match=r"test_fasta must differ from fasta, got the same sequence"
    ):
        FastaDataModule(genome, 50, test_fasta=copy).dataset("train")


def test_all_at_once_when_training_reads_a_random_strand(genome):
    data = FastaDataModule(genome, 32, batch_size=16)
    known = {*rows(data, "train")}
    batch = next(iter(data.training_loader()))
    assert isinstance(batch, Batch)
    assert tuple(batch.tokens.shape) == (16, 32)
    seen = [decode(row) in known for row in batch.tokens.numpy()]
    assert 0 < sum(seen) < 16
    forward = FastaDataModule(genome, 32, batch_size=16, reverse_complement=False)
    batch = next(iter(forward.training_loader()))
    assert all(decode(row) in known for row in batch.tokens.numpy())


def test_worker_processes_read_the_same_stream(genome):
    alone, helped = (FastaDataModule(genome, 32, batch_size=4, num_workers=n) for n in (0, 2))
    helped.dataset("train")
    loaders: list[DataLoader] = [alone.training_loader(), helped.training_loader()]
    for _, one, two in zip(range(5), *loaders, strict=False):
        for name in ("tokens", "loss_mask", "index"):
            assert torch.equal(getattr(one, name), getattr(two, name))


def test_the_module_keeps_its_datasets_and_can_travel(genome):
    data = FastaDataModule(genome, 32)
    data.prepare_data()
    assert data.dataset("train") is data.dataset("train")
    assert len(pickle.loads(pickle.dumps(data)).dataset("train")) == len(data.dataset("train"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, r"FastaDataModule\.length must be at least 1, got 0; set data\.length"),
        ({"stride": 0}, r"FastaDataModule\.stride must be at least 1, got 0; set data\.stride"),
        ({"batch_size": 0}, r"FastaDataModule\.batch_size must be at least 1, got 0"),
        ({"split": (0.5, 0.5, 0.5)}, r"three shares .* got \[0\.5, 0\.5, 0\.5\]"),
        ({"off_end": "wrap"}, r"off_end must be shift, drop or pad, got 'wrap'"),
        (
            {"test_chroms": ["a"], "test_fasta": "x.fa"},
            r"test_fasta must stand alone, got test_chroms too; give only one",
        ),
    ],
)
def test_bad_arguments_are_refused_at_once(unchecked, arguments, message):
    with pytest.raises(ValueError, match=message):
        FastaDataModule("absent.fa", **{"length": 8, **arguments})


def test_bad_data_is_named(unchecked, genome, fasta, tmp_path):
    with pytest.raises(
        ValueError, match=r"longest record of .*\(6000 bases\), got 6001; set a shorter"
    ):
        FastaDataModule(genome, 6001).dataset("train")
    with pytest.raises(
        ValueError, match="the valid split holds no window of 32 bases with a known"
    ):
        FastaDataModule(genome, 32, split=(1.0, 0.0, 0.0)).dataset("valid")
    with pytest.raises(ValueError, match="the train split holds no window"):
        FastaDataModule(fasta(f">n\n{'N' * 500}\n"), 32).dataset("train")
    with pytest.raises(ValueError, match="must be one of train, valid, test, got 'val'"):
        FastaDataModule(genome, 32).dataset("val")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bed names the splits in column 4, got test_chroms too"):
        path = bed(tmp_path, "a\t0\t70\ttrain\n")
        FastaDataModule(genome, 32, bed=path, test_chroms=["b"]).dataset("train")


def test_a_long_window_may_be_padded(genome):
    data = FastaDataModule(genome, 6001, off_end="pad", split=(1.0, 0.0, 0.0))
    assert rows(data, "train")[0] == random_dna(6000) + "N"


def test_baselines_are_fitted_on_train_and_scored_on_the_split(fasta, tmp_path):
    """Closed form: training holds only A, or A and T with both strands; the test only A."""
    path = bed(tmp_path, "a\t0\t1000\ttrain\na\t1000\t1100\ttest\n")
    source = fasta(f">a\n{'A' * 1100}\n")
    both = FastaDataModule(source, 50, bed=path).baselines("test")
    one = FastaDataModule(source, 50, bed=path, reverse_complement=False).baselines("test")
    assert list(both) == [f"Markov order {k}" for k in range(9)]
    # Jeffreys' half a letter for each of the four.
    assert math.isclose(both["Markov order 0"], -math.log(1000.5 / 2002), rel_tol=1e-12)
    assert math.isclose(one["Markov order 0"], -math.log(1000.5 / 1002), rel_tol=1e-12)
    assert one["Markov order 8"] < both["Markov order 0"]


def test_overlapping_windows_do_not_count_a_base_twice_in_the_baselines(genome):
    end_to_end, overlapping = (
        FastaDataModule(genome, 40, stride=stride).baselines("test") for stride in (40, 10)
    )
    assert overlapping == pytest.approx(end_to_end, rel=1e-12)


def test_baselines_of_a_large_split_use_evenly_spaced_windows(genome, monkeypatch):
    data = FastaDataModule(genome, 32, split=(0.5, 0.0, 0.5))
    whole = data.baselines("test")
    monkeypatch.setattr("genomics.window_datamodule._BASELINE_BASES", 2000)
    part = data.baselines("test")
    assert part != whole
    assert abs(part["Markov order 0"] - math.log(4)) < 0.02


# The HG38 set -----------------------------------------------------------------------------------


@pytest.fixture
def hg38(fasta, tmp_path) -> tuple[Path, Path]:
    """Two megabases: the first training row reaches into the test row, the last off the end."""
    source = fasta(f">chr1\n{random_dna(2_500_000)}\n>chr2\n{random_dna(2_200_000, 1)}\n")
    rows = (
        "chr1\t0\t131072\ttrain\nchr1\t900000\t1031072\ttest\n"
        "chr2\t0\t131072\tvalid\nchr2\t1900000\t2031072\ttrain\n"
    )
    return source, bed(tmp_path, rows)


def test_reference_windows_are_extended_and_shifted_inside(hg38):
    data = HG38DataModule(*hg38, 1 << 15, windowing="reference")
    steps = np.arange(32) << 15
    train = data.dataset("train").windows
    assert train.start.tolist() == [
        *steps,
        *np.minimum(1_900_000 + steps, 2_200_000 - (1 << 15)),
    ]
    assert data.dataset("test").windows.start.tolist() == (900_000 + steps).tolist()
    assert data.dataset("valid").windows.chrom.tolist() == [1] * 32
    assert rows(data, "train")[-1] == random_dna(2_200_000, 1)[-(1 << 15) :]


def test_the_reference_leaks_and_the_default_does_not(hg38):
    reference = HG38DataModule(*hg38, 1024, windowing="reference")
    default = HG38DataModule(*hg38, 1024)
    leaks = meets(reference)
    # [0, 2^20) and [900000, ...) share the windows 878 to 1023 of the first row.
    assert leaks.sum() == 1024 - 878
    assert not meets(default).any()
    assert len(default.dataset("train")) == len(reference.dataset("train")) - leaks.sum()
    for split in ("valid", "test"):
        assert rows(default, split) == rows(reference, split)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 1000}, r"HG38DataModule\.length must divide 2\^20, got 1000; use a power of"),
        ({"windowing": "leaky"}, "windowing must be leak_free or reference, got 'leaky'; set data"),
        ({"length": 0}, r"HG38DataModule\.length must be at least 1"),
    ],
)
def test_bad_hg38_arguments(unchecked, arguments, message):
    with pytest.raises(ValueError, match=message):
        HG38DataModule("absent.fa", "absent.bed", **{"length": 8, **arguments})


def test_a_bed_for_hg38_needs_its_splits(hg38, tmp_path):
    path = tmp_path / "plain.bed"
    path.write_text("chr1\t0\t131072\n")
    with pytest.raises(
        ValueError, match="column 4 must be train, valid or test, got '' at chr1:0-"
    ):
        HG38DataModule(hg38[0], path, 1024).dataset("train")


# Configuration and real data --------------------------------------------------------------------


def test_a_config_can_describe_both():
    parser = ArgumentParser()
    parser.add_class_arguments(FastaDataModule, "data")
    found = parser.parse_object(
        {"data": {"fasta": "x.fa.gz", "length": 64, "split": [0.8, 0.1, 0.1], "off_end": "pad"}}
    )
    data = parser.instantiate(found).data
    assert (data.length, tuple(data.split), data.off_end) == (64, (0.8, 0.1, 0.1), "pad")
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(HG38DataModule, "data")
    with pytest.raises(Exception, match="windowing"):
        parser.parse_object(
            {"data": {"fasta": "x", "bed": "y", "length": 64, "windowing": "leaky"}}
        )


def test_chr2_to_chr20(real_data):
    folder = real_data / "hg38"
    data = FastaDataModule(
        folder / "chr2_1-2333275.fa.gz",
        1024,
        test_fasta=folder / "hg38_chr20_1-1000000.fa.gz",
        split=(1.0, 0.0, 0.0),
    )
    # 10 kb of N are 9 windows and a part of the tenth; the last window is shifted inside.
    assert len(data.dataset("train")) == 2_333_275 // 1024 + 1 - 9
    assert data.dataset("train").windows.start[0] == 9 * 1024
    assert data.dataset("test").windows.start[0] == 58 * 1024
    bits = {name: nats / math.log(2) for name, nats in data.baselines("test").items()}
    # An independent count of the same windows gave 1.9962 for order 0 and 1.9443 for order 1.
    assert abs(bits["Markov order 0"] - 1.9962) < 2e-4
    assert abs(bits["Markov order 1"] - 1.9443) < 2e-4


def test_both_windowings_on_the_real_slice(real_data, tmp_path):
    text = "chr2\t100000\t231072\ttrain\nchr2\t600000\t1648576\ttest\n"
    text += "chr2\t1700000\t1800000\tvalid\n"
    args = (real_data / "hg38" / "chr2_1-2333275.fa.gz", bed(tmp_path, text), 4096)
    assert meets(HG38DataModule(*args, windowing="reference")).any()
    default = HG38DataModule(*args)
    assert not meets(default).any() and len(default.dataset("train")) > 100
