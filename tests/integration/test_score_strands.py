"""A score depends on a record's content and the seed; a PS Caduceus scores both strands equally."""

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from genomics.io.fasta import write_fasta
from genomics.io.records import FastaReader
from genomics.sequence.alphabet import DNATokenizer, decode, encode, reverse_complement
from seqdiff.cli.app import main
from seqdiff.likelihood.estimator import PassNoise

CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "demo.yaml"
LETTERS = {
    "a": "ACGTTGCANNACCGGTTTAACA",
    "b": "TTGTTGCACCACCGGTTTAACG",
    "c": "GGGRTTTCACTTTGA",
    "palindrome": "ACGTACGT",
}
ESTIMATORS = (
    (),
    ("--estimator", "bernoulli-time"),
    ("--convention", "mdlm"),
    ("--estimator", "exact-k"),
    ("--estimator", "random-order-chain", "--orders", "2"),
    ("--estimator", "importance-weighted-orders", "--orders", "2"),
    ("--target_se", "1", "--max_nfe", "256"),
)
NUMBERS = ("nats", "bits/base", "standard_error", "low", "high")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small Caduceus runs, equivariant and not, with weights large enough to
    distinguish strands.
    """
    found = {}
    for variant in ("ps", "ph"):
        run = tmp_path_factory.mktemp("dna") / variant
        sizes = ["--data.length=16", "--data.num_train=32", f"--backbone.variant={variant}"]
        sizes += ["--backbone.complement=[3,2,1,0,4]", "--trainer.max_steps=1"]
        sizes += ["--trainer.enable_progress_bar=false", "--backbone.d_model=8"]
        sizes += ["--optim.lr=0.3", "--optim.warmup_steps=0"]
        assert main(["train", str(CONFIG), f"--output={run}", *sizes]) == 0
        found[variant] = run
    return found


def mirror(letters: str) -> str:
    return decode(reverse_complement(encode(letters)))


def table(run: Path, folder: Path, letters: dict[str, str], *flags: str) -> dict[str, np.ndarray]:
    """Write the records, score them, and read the printed numbers."""
    source, out = folder / "some.fa", folder / "some.tsv"
    write_fasta(source, list(letters), list(letters.values()))
    assert main(["score", str(run), "--fasta", str(source), "--out", str(out), *flags]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    return {row["record"]: np.array([float(row[key]) for key in NUMBERS]) for row in rows}


def mirrored(letters: dict[str, str]) -> dict[str, str]:
    """The other strands in another order, after a record that is not among them."""
    return {"x": "GATTACA", **{name: mirror(letters[name]) for name in reversed(letters)}}


def distance(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    return max(float(np.abs(one[name] - other[name]).max()) for name in LETTERS)


@pytest.mark.parametrize("flags", ESTIMATORS, ids=" ".join)
def test_both_strands_print_the_same_scores(
    runs: dict[str, Path], tmp_path: Path, flags: tuple[str, ...]
) -> None:
    forward = table(runs["ps"], tmp_path, LETTERS, *flags)
    backward = table(runs["ps"], tmp_path, mirrored(LETTERS), *flags)
    assert distance(forward, backward) <= 1e-5
    assert np.ptp([row[0] for row in forward.values()]) > 1
    unlike = table(runs["ph"], tmp_path, LETTERS, *flags)
    assert distance(unlike, table(runs["ph"], tmp_path, mirrored(LETTERS), *flags)) > 1e-3


def test_noise_that_is_not_mirrored_would_be_caught(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken twin: noise by position from the same end on both strands."""
    positions = PassNoise.positions

    def forwards(self, rows, draw):
        return positions(self, replace(rows, mirrored=None), draw)

    monkeypatch.setattr(PassNoise, "positions", forwards)
    forward = table(runs["ps"], tmp_path, LETTERS)
    assert distance(forward, table(runs["ps"], tmp_path, mirrored(LETTERS))) > 1e-3


