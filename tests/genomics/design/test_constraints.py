"""Constraints against regular expressions and Biopython, and what contradicts itself."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest
import torch
from Bio.Restriction import AllEnzymes, RestrictionBatch
from Bio.Seq import Seq

from genomics.design import Constraints, Nearest, describe_failures, forbid, nearest
from genomics.design.constraints import edit_distances, find_sites
from genomics.sequence import BASES, DNATokenizer, decode, encode
from seqdiff.samplers import FirstHittingSampler
from tests.integration.toy_domain import RingTokenizer
from tests.oracles import UniformBackbone, masked_model

DNA = DNATokenizer()
CODES = {"A": "A", "C": "C", "G": "G", "T": "T", "R": "AG", "Y": "CT", "N": "ACGT", "W": "AT"}


def random_rows(count: int, length: int, seed: int = 0) -> list[str]:
    source = random.Random(seed)
    return ["".join(source.choices(BASES, k=length)) for _ in range(count)]


def draw(count: int, length: int, **options: object) -> list[str]:
    avoid = forbid("design", DNA, **options)  # pyright: ignore[reportArgumentType]
    drawn = FirstHittingSampler().sample(
        masked_model(UniformBackbone(4)),
        torch.full((count, length), 4),
        seeds=torch.arange(count),
        avoid=avoid,
    )
    return [decode(row) for row in drawn.tokens.numpy()]


def other(sequence: str) -> str:
    return str(Seq(sequence).reverse_complement())


def test_drawn_sequences_have_no_site_that_biopython_finds() -> None:
    names = ["EcoRI", "BamHI", "BsaI", "HinfI", "MspI"]
    batch = RestrictionBatch(names)  # reads both strands

    def cut(row: str) -> bool:
        """Between unknown bases, so that a cut beside a site at the end is found."""
        return any(batch.search(Seq("N" * 30 + row + "N" * 30)).values())

    free = random_rows(60, 60)
    assert sum(map(cut, free)) > 15
    rows = draw(60, 60, sites=names)
    assert not any(map(cut, rows))
    passed = Constraints(avoid_sites=tuple(names)).passes(free + rows)["avoid_sites"]
    assert passed.tolist() == [not cut(row) for row in free + rows]


def test_every_enzyme_has_an_automaton() -> None:
    assert find_sites("design", "HpyUM037X") == ("TNGGNAG", "GTGGNAG"), "two sites"
    twice = Constraints(avoid_sites=("HpyUM037X",)).passes(["GTGGAAG", "CTTCCAC", "GTGGAAC"])
    assert twice["avoid_sites"].tolist() == [False, False, True]
    for enzyme in [*sorted(map(str, AllEnzymes))[::40], "YkrI"]:
        built = forbid("design", DNA, sites=[enzyme])
        assert built is not None
        assert (built.num_states > 1) == (find_sites("design", enzyme) != ("C",)), "YkrI"


@pytest.mark.parametrize("word", ["TATA", "GANTC", "RRYY", "W"])
def test_words_are_left_out_on_both_strands(word: str) -> None:
    pattern = re.compile("".join(f"[{CODES[code]}]" for code in word))
    rows = draw(60, 40, words=[word.lower()])
    free = random_rows(60, 40)
    passed = Constraints(avoid=(word,)).passes(free + rows)["avoid"]
    for row, held in zip(free + rows, passed.tolist(), strict=True):
        assert held == (pattern.search(row) is None and pattern.search(other(row)) is None)
    assert passed[60:].all() and not passed[:60].all()


def test_runs_of_a_base_are_at_most_as_long_as_allowed() -> None:
    rows, free = draw(80, 40, homopolymer=2), random_rows(80, 40)
    passed = Constraints(homopolymer=2).passes(free + rows)["homopolymer"]
    assert passed.tolist() == [not re.search(r"(.)\1\1", row) for row in free + rows]
    assert passed[80:].all() and any("AA" in row for row in rows), "a run of two is allowed"
    unknown = Constraints(homopolymer=2).passes(["NNNNA", "AANAA", "NAAAN"])["homopolymer"]
    assert unknown.tolist() == [True, True, False], "unknown bases are no run"


def test_gc_and_motifs_by_hand() -> None:
    rows = ["ACGT", "GGCC", "AATT", "GGCA", "NNAG", "NNNN"]
    passed = Constraints(gc=(0.5, 0.75)).passes(rows)["gc"]
    assert passed.tolist() == [True, False, False, True, True, False]
    passed = Constraints(motif=("RC", "T@1")).passes(["TTGC", "GCTA", "ATAC", "ATCC"])["motif"]
    assert passed.tolist() == [True, False, True, False], "on the given strand"


def levenshtein(a: str, b: str) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, start=1):
        before, row[0] = row[0], i
        for j, y in enumerate(b, start=1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (x != y))
    return row[-1]


def test_the_nearest_training_sequence_by_dynamic_programming(monkeypatch) -> None:
    rows = random_rows(7, 12)
    training = [*random_rows(30, 11, seed=1), other(rows[3]), rows[5][1:] + "A"]
    table = [[min(levenshtein(x, y), levenshtein(other(x), y)) for y in training] for x in rows]
    assert edit_distances(rows, training).tolist() == table
    monkeypatch.setattr("genomics.design.constraints._BLOCK_PAIRS", 40)
    seen: list[int] = []
    found = nearest(rows, training, seen.append)
    assert found.distance.tolist() == [min(row) for row in table]
    assert found.number.tolist() == [row.index(min(row)) for row in table]
    assert found.distance[3] == 0 and found.number[3] == 30 and sum(seen) == len(training)
    limits = Constraints(min_distance=1, max_distance=4).passes(rows, found)
    assert limits["min_distance"].tolist() == [d >= 1 for d in found.distance.tolist()]
    assert limits["max_distance"].tolist() == [d <= 4 for d in found.distance.tolist()]


def test_limits_of_the_distance_are_allowed() -> None:
    near = Nearest(np.array([1, 2, 4, 5]), np.zeros(4, dtype=np.int64))
    held = Constraints(min_distance=2, max_distance=4).passes(["A"] * 4, near)
    assert held["min_distance"].tolist() == [False, True, True, True]
    assert held["max_distance"].tolist() == [True, True, True, False]


def test_failures_are_counted_by_constraint() -> None:
    constraints = Constraints(gc=(0.9, 1.0), homopolymer=1, min_distance=2)
    near = Nearest(np.array([0, 3]), np.array([0, 0]))
    passed = constraints.passes(["AAAA", "GCGC"], near)
    assert describe_failures(passed) == "gc 1, homopolymer 1, min_distance 1"
    assert describe_failures({"gc": np.array([True])}) == "none"


def test_a_required_motif_with_a_forbidden_word_is_named() -> None:
    avoid = forbid("design", DNA, sites=["EcoRI"])
    x_init = torch.full((1, 12), 4)
    x_init[0, 3:10] = torch.from_numpy(encode("GGAATTC").astype(np.int64))
    with pytest.raises(ValueError, match=r"got the word GAATTC \(EcoRI\) at row 0, position 4;"):
        FirstHittingSampler().sample(
            masked_model(UniformBackbone(4)), x_init, seeds=torch.arange(1), avoid=avoid
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gc": (0.6, 0.4)}, r"design.gc must be a least and a greatest fraction .* got 0.6 0.4"),
        ({"gc": (0.1, 1.4)}, r"design.gc must be a least and a greatest fraction"),
        ({"homopolymer": 0}, r"design.homopolymer must be at least 1, got 0"),
        ({"min_distance": -1}, r"design.min_distance must be at least 0, got -1"),
        (
            {"min_distance": 5, "max_distance": 4},
            r"design.min_distance must be at most max_distance = 4, got 5",
        ),
        ({"avoid_sites": ("ecori",)}, r"restriction enzyme, got 'ecori'; did you mean EcoRI\?"),
        ({"avoid_sites": ("qqqqqq",)}, r"got 'qqqqqq'; write for example EcoRI,BamHI"),
        ({"avoid": ("GAXTC",)}, r"design.avoid must be IUPAC codes of DNA, got 'GAXTC' with 'X'"),
        ({"avoid": ("",)}, r"design.avoid must be IUPAC codes of DNA, got ''; write"),
        ({"motif": ("GA-",)}, r"design.motif must be IUPAC codes of DNA, got 'GA-' with '-'"),
        ({"motif": ("@3",)}, r"sample.motif must be PATTERN or PATTERN@START"),
    ],
)
def test_constraints_that_make_no_sense_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Constraints(**options)


def test_words_that_do_not_fit_the_run_are_named() -> None:
    with pytest.raises(ValueError, match=r"sample.avoid must be a list, got the string 'GAATTC'"):
        forbid("sample", DNA, words="GAATTC")
    with pytest.raises(ValueError, match=r"sample.avoid GAXTC: sequence: 'X' at offset 2"):
        forbid("sample", DNA, words=["GAXTC"])
    with pytest.raises(ValueError, match=r"must go with a tokenizer of DNA, got a run with RingT"):
        forbid("sample", RingTokenizer(), words=["GA"])
    assert forbid("sample", DNA) is None
