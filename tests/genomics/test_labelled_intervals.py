"""Intervals cut from one genome."""

import gzip
import os
from pathlib import Path

import pytest

from genomics.finetune.labelled_files import read_intervals, read_table
from genomics.finetune.labelled_genomes import ClassGenome
from genomics.finetune.tasks import find_tasks
from genomics.io.indexed import IndexedFasta
from genomics.sequence.alphabet import encode
from genomics.sequence.intervals import Interval
from tests.genomics.labelled_data import (
    GENOME,
    HEADER,
    interval_task,
    letters,
    load,
    spelt,
    write,
)


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return write(tmp_path / "genome.fa", f">chr1\n{GENOME}\n>chr2\nTTTT\n")


def test_intervals_are_cut_on_their_strand(tmp_path: Path, fasta: Path) -> None:
    text = "id,region,start,end,strand\n1,chr1,1,4,+\n2,chr1,1,4,-\n3,chr1,1,4,\n4,chr1,8,10,-\n"
    rows = read_intervals(write(tmp_path / "p.csv.gz", text), "p", ClassGenome(fasta))
    assert letters(rows) == [("ACC", "p"), ("GGT", "p"), ("ACC", "p"), ("GT", "p")]
    assert rows[1].interval == Interval("genome.fa:chr1", 1, 4, "p", "-")
    assert [row.line for row in rows] == [2, 3, 4, 5]


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
        read_intervals(path, "p", ClassGenome(fasta))


def test_an_interval_task(tmp_path: Path, fasta: Path) -> None:
    folder = interval_task(tmp_path / "suite" / "task")
    (source,) = find_tasks(folder.parent)
    task = load(folder, fasta)
    assert (source.name, source.form, task.classes) == ("task", "intervals", ("neg", "pos"))
    assert spelt(task.train) == [("AAC", 0), ("ACC", 1)]
    assert spelt(task.test) == [("TA", 0), ("AA", 1)]
    assert task.valid is None


def test_intervals_need_a_genome(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"finetune\.fasta must be given.*or a folder of genomes"):
        load(interval_task(tmp_path / "task"))
    with pytest.raises(FileNotFoundError, match=r"none\.fa: no such file"):
        load(tmp_path / "task", tmp_path / "none.fa")


def test_a_class_name_may_have_points(tmp_path: Path, fasta: Path) -> None:
    """With names cut at the first point, both would be h."""
    for split, line in (("train", "a,chr1,0,3,+\n"), ("test", "a,chr1,4,6,+\n")):
        for name in ("h.sapiens", "h.mus"):
            write(tmp_path / f"t/{split}/{name}.csv", HEADER + line)
    assert load(tmp_path / "t", fasta).classes == ("h.mus", "h.sapiens")
    write(tmp_path / "t/train/h.mus.csv.gz", HEADER + "b,chr2,0,2,+\n")
    with pytest.raises(ValueError, match=r"'h\.mus' must have one table, got h\.mus\.csv and h"):
        load(tmp_path / "t", fasta)


@pytest.mark.skipif("SEQDIFF_DATA" not in os.environ, reason="no real data")
def test_intervals_of_real_promoters_are_the_published_sequences(tmp_path: Path) -> None:
    """The sequences cut from the available part of chr20 are in the published table."""
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
