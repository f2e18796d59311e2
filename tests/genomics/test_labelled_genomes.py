"""One genome per class of intervals, names of records, and metadata.yaml."""

from pathlib import Path

import pytest

from genomics.finetune.labelled import seen
from genomics.finetune.labelled_genomes import ClassGenome
from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.intervals import Interval
from seqdiff.cli.app import main
from tests.genomics.labelled_data import GENOME, HEADER, interval_task, load, spelt, write

# Names of records


@pytest.mark.parametrize(
    ("region", "records", "found"),
    [
        ("chr1", "chr1 1", "chr1"),
        ("1", "chr1 1", "1"),
        ("chr1", "1 2", "1"),
        ("X", "chrX", "chrX"),
        ("chr11", "1 11", "11"),
        ("chrM", "MT M", ""),
        ("M", "chrM", ""),
        ("chrMT", "MT", ""),
        ("MT", "MT", "MT"),
        ("ENST00000371014", "ENST00000371014.5", "ENST00000371014.5"),
        ("ENST00000371014.5", "ENST00000371014", "ENST00000371014"),
        ("ENST00000371014.5", "ENST00000371014.5 ENST00000371014", "ENST00000371014.5"),
        ("ENSMUST00000371014", "ENSMUST00000371014.1", "ENSMUST00000371014.1"),
        ("ENST00000371014.5", "ENST00000371014.6", ""),
        ("ENST00000371014", "ENST00000371014.5 ENST00000371014.6", ""),
        ("AC000001", "AC000001.2", ""),
        ("chr", "chr1", ""),
    ],
)
def test_the_record_that_a_region_names(
    region: str, records: str, found: str, tmp_path: Path
) -> None:
    """The header continues after the name, as in files of Ensembl."""
    text = "".join(f">{name} cdna chromosome:1\n{GENOME}\n" for name in records.split())
    genome = ClassGenome(write(tmp_path / "g.fa", text))
    place = Interval(region, 1, 4, "", "-")
    if found:
        assert genome.cut(place) == ("GGT", Interval(f"g.fa:{found}", 1, 4, "", "-"))
    else:
        with pytest.raises(ValueError, match=f"no record '{region}'"):
            genome.cut(place)


# One genome per class

METADATA = """\
version: 0
classes:
  human:
    type: fa.gz
    url: http://ftp.ensembl.org/pub/release-97/dna/Human.dna.toplevel.fa.gz
    extra_processing: ENSEMBL_HUMAN_GENOME
  worm:
    type: fa.gz
    url: ftp://ftp.ensembl.org/pub/release-104/dna/Worm.dna.toplevel.fa.gz
"""
WORM = "TTTTTCCCCC"


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """Human regions have chr and the FASTA does not; both genomes have an X."""
    task, genomes = tmp_path / "human_or_worm", tmp_path / "genomes"
    write(task / "metadata.yaml", METADATA)
    write(task / "train/human.csv.gz", HEADER + "a,chrX,0,4,+\n")
    write(task / "train/worm.csv.gz", HEADER + "b,X,6,9,-\n")
    write(task / "test/human.csv.gz", HEADER + "c,chrX,3,6,-\nd,chrX,6,9,+\n")
    write(task / "test/worm.csv.gz", HEADER + "e,X,0,5,+\nf,X,8,10,+\n")
    write(genomes / "Human.dna.toplevel.fa", f">X dna:chromosome\n{GENOME}\n")
    write(genomes / "Worm.dna.toplevel.fa", f">X dna:chromosome\n{WORM}\n")
    return task


def test_each_class_is_cut_from_its_own_genome(two: Path, tmp_path: Path) -> None:
    task = load(two, tmp_path / "genomes")
    opposite = decode(reverse_complement(encode(GENOME[3:6])))
    assert spelt(task.train) == [(GENOME[:4], 0), ("GGG", 1)]
    assert spelt(task.test) == [(opposite, 0), (GENOME[6:9], 0), (WORM[:5], 1), (WORM[8:], 1)]


def test_places_of_two_genomes_are_no_places_of_one(two: Path, tmp_path: Path) -> None:
    """Bases 6..9 and 0..5 of X are in train of one genome and in test of the other."""
    task = load(two, tmp_path / "genomes")
    assert seen(task.train, task.test).tolist() == [True, False, False, True]


@pytest.mark.parametrize("ending", [".fa.gz", ".fa.bgz"])
def test_a_genome_may_be_packed_with_bgzip(ending: str, two: Path, tmp_path: Path) -> None:
    from Bio import bgzf

    plain = tmp_path / "genomes/Worm.dna.toplevel.fa"
    with bgzf.open(str(plain.with_suffix(ending)), "wb") as file:
        file.write(plain.read_bytes())
    expected = load(two, tmp_path / "genomes")
    plain.unlink()
    found = load(two, tmp_path / "genomes")
    assert spelt(found.train) == spelt(expected.train)
    assert found.fingerprint == expected.fingerprint


