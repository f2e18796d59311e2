"""Templates and motifs by enumeration: samples have the exact conditional distribution."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from genomics.sequence.alphabet import DNATokenizer
from seqdiff.data.templates import Blanks, Motif, Placements, Records, Scaffolds, Template
from seqdiff.samplers import AncestralSampler, FirstHittingSampler
from tests import distributions
from tests.enumeration import Distribution, distance, outcomes
from tests.oracles import LookupBackbone, masked_model
from tests.statistics import FALSE_ALARM, pearson, power

DNA = DNATokenizer()


def covered(starts: tuple[int, ...], widths: tuple[int, ...]) -> list[int]:
    return [i for s, w in zip(starts, widths, strict=True) for i in range(s, s + w)]


def all_ways(length: int, widths: tuple[int, ...], taken: set[int]) -> list[tuple[int, ...]]:
    ways = itertools.product(*(range(length - w + 1) for w in widths))
    cells = ((way, covered(way, widths)) for way in ways)
    return [way for way, c in cells if len(set(c)) == len(c) and not taken & set(c)]


@pytest.mark.parametrize(
    ("length", "widths", "taken"),
    [
        (7, (2,), {3}),
        (7, (2, 2), set()),
        (8, (3, 1, 2), {4}),
        (8, (2, 1, 2), {0, 5}),
        (6, (1, 1, 1), {2}),
        (6, (3, 3), set()),
        (6, (), {1}),
        (6, (4, 3), set()),
        (5, (6,), set()),
    ],
)
def test_every_placement_has_one_number(length, widths, taken) -> None:
    placements = Placements(length, widths, taken)
    found = [tuple(placements.starts(number)) for number in range(placements.count)]
    assert len(set(found)) == len(found)
    assert sorted(found) == all_ways(length, widths, taken)


def one_after_the_other(length: int, widths: tuple[int, ...], taken: set[int]) -> Distribution:
    """Broken twin: each motif uniformly among the positions that earlier ones have left."""
    distribution: Distribution = {(): 1.0}
    for width in widths:
        grown: Distribution = {}
        for starts, chance in distribution.items():
            busy = taken | set(covered(starts, widths[: len(starts)]))
            free = [s for s in range(length - width + 1) if not busy & set(covered((s,), (width,)))]
            for start in free:
                grown[(*starts, start)] = chance / len(free)
        distribution = grown
    return distribution


def test_loose_motifs_are_laid_uniformly_around_fixed_ones() -> None:
    """4,000 seeds over 19 arrangements: false-alarm rate 1e-6, power above .999 against
    the twin.
    """
    length, draws = 12, 4000
    motifs = [Motif.parse(text) for text in ("ACA@5", "TT", "GGG")]
    scaffolds = Scaffolds(motifs, draws, length, DNA)
    ways = all_ways(length, (2, 3), {5, 6, 7})
    uniform = torch.full((len(ways),), 1 / len(ways), dtype=torch.float64)
    other = one_after_the_other(length, (2, 3), {5, 6, 7})
    wrong = torch.tensor([other.get(way, 0.0) for way in ways], dtype=torch.float64)
    counts = torch.zeros(len(ways))
    seeds = torch.randint(0, 2**62, (draws,), generator=torch.Generator().manual_seed(0))
    for number, seed in enumerate(seeds.tolist()):
        letters = "".join("ACGTN"[i] for i in scaffolds.template(number, seed).tokens)
        assert letters[5:8] == "ACA"
        counts[ways.index((letters.index("TT"), letters.index("GGG")))] += 1
    statistic, threshold = pearson(counts, uniform)
    assert statistic < threshold, f"at a false-alarm rate of {FALSE_ALARM}"
    assert power(wrong / wrong.sum(), uniform, draws) > 0.999


def test_a_template_shows_single_letters_and_remembers_the_others() -> None:
    records = [("a", "acgtRN"), ("b", "ACNN"), ("c", "ACGT")]
    templates = Records(records, 2, DNA)
    assert templates.names == ["a_0", "a_1", "b_0", "b_1", "c_0", "c_1"]
    assert templates.lengths == [6, 6, 4, 4, 4, 4]
    first, second, third = (templates.template(number, 7) for number in (1, 2, 5))
    assert first.tokens.tolist() == [0, 1, 2, 3, 4, 4]
    assert first.allowed is not None
    assert first.allowed[4:].tolist() == [[True, False, True, False], [True] * 4]
    assert second.tokens.tolist() == [0, 1, 4, 4] and second.allowed is None
    assert third.tokens.tolist() == [0, 1, 2, 3] and third.allowed is None
    assert Blanks(3, 2, 4).template(1, 0).tokens.tolist() == [4, 4]


def test_overlapping_motifs_keep_the_letters_they_share() -> None:
    motifs = [Motif("ARG", 1), Motif("WNY", 2), Motif("NNNNNN", 0)]
    template = Scaffolds(motifs, 1, 6, DNA).template(0, 0)
    assert template.allowed is not None
    meant = ["".join(np.array(list("ACGT"))[row]) for row in template.allowed]
    assert meant == ["ACGT", "A", "A", "G", "CT", "ACGT"], "R and W share A, G and N share G"
    assert template.tokens.tolist() == [4, 0, 0, 2, 4, 4]


@pytest.mark.parametrize(
    ("text", "motif"),
    [("ACG", Motif("ACG")), ("ACG@0", Motif("ACG", 0)), ("A@B@12", Motif("A@B", 12))],
)
def test_motifs_are_read_as_they_are_written(text: str, motif: Motif) -> None:
    assert Motif.parse(text) == motif and str(motif) == text


def restricted(allowed: Tensor) -> distributions.Reshape:
    def reshape(position: int, distribution: list[float]) -> list[float]:
        kept = [p * float(ok) for p, ok in zip(distribution, allowed[position], strict=True)]
        return [p / math.fsum(kept) for p in kept] if math.fsum(kept) else distribution

    return reshape


@pytest.mark.parametrize("pattern", ["RNT", "SBK", "NNN", "ANC"])
def test_what_is_drawn_within_a_template_has_the_exact_distribution(pattern: str) -> None:
    """Each symbol is drawn from the model within the code, given the others, in random order."""
    k, denoiser = 4, masked_model(LookupBackbone(4, 3, seed=2))
    template = Template.within(DNA.allowed(pattern))
    x_init = torch.from_numpy(template.tokens)
    allowed = None if template.allowed is None else torch.from_numpy(template.allowed)
    start, every = distributions.as_tokens(x_init), torch.from_numpy(DNA.allowed(pattern))
    table = distributions.table(denoiser, k, 3, restricted(every))
    found = outcomes(FirstHittingSampler(), denoiser, x_init, allowed=allowed).distribution
    assert distance(found, distributions.random_order(start, table, k)) < 1e-10
    one_step = outcomes(AncestralSampler(1), denoiser, x_init, allowed=allowed).distribution
    assert (
        distance(
            one_step, distributions.reveal(start, distributions.masked(start, k), table[start])
        )
        < 1e-10
    )
    free = outcomes(FirstHittingSampler(), denoiser, x_init).distribution
    kept = {x: p for x, p in free.items() if all(every[i, a] for i, a in enumerate(x))}
    rejected = {x: p / math.fsum(kept.values()) for x, p in kept.items()}
    assert (distance(found, rejected) < 1e-10) == (allowed is None), "the twin by rejection"


# Errors


@pytest.mark.parametrize(
    ("motifs", "length", "said"),
    [
        (["ACGT@3"], 6, r"motif ACGT@3 must end within length 6, got an end at 7; raise --length"),
        (
            ["RRR@0", "AAA@1", "Y@2"],
            6,
            r"motif Y@2 must allow a symbol in common with RRR@0, AAA@1 at pos",
        ),
        (["ACGT", "ACG"], 6, r"motif must fit side by side within length 6, got 7 symbols of 2 m"),
        (["ACGTACG"], 6, r"within length 6, got 7 symbols of 1 motif; raise --length"),
        (["ACG@2", "TTT"], 7, r"motif must fit side by side within length 7, got 6 symbols of 2"),
        (["AC-T"], 9, r"motif AC-T: .*'-' at offset 2"),
        (["A" * n for n in range(1, 30)], 999, r"^Placements\.widths must be few or alike, got 29"),
    ],
)
def test_motifs_that_do_not_fit(motifs: list[str], length: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Scaffolds([Motif.parse(text) for text in motifs], 1, length, DNA)


@pytest.mark.parametrize("text", ["", "@3", "ACG@", "ACG@-1", "ACG@1.5", "ACG@\u0663"])
def test_what_is_no_motif(text: str) -> None:
    with pytest.raises(ValueError, match=r"^sample\.motif must be PATTERN or PATTERN@START"):
        Motif.parse(text)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([], "must hold a record, got none"),
        ([("a", "N"), ("b", "N"), ("a", "C")], "must hold each name once, got two records 'a'"),
        ([("a", "N"), ("b", "")], "record 'b' must not be empty"),
        ([("a", "NU")], "record 'a': .*'U' at offset 1"),
    ],
)
def test_records_that_are_no_templates(records: list[tuple[str, str]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Records(records, 1, DNA)
