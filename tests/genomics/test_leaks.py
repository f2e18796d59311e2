"""Evaluation data are not trained on, even if they come from another file with another name."""

from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from genomics.data.datamodules import FastaDataModule
from genomics.data.splits import shared_records
from genomics.io.genome import Genome
from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.intervals import Regions
from seqdiff.cli.app import main

CONFIG = Path(__file__).parents[2] / "configs" / "experiment" / "genomics" / "fasta.yaml"


def random_dna(size: int, seed: int) -> str:
    return decode(np.random.default_rng(seed).integers(0, 4, size))


def opposite(sequence: str) -> str:
    return decode(reverse_complement(encode(sequence)))


A, B, C = (random_dna(size, seed) for seed, size in enumerate((3000, 2000, 2000)))


def shared(one: dict[str, str], two: dict[str, str]) -> list[tuple[str, str]]:
    genomes = [Genome.from_records({n: encode(s) for n, s in r.items()}) for r in (one, two)]
    return shared_records(*chain.from_iterable((g, Regions.whole(g.lengths)) for g in genomes))


def test_records_are_known_by_their_bases_not_their_names():
    assert shared({"a": A, "b": B}, {"b": C, "c": A.lower()}) == [("a", "c")]
    assert shared({"a": A, "b": B}, {"a": C}) == []
    assert shared({"a": A, "b": B}, {"x": B, "y": A}) == [("b", "x"), ("a", "y")]


def test_the_opposite_strand_is_the_same_record(monkeypatch):
    monkeypatch.setattr("genomics.data.splits._CHUNK_BASES", 7)
    assert shared({"a": A, "b": B}, {"x": opposite(B)}) == [("b", "x")]
    assert shared({"b": B}, {"reversed": B[::-1], "one off": B[:-1] + opposite(B[-1])}) == []


def test_a_record_of_n_is_nobodys():
    assert shared({"a": "N" * 50, "b": B}, {"c": "N" * 50}) == []


def test_records_without_an_interval_are_passed_over():
    genome, other = (
        Genome.from_records({"b": encode(B), "c": encode(C)}) for _ in range(2)
    )  # all of one length
    whole = Regions.whole(genome.lengths)
    only_b, only_c = whole.select(np.array([0])), whole.select(np.array([1]))
    assert shared_records(genome, only_c, other, whole) == [("c", "c")]
    assert shared_records(genome, only_b, other, only_c) == []


def test_a_copy_within_one_genome_is_found_where_either_side_is_not_in_both():
    genome = Genome.from_records({n: encode(s) for n, s in {"b": B, "c": C, "d": B}.items()})
    whole = Regions.whole(genome.lengths)
    parts = [whole.select(np.array(chosen)) for chosen in ([0, 1], [1, 2], [0, 1, 2])]
    assert shared_records(genome, parts[0], genome, parts[1]) == [("b", "d")]
    assert shared_records(genome, parts[0], genome, parts[0]) == []
    assert shared_records(genome, parts[0], genome, parts[2]) == []  # both parts read b


@pytest.mark.parametrize("split", ["valid", "test"])
@pytest.mark.parametrize("record", [A, A.lower(), opposite(A)])
def test_one_chromosome_of_the_training_genome_is_no_held_out_file(fasta, split, record):
    genome, other = fasta(f">chr1\n{A}\n>chr2\n{B}\n"), fasta(f">x\n{record}\n>y\n{C}\n")
    with pytest.raises(
        ValueError,
        match=rf"{split}_fasta must share no record with the train split, got 1 records of "
        rf"{genome} in {other} too \(chr1\); remove them .* leave data.{split}_fasta out",
    ):
        FastaDataModule(genome, 50, **{f"{split}_fasta": other}).dataset("train")


def test_a_chromosome_that_training_does_not_read_may_come_back_in_a_file(fasta, tmp_path):
    genome, other = fasta(f">chr1\n{A}\n>chr2\n{B}\n"), fasta(f">x\n{B}\n")
    bed = tmp_path / "x.bed"
    bed.write_text("chr1\t0\t3000\n")
    data = FastaDataModule(genome, 50, bed=bed, test_fasta=other)
    assert len(data.dataset("test")) == 40