def test_what_is_packed_with_gzip_is_told_how_to_mend_it(two: Path, tmp_path: Path) -> None:
    """The file that the advice creates is used although the other one still exists."""
    folder = tmp_path / "genomes"
    plain = folder / "Worm.dna.toplevel.fa"
    write(folder / "Worm.dna.toplevel.fa.gz", plain.read_text())
    plain.rename(tmp_path / "kept.fa")
    with pytest.raises(ValueError, match=r"bgzip > Worm\.dna\.toplevel\.fa\.bgz"):
        load(two, folder)
    from Bio import bgzf

    with bgzf.open(str(folder / "Worm.dna.toplevel.fa.bgz"), "wb") as file:
        file.write((tmp_path / "kept.fa").read_bytes())
    assert load(two, folder).classes == ("human", "worm")


def test_a_genome_that_is_missing_is_named_before_anything_is_read(
    two: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The previous task by name is invalid too, but it is read later."""
    (tmp_path / "genomes/Worm.dna.toplevel.fa").unlink()
    suite = tmp_path / "suite"
    write(suite / "a/metadata.yaml", METADATA)
    for split in ("train", "test"):
        write(suite / f"a/{split}/human.csv", HEADER + "a,nowhere,0,4,+\n")
    two.rename(suite / "b")
    out = str(tmp_path / "out")
    command = ["finetune", "--data", str(suite), "--out", out, "--baselines", "majority"]
    assert main([*command, "--fasta", str(tmp_path / "genomes")]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and not Path(out).exists()
    for part in (
        f"{suite / 'b/metadata.yaml'}:9: class 'worm'",
        "Worm.dna.toplevel.fa,",
        "seqdiff fetch https://ftp.ensembl.org/pub/release-104/dna/Worm.dna.toplevel.fa.gz",
        f"--out {tmp_path / 'genomes'}",
    ):
        assert part in lines[0], (part, lines)


def test_a_folder_of_genomes_takes_metadata(two: Path, tmp_path: Path) -> None:
    write(two / "metadata.yaml", "classes:\n  human: {type: fa.gz}\n  worm: {type: fa.gz}\n")
    with pytest.raises(ValueError, match=r"metadata\.yaml:2: class 'human' must have the URL"):
        load(two, tmp_path / "genomes")
    (two / "metadata.yaml").unlink()
    with pytest.raises(ValueError, match=r"metadata\.yaml: class 'human' must have the URL"):
        load(two, tmp_path / "genomes")


def test_one_file_serves_every_class(two: Path, tmp_path: Path) -> None:
    task = load(two, tmp_path / "genomes/Human.dna.toplevel.fa")
    assert spelt(task.train) == [(GENOME[:4], 0), (decode(3 - encode(GENOME[6:9])[::-1]), 1)]


# Metadata


@pytest.fixture
def fasta(tmp_path: Path) -> Path:
    return write(tmp_path / "genome.fa", f">chr1\n{GENOME}\n>chr2\nTTTT\n")


def test_metadata_must_name_the_classes_that_are_there(tmp_path: Path, fasta: Path) -> None:
    folder = interval_task(tmp_path / "task")
    for text in ("classes:\n  neg: {url: a}\n  pos: {url: b}\n", "classes: [pos, neg]\n"):
        write(folder / "metadata.yaml", text)
        assert load(folder, fasta).classes == ("neg", "pos")
    write(folder / "metadata.yaml", "version: 0\nclasses:\n  neg: {url: a}\n  other: {url: b}\n")
    with pytest.raises(ValueError, match=r"metadata\.yaml: classes must be those of the files"):
        load(folder, fasta)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"classes: [neg, pos\nversion: 0\n", r":2: must be YAML \(.*copy it again"),
        (b"classes:\n  neg: \xff\n", r": must be YAML \(.*copy it again"),
        (b"- neg\n- pos\n", r":1: must name classes"),
        (b"", r":1: must name classes"),
        (b"version: 0\nclasses: neg\n", r":2: must name classes"),
    ],
)
def test_unsound_metadata_are_refused(
    content: bytes, message: str, tmp_path: Path, fasta: Path
) -> None:
    folder = interval_task(tmp_path / "task")
    (folder / "metadata.yaml").write_bytes(content)
    with pytest.raises(ValueError, match=rf"metadata\.yaml{message}") as caught:
        load(folder, fasta)
    assert "\n" not in str(caught.value)


def test_a_class_named_as_yaml_names_a_truth_value(tmp_path: Path, fasta: Path) -> None:
    for split, line in (("train", "a,chr1,0,3,+\n"), ("test", "a,chr1,4,6,+\n")):
        for name in ("no", "yes"):
            write(tmp_path / f"t/{split}/{name}.csv", HEADER + line)
    write(tmp_path / "t/metadata.yaml", "classes:\n  no: {url: a}\n  yes: {url: a}\n")
    assert load(tmp_path / "t", fasta).classes == ("no", "yes")
