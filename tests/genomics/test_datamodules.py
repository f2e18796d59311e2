import math
import pickle

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from torch.utils.data import DataLoader

from genomics.data.datamodules import FastaDataModule, HG38DataModule
from genomics.sequence.alphabet import decode
from seqdiff.types import Batch
from tests.genomics.conftest import bed, random_dna, rows


def test_construction_touches_no_file(tmp_path, cache):
    data = FastaDataModule(tmp_path / "absent.fa", 64, bed=tmp_path / "absent.bed")
    HG38DataModule(tmp_path / "absent.fa", tmp_path / "absent.bed", 1024)
    assert not cache.exists()
    with pytest.raises(FileNotFoundError, match=r"absent\.fa: no such file"):
        data.dataset("train")


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
    data.prepare()
    assert data.dataset("train") is data.dataset("train")
    assert len(pickle.loads(pickle.dumps(data)).dataset("train")) == len(data.dataset("train"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"length": 0}, r"FastaDataModule\.length must be at least 1, got 0; set data\.length"),
        ({"stride": 0}, r"FastaDataModule\.stride must be at least 1, got 0; give it in bases"),
        ({"batch_size": 0}, r"FastaDataModule\.batch_size must be at least 1, got 0"),
        ({"off_end": "wrap"}, r"off_end must be shift, drop or pad, got 'wrap'"),
    ],
)
def test_bad_arguments_are_refused_at_once(unchecked, arguments, message):
    with pytest.raises(ValueError, match=message):
        FastaDataModule("absent.fa", **{"length": 8, **arguments})


def test_bad_data_is_named(unchecked, genome, fasta):
    with pytest.raises(
        ValueError, match=r"longest record of .*\(6000 bases\), got 6001; set a shorter"
    ):
        FastaDataModule(genome, 6001).dataset("train")
    with pytest.raises(
        ValueError,
        match=r"the train split holds no window .* or give train more sequence by data\.split, "
        r"data\.fasta or rows named train in data\.bed",
    ):
        FastaDataModule(fasta(f">n\n{'N' * 500}\n"), 32).dataset("train")
    with pytest.raises(ValueError, match="must be one of train, valid, test, got 'val'"):
        FastaDataModule(genome, 32).dataset("val")  # type: ignore[arg-type]


def test_a_long_window_may_be_padded(genome):
    data = FastaDataModule(genome, 6001, off_end="pad", split=(1.0, 0.0, 0.0))
    assert rows(data, "train")[0] == random_dna(6000) + "N"


def test_baselines_are_fitted_on_train_and_scored_on_the_split(fasta, tmp_path):
    """Closed form: training contains only A, or A and T with both strands; the test only A."""
    path = bed(tmp_path, "a\t0\t1000\ttrain\na\t1000\t1100\ttest\n")
    source = fasta(f">a\n{'A' * 1100}\n")
    both = FastaDataModule(source, 50, bed=path).baselines("test")
    one = FastaDataModule(source, 50, bed=path, reverse_complement=False).baselines("test")
    assert list(both) == [f"Markov order {k}" for k in range(9)]
    # Jeffreys' prior of half a base for each of the four.
    for found, total in ((both, 2002), (one, 1002)):
        zero = found["Markov order 0"]
        assert math.isclose(zero.nats_per_token, -math.log(1000.5 / total), rel_tol=1e-12)
        assert zero.num_tokens.tolist() == [50, 50]
    assert one["Markov order 8"].nats_per_token < both["Markov order 0"].nats_per_token


def test_overlapping_windows_do_not_count_a_base_twice_in_the_baselines(genome):
    end_to_end, overlapping = (
        FastaDataModule(genome, 40, stride=stride).baselines("test") for stride in (40, 10)
    )
    assert list(overlapping) == list(end_to_end)
    for name, found in end_to_end.items():
        np.testing.assert_allclose(overlapping[name].nats, found.nats, rtol=1e-12)