def test_left_to_right_is_not_the_same_on_both_strands(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    flags = ("--estimator", "fixed-order")
    forward = table(runs["ps"], tmp_path, LETTERS, *flags)
    assert distance(forward, table(runs["ps"], tmp_path, mirrored(LETTERS), *flags)) > 1e-3


def test_fasta_on_both_strands(runs: dict[str, Path], tmp_path: Path) -> None:
    """Mirrored FASTA gives the same mean; a single strand read left to right does not."""
    letters = ["ACGTTGCANNACCGGT", "acgtt", "GGGRTTTCAC"]
    write_fasta(tmp_path / "f.fa", ["a", "b", "c"], letters)
    mirrored = ["".join("ACGTN"[i] for i in reverse_complement(encode(s))) for s in letters]
    write_fasta(tmp_path / "r.fa", ["a", "b", "c"], mirrored)
    found = {}
    for source in ("f", "r"):
        for rc in ("none", "mean"):
            out = tmp_path / f"{source}-{rc}.tsv"
            flags = ("--rc", rc, "--estimator", "fixed-order")
            assert (
                main(
                    [
                        "score",
                        str(runs["ps"]),
                        "--fasta",
                        str(tmp_path / f"{source}.fa"),
                        "--out",
                        str(out),
                        *flags,
                    ]
                )
                == 0
            )
            with out.open(newline="") as file:
                found[source, rc] = list(csv.DictReader(file, delimiter="\t"))
    nats = {key: np.array([float(row["nats"]) for row in rows]) for key, rows in found.items()}
    np.testing.assert_allclose(nats["f", "mean"], nats["r", "mean"], rtol=0, atol=1e-5)
    assert np.abs(nats["f", "none"] - nats["r", "none"]).max() > 1e-5
    both = (nats["f", "none"] + nats["r", "none"]) / 2
    np.testing.assert_allclose(nats["f", "mean"], both, rtol=0, atol=1e-5)
    assert [row["counted"] for row in found["f", "mean"]] == ["14", "5", "9"]
    assert "bits/base" in found["f", "mean"][0]


def test_intervals_of_a_genome(runs: dict[str, Path], tmp_path: Path, fails) -> None:
    """They have the scores of the records that ``bedtools getfasta -s -name`` would write."""
    genome, bed, out = (tmp_path / name for name in ("genome.fa", "some.bed", "bed.tsv"))
    a, b = LETTERS["a"], LETTERS["b"]
    write_fasta(genome, ["chr1", "chr2"], [a, b])
    bed.write_text("chr2\t3\t15\nchr1\t0\t22\tgene\t0\t-\nchr1\t2\t9\tgene\t0\t+\n")
    cut = {"chr2:3-15": b[3:15], "gene::chr1:0-22(-)": mirror(a), "gene::chr1:2-9(+)": a[2:9]}
    command = ["score", str(runs["ph"]), str(genome), "--bed", str(bed), "--out"]
    assert main([*command, str(out)]) == 0
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    found = {row["record"]: np.array([float(row[key]) for key in NUMBERS]) for row in rows}
    expected = table(runs["ph"], tmp_path, cut)
    assert list(found) == list(expected) == list(cut)
    for name in cut:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-5)

    bed.rename(tmp_path / "some.tsv")
    (tmp_path / "some.bed").symlink_to(tmp_path / "some.tsv")
    taken = str(tmp_path / "some.tsv")
    assert "score.out must be another file than --bed" in fails([*command, taken])
    bed.write_text("chr1\t2\t23\n")
    assert f"{bed}:1: " in fails([*command, str(out)])
    several = ["score", str(runs["ph"]), str(genome), str(tmp_path / "some.fa"), "--bed", str(bed)]
    assert "score.bed must go with one FASTA file, got 2" in fails(several)


@pytest.mark.parametrize("variant", ["ps", "ph"])
def test_the_mean_of_both_strands_is_the_same_for_any_network(
    runs: dict[str, Path], tmp_path: Path, variant: str
) -> None:
    forward = table(runs[variant], tmp_path, LETTERS, "--rc", "mean")
    backward = table(runs[variant], tmp_path, mirrored(LETTERS), "--rc", "mean")
    assert distance(forward, backward) <= 1e-5


