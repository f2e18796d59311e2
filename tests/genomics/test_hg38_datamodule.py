"""The HG38 set: the published windows, and the default without leaks."""

from pathlib import Path

import numpy as np
import pytest

from genomics.data.datamodules import HG38DataModule
from genomics.sequence.alphabet import decode
from tests.genomics.conftest import bed, meets, random_dna, rows


@pytest.fixture
def hg38(fasta, tmp_path) -> tuple[Path, Path]:
    """Two megabases: the first training row reaches into the test row, the last one
    past the end.
    """
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
    # [0, 2^20) and [900000, ...) share windows 878 to 1023 of the first row.
    assert leaks.sum() == 1024 - 878
    assert not meets(default).any()
    assert len(default.dataset("train")) == len(reference.dataset("train")) - leaks.sum()
    for split in ("valid", "test"):
        assert rows(default, split) == rows(reference, split)


@pytest.mark.parametrize("both_strands", [True, False])
def test_hg38_training_reads_the_strands_it_is_told_to(hg38, both_strands):
    """64 fair coins agree with probability 1e-19; reading one strand only fails a case."""
    data = HG38DataModule(*hg38, 1 << 14, batch_size=64, reverse_complement=both_strands)
    known = {*rows(data, "train")}
    batch = next(iter(data.training_loader()))
    turned = sum(decode(row) not in known for row in batch.tokens.numpy())
    assert 0 < turned < 64 if both_strands else turned == 0
    batch = next(iter(data.evaluation_loader("test")))
    assert all(decode(row) in rows(data, "test") for row in batch.tokens.numpy())


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


def test_both_windowings_on_the_real_slice(real_data, tmp_path):
    text = "chr2\t100000\t231072\ttrain\nchr2\t600000\t1648576\ttest\n"
    text += "chr2\t1700000\t1800000\tvalid\n"
    args = (real_data / "hg38" / "chr2_1-2333275.fa.gz", bed(tmp_path, text), 4096)
    assert meets(HG38DataModule(*args, windowing="reference")).any()
    default = HG38DataModule(*args)
    assert not meets(default).any() and len(default.dataset("train")) > 100