def test_large_training_data_are_read_in_evenly_spaced_windows(genome, monkeypatch):
    """A limit of two thirds gives every other window; rounding the step down would read
    them all.
    """
    data = FastaDataModule(genome, 32, split=(0.5, 0.0, 0.5))
    texts, seen = rows(data, "train"), []

    def record(train, scored, *, both_strands):
        seen.extend(decode(row) for block in train for row in block)
        assert [decode(row) for block in scored for row in block] == rows(data, "test")
        return {}

    monkeypatch.setattr("genomics.data.windows.baselines", record)
    monkeypatch.setattr("genomics.data.windows._disjoint", lambda dataset: dataset)
    monkeypatch.setattr("genomics.data.windows._PLAIN_BASES", len(texts) * 32 * 2 // 3)
    data.baselines("test")
    assert seen == texts[::2] and len(seen) > 40


def test_baselines_count_what_a_model_would_row_by_row(fasta):
    text = random_dna(3000)
    source = fasta(f">a\n{text[:900]}{'N' * 70}{text[900:]}\n")
    data = FastaDataModule(source, 64, off_end="pad", eval_batch_size=7)
    for split in ("valid", "test"):
        counted = [batch.loss_mask.sum(dim=1) for batch in data.evaluation_loader(split)]
        found = data.baselines(split)
        assert [name for name in found if name.startswith("interpolated Markov, order ")]
        for baseline in found.values():
            assert baseline.num_tokens.tolist() == torch.cat(counted).tolist()
            assert (baseline.nats > 0).all()


def repeats(size: int, seed: int) -> str:
    """A text in which any 6 bases determine the next: each of 64 words has one successor."""
    words = random_dna(64 * 12, 99)
    order = np.random.default_rng(seed).integers(0, 64, size // 12)
    return "".join(words[12 * i : 12 * i + 12] for i in order)


def test_the_interpolated_chain_is_chosen_on_validation_alone(fasta):
    """Broken twin: chooses on the test split, where other contexts are better."""
    train, valid, test = repeats(6000, 0), random_dna(3000, 1), repeats(3000, 2)
    both = [
        FastaDataModule(
            fasta(f">a\n{train}\n>v\n{held}\n>t\n{scored}\n"),
            50,
            valid_chroms=["v"],
            test_chroms=["t"],
        )
        for held, scored in ((valid, test), (valid, random_dna(3000, 3)), (test, valid))
    ]
    same, other_test, swapped = (list(data.baselines("test"))[-1] for data in both)
    assert same == other_test == "interpolated Markov, order 0"
    assert swapped != same
    plain = FastaDataModule(fasta(f">a\n{train}{test}\n"), 50, split=(0.5, 0.0, 0.5))
    assert list(plain.baselines("test")) == [f"Markov order {k}" for k in range(9)]


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_windows_are_in_the_order_of_the_genome(fasta, tmp_path, split):
    """Independent of the order of the BED file: standard errors need neighbours in order."""
    source = fasta(f">b\n{random_dna(900)}\n>a\n{random_dna(900, 1)}\n")
    spans = [("a", 400), ("b", 600), ("a", 0), ("b", 0)]
    lines = [
        f"{name}\t{start + 60 * place}\t{start + 60 * place + 55}\t{label}\n"
        for name, start in spans
        for place, label in enumerate(("test", "train", "valid"))
    ]
    windows = FastaDataModule(source, 25, bed=bed(tmp_path, "".join(lines))).dataset(split).windows
    assert windows.chrom.tolist() == [0] * 6 + [1] * 6
    places = list(zip(windows.chrom.tolist(), windows.start.tolist(), strict=True))
    assert places == sorted(places)


def test_a_config_can_describe_both():
    parser = ArgumentParser()
    parser.add_class_arguments(FastaDataModule, "data")
    found = parser.parse_object(
        {"data": {"fasta": "x.fa.gz", "length": 64, "split": [0.8, 0.1, 0.1], "off_end": "pad"}}
    )
    data = parser.instantiate(found).data
    assert (data.length, data.hold_out.split, data.off_end) == (64, (0.8, 0.1, 0.1), "pad")
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
    # 10 kb of N are 9 windows and a part of the tenth; the last window is moved inside.
    assert len(data.dataset("train")) == 2_333_275 // 1024 + 1 - 9
    assert data.dataset("train").windows.start[0] == 9 * 1024
    assert data.dataset("test").windows.start[0] == 58 * 1024
    bits = {name: found.bits_per_token for name, found in data.baselines("test").items()}
    # A separate count of the same windows gave 1.9962 for order 0 and 1.9443 for order 1.
    assert abs(bits["Markov order 0"] - 1.9962) < 2e-4
    assert abs(bits["Markov order 1"] - 1.9443) < 2e-4