def test_both_strands_have_noise_of_their_own(runs: dict[str, Path], tmp_path: Path) -> None:
    """With equal noise the two readings would agree, and their mean would be no better than one."""
    one = table(runs["ps"], tmp_path, LETTERS)
    both = table(runs["ps"], tmp_path, LETTERS, "--rc", "mean")
    assert all(abs(one[name][0] - both[name][0]) > 1e-3 for name in LETTERS)


def test_a_score_depends_on_neither_place_nor_neighbours_nor_name(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    whole = table(runs["ph"], tmp_path, {**LETTERS, "copy": LETTERS["a"]})
    np.testing.assert_array_equal(whole["a"], whole["copy"])
    for name, letters in LETTERS.items():
        alone = table(runs["ph"], tmp_path, {"alone": letters})["alone"]
        np.testing.assert_allclose(alone, whole[name], rtol=0, atol=1e-5)
    other = table(runs["ph"], tmp_path, LETTERS, "--seed", "1")
    assert distance(whole, other) > 1e-2, "but on the seed"


@pytest.mark.parametrize("batch_size", [1, 3, 7, 32, 500])
def test_scores_do_not_depend_on_the_batch_size(
    runs: dict[str, Path], tmp_path: Path, batch_size: int
) -> None:
    whole = table(runs["ps"], tmp_path, LETTERS)
    other = table(runs["ps"], tmp_path, LETTERS, "--batch_size", str(batch_size))
    assert distance(whole, other) <= 1e-5


@pytest.fixture
def threads() -> object:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_scores_do_not_depend_on_the_number_of_threads(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    tables = []
    for number in (1, 2, 3):
        torch.set_num_threads(number)
        tables.append(table(runs["ps"], tmp_path, LETTERS))
    assert max(distance(tables[0], other) for other in tables[1:]) <= 1e-5


def test_a_long_record_agrees_too(runs: dict[str, Path], tmp_path: Path) -> None:
    """1e-5 per base: float32 keeps no more for about 1,400 nats."""
    letters = decode(np.random.default_rng(0).integers(0, 4, 1000))
    forward = table(runs["ps"], tmp_path, {"long": letters})["long"]
    backward = table(runs["ps"], tmp_path, {"long": mirror(letters)})["long"]
    assert abs(forward[1] - backward[1]) <= 1e-5
    assert abs(forward[0] - backward[0]) <= 1e-2


@pytest.mark.parametrize("letters", LETTERS.values(), ids=LETTERS)
def test_what_the_reader_says(tmp_path: Path, letters: str) -> None:
    """Both strands have the same content, and a reading knows its strand."""
    read: dict[str, list] = {}
    for rc in ("none", "mean"):
        for name, strand in (("f", letters), ("r", mirror(letters))):
            write_fasta(tmp_path / "a.fa", [name], [strand])
            reader = FastaReader(rc=rc)
            (record,) = reader.read([tmp_path / "a.fa"], DNATokenizer())
            read.setdefault(rc, []).append(record)
    for forward, backward in read.values():
        np.testing.assert_array_equal(forward.content, backward.content)
        for record in (forward, backward):
            for ids, against in zip(record.readings, record.mirrored, strict=True):
                seen = reverse_complement(ids) if against else ids
                np.testing.assert_array_equal(seen, record.content)
    (forward, backward), both = read["none"], read["mean"]
    assert (forward.mirrored != backward.mirrored) == (letters != mirror(letters))
    assert all(record.mirrored == (False, True) for record in both)


def test_a_record_larger_than_memory_is_one_line(
    runs: dict[str, Path],
    tmp_path: Path,
    fails: Callable[[list[str]], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def positions(self, rows, draw):
        return torch.empty(1 << 60)

    monkeypatch.setattr(PassNoise, "positions", positions)
    write_fasta(tmp_path / "a.fa", ["a"], ["ACGT"])
    source, out = str(tmp_path / "a.fa"), tmp_path / "a.tsv"
    message = fails(["score", str(runs["ps"]), "--fasta", source, "--out", str(out)])
    assert "the memory is too small:" in message
    assert not out.exists()