def test_valid_and_test_share_no_record_either(fasta):
    genome = fasta(f">chr1\n{A}\n>chr2\n{B}\n")
    one, two = fasta(f">x\n{C}\n"), fasta(f">y\n{opposite(C)}\n")
    with pytest.raises(ValueError, match=r"test_fasta must share no record with the valid split"):
        FastaDataModule(genome, 50, valid_fasta=one, test_fasta=two).dataset("train")
    held = fasta(f">y\n{B}\n")
    for files in (
        {"valid_chroms": ["chr2"], "test_fasta": held},
        {"test_chroms": ["chr2"], "valid_fasta": held},
    ):
        own, other = ("test", "valid") if "test_fasta" in files else ("valid", "test")
        with pytest.raises(ValueError, match=rf"{own}_fasta must share .* the {other} split"):
            FastaDataModule(genome, 50, **files).dataset("train")


@pytest.mark.parametrize("copy", [B, opposite(B)])
def test_a_record_that_stands_twice_in_one_file_is_not_in_two_splits(fasta, tmp_path, copy):
    genome = fasta(f">chr1\n{A}\n>copy1\n{B}\n>copy2\n{copy}\n")
    bed = tmp_path / "x.bed"
    bed.write_text("chr1\t0\t3000\ttrain\ncopy1\t0\t99\tvalid\ncopy2\t9\t2000\ttest\n")
    for pair, given in (
        (("valid", "test"), {"valid_chroms": ["copy1"], "test_chroms": ["copy2"]}),
        (("valid", "test"), {"bed": bed}),
        (("train", "test"), {"test_chroms": ["copy2"]}),
        (("train", "valid"), {"valid_chroms": ["copy2"], "split": (1.0, 0.0, 0.0)}),
    ):
        with pytest.raises(
            ValueError,
            match=rf"fasta must not hold copies of one record in {pair[0]} and in {pair[1]}, "
            rf"got 1 copied records in {genome} \(copy1 = copy2\); keep one copy of each, or",
        ):
            FastaDataModule(genome, 50, **given).dataset("train")
    both = FastaDataModule(genome, 50, test_chroms=["copy1", "copy2"])
    assert len(both.dataset("test")) == 80


# Requested splits exist before a run trains ----------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "bed", "split"),
    [
        ({"split": (0.9, 0.05, 0.05), "length": 600}, "", "test"),
        ({"split": (0.5, 0.0, 0.5), "test_chroms": ["n"]}, "", "test"),
        ({"valid_chroms": ["n"]}, "", "valid"),
        ({"test_fasta": "n"}, "", "test"),
        ({}, "chr1\t0\t900\ttrain\nchr1\t900\t920\tvalid\n", "valid"),
        ({}, "chr1\t0\t900\ttrain\nchr1\t0\t900\ttest\n", "train"),
    ],
)
def test_an_empty_split_is_named_whichever_split_is_opened(fasta, tmp_path, arguments, bed, split):
    genome = fasta(f">chr1\n{A}\n>n\n{'N' * 500}\n")
    if bed:
        arguments = {**arguments, "bed": tmp_path / "x.bed"}
        arguments["bed"].write_text(bed)
    if "test_fasta" in arguments:
        arguments = {**arguments, "test_fasta": fasta(f">n\n{'N' * 500}\n")}
    data = FastaDataModule(genome, **{"length": 50, **arguments})
    file = arguments.get("test_fasta", genome)
    for opened in ("train", split):
        with pytest.raises(
            ValueError,
            match=rf"the {split} split holds no window of {data.length} bases with a known base.* "
            rf"bases in all in {file}; use a shorter data\.length, or give {split} more sequence",
        ):
            data.dataset(opened)


def test_a_split_that_was_not_asked_for_is_missed_only_when_it_is_opened(fasta):
    data = FastaDataModule(fasta(f">chr1\n{A}\n"), 50, split=(0.8, 0.2, 0.0))
    assert len(data.dataset("train")) + len(data.dataset("valid")) == 60
    with pytest.raises(ValueError, match=r"there is no test split, .* by data\.split, data\.test_"):
        data.dataset("test")


def test_a_genome_too_small_to_test_on_never_trains(fasta, tmp_path, capsys):
    output = tmp_path / "run"
    genome = fasta(f">chr1\n{A + B}\n")  # five blocks, one of them for validation
    assert main(["train", str(CONFIG), f"--data.fasta={genome}", f"--output={output}"]) == 2
    message = capsys.readouterr().err
    assert "the test split holds no window of 1024 bases" in message
    assert len(message.strip().splitlines()) == 1
    assert not output.exists()
