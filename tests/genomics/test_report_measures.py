"""Every number of a report's JSON against its formula, on small sets."""

import json
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import ks_2samp

from genomics.io.motifs import MotifScores
from genomics.report.measures import (
    Measure,
    Measured,
    _Set,
    _spectra,
    distinct_kmers,
    distinct_rows,
    gc_content,
    measure,
)
from genomics.report.page import About, Curves, numbers
from genomics.report.sets import Sets
from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.kmers import join
from genomics.sequence.matches import overlap
from tests.genomics import report_oracles as plain

LENGTHS = [50, 60, 70, 45, 80, 30, 66, 52, 41, 75]
SEED = 3


def rows(seed: int, p: tuple[float, ...], unknown: float = 0) -> list[np.ndarray]:
    generator, distribution = np.random.default_rng(seed), [*((1 - unknown) * np.array(p)), unknown]
    return [generator.choice(5, size, p=distribution).astype(np.uint8) for size in LENGTHS]


@pytest.fixture(scope="module")
def sets() -> Sets:
    training = join(rows(0, (0.3, 0.2, 0.2, 0.3)))
    samples = rows(1, (0.4, 0.1, 0.3, 0.2), unknown=0.02)
    samples[2], samples[3] = training[5:75], reverse_complement(training[120:165])[:45]
    samples[4] = np.concatenate([training[60:85], samples[4][25:]])
    samples.append(reverse_complement(samples[0]))
    others = {
        "samples": samples,
        "real vs real": [*rows(2, (0.3, 0.2, 0.2, 0.3)), training[200:250]],
        "dinucleotide shuffle": [*rows(3, (0.3, 0.2, 0.2, 0.3)), encode("ACGTT" * 10)],
        "Markov order 2": [*rows(4, (0.1, 0.4, 0.2, 0.3)), encode("AACCT" * 10)],
    }
    real = [*rows(5, (0.3, 0.2, 0.25, 0.25)), encode("GATTC" * 10)]
    lengths = np.array([64, 64, 50, 33])
    return Sets(real, others, training, lengths, True, "somewhere")


@pytest.fixture(scope="module")
def motifs() -> list[MotifScores]:
    generator = np.random.default_rng(0)
    return [
        MotifScores(f"M{width}", np.log2(4 * generator.dirichlet([0.4] * 4, width) + 1e-3))
        for width in (3, 4, 4, 6)
    ]


@pytest.fixture(scope="module")
def measured(sets: Sets, motifs: list[MotifScores]) -> Measured:
    return measure(sets, motifs, SEED)


@pytest.fixture(scope="module")
def texts(sets: Sets) -> dict[str, list[str]]:
    return {
        name: [decode(row) for row in every]
        for name, every in {"real": sets.real, **sets.others}.items()
    }


def gc(texts: list[str]) -> np.ndarray:
    return np.array([sum(b in "GC" for b in t) / sum(b != "N" for b in t) for t in texts])


def spread(values: np.ndarray) -> float:
    return float(np.sqrt(((values - values.mean()) ** 2).sum() / (len(values) - 1)))


def enrichment(motifs: list[MotifScores], texts: list[str], real: list[str]) -> list[float]:
    pairs = [(plain.hits(m.scores, texts), plain.hits(m.scores, real)) for m in motifs]
    return [float(np.log2((ours + 0.5) / (theirs + 0.5))) for ours, theirs in pairs]


def formulas(
    real: list[str], training: str, motifs: list[MotifScores]
) -> dict[str, Callable[[list[str]], float]]:
    def spectrum(texts: list[str], k: int):
        return plain.words(plain.strands(texts), k)

    found: dict[str, Callable[[list[str]], float]] = {
        "GC content, mean": lambda t: 100 * gc(t).mean(),
        "GC content, standard deviation over sequences": lambda t: 100 * spread(gc(t)),
        "GC content, Kolmogorov-Smirnov distance": lambda t: ks_2samp(gc(t), gc(real)).statistic,
        "mean |enrichment| over 4 motifs": lambda t: float(
            np.mean(np.abs(enrichment(motifs, t, real)))
        ),
        "4-mer logistic regression against real windows": lambda t: plain.area(real, t, SEED),
        "distinct sequences": lambda t: 100 * len({min(x, plain.opposite(x)) for x in t}) / len(t),
        "distinct 12-mers, canonical": lambda t: 100 * plain.distinct(t, 12),
        "longest exact match": lambda t: max(plain.longest_match(x, training) for x in t),
        "longest exact match, mean over sequences": lambda t: float(
            np.mean([plain.longest_match(x, training) for x in t])
        ),
        "20-mers in the training sequence": lambda t: 100 * plain.containment(t, training, 20),
    }
    for k in range(1, 7):
        found[f"{k}-mers, Jensen-Shannon divergence"] = lambda t, k=k: plain.divergence(
            spectrum(t, k), spectrum(real, k)
        )
    for k in range(2, 7):
        found[f"{k}-mers, Pearson correlation"] = lambda t, k=k: plain.correlation(
            spectrum(t, k), spectrum(real, k), k
        )
    return found


def test_every_number_by_its_formula(
    sets: Sets, motifs: list[MotifScores], measured: Measured, texts: dict[str, list[str]]
) -> None:
    expected = formulas(texts["real"], decode(sets.training), motifs)
    found = {m.name: m.values for m in measured.measures if m.section != "Length"}
    assert set(found) == set(expected)
    for name, formula in expected.items():
        assert list(found[name]) == list(sets.others)
        for key, value in found[name].items():
            assert value == pytest.approx(formula(texts[key]), rel=1e-9, abs=1e-9), (name, key)
    distances = [v for values in found.values() for v in np.ptp([[*values.values()]], axis=1)]
    assert min(distances) > 1e-3, "sets with equal numbers would hide an exchange"


def test_lengths(measured: Measured) -> None:
    found = {m.name: m.values for m in measured.measures if m.section == "Length"}
    lengths = np.array([*LENGTHS, 50])
    assert found == {
        "mean": {"samples": pytest.approx(619 / 11), "training rows": 52.75},
        "standard deviation": {
            "samples": pytest.approx(spread(lengths)),
            "training rows": pytest.approx(spread(np.array([64, 64, 50, 33]))),
        },
        "shortest": {"samples": 30, "training rows": 33},
        "longest": {"samples": 80, "training rows": 64},
    }


def test_numbers_of_each_sequence_and_motif(
    sets: Sets, motifs: list[MotifScores], measured: Measured, texts: dict[str, list[str]]
) -> None:
    about = About({"samples": "s.fa"}, True, 2)
    curves = Curves("test", {"val": ([1], [1.5])}, {"Markov order 0": 1.9})
    found = json.loads(json.dumps(numbers(about, SEED, measured, curves)))
    assert list(found) == [
        *("about", "measures", "lengths", "gc", "longest_match", "spectra", "motifs", "training")
    ]
    assert found["about"] == {"samples": "s.fa", "held_out": True, "seed": SEED}
    assert [m["values"] for m in found["measures"]] == [m.values for m in measured.measures]
    assert [m["errors"] for m in found["measures"]] == [m.errors for m in measured.measures]
    assert found["lengths"]["training rows"] == {"33": 1, "50": 1, "64": 2}
    assert found["lengths"]["samples"] == {str(n): 1 + (n == 50) for n in sorted(LENGTHS)}
    training = decode(sets.training)
    bases = sum(map(len, texts["real"]))
    assert list(found["gc"]) == list(found["spectra"]) == list(texts)
    for name, rows in texts.items():
        assert found["gc"][name] == pytest.approx(gc(rows).tolist())
        for k in range(1, 7):
            counts = plain.words(plain.strands(rows), k)
            assert found["spectra"][name][str(k)] == [counts[word] for word in plain.all_words(k)]
        rates = [1000 * plain.hits(m.scores, rows) / bases for m in motifs]
        assert found["motifs"]["hits_per_kilobase"][name] == pytest.approx(rates)
    for name in sets.others:
        longest = [plain.longest_match(row, training) for row in texts[name]]
        assert found["longest_match"][name] == longest
        shares = enrichment(motifs, texts[name], texts["real"])
        assert found["motifs"]["log2_enrichment"][name] == pytest.approx(shares)
    assert found["motifs"]["names"] == ["M3", "M4", "M4", "M6"]
    assert found["training"] == {
        "split": "test",
        "floors_bits_per_base": {"Markov order 0": 1.9},
        "curves_bits_per_base": {"val": {"step": [1], "bits": [1.5]}},
    }


def test_errors_are_those_of_repeated_draws(measured: Measured) -> None:
    """Exact for a mean of up to 20 sequences, and within noise for a divergence.

    Of 80 sets, a standard deviation has a relative error of 8%, and a jackknife of 20 groups has
    16% in one set, 2% in the mean; so a right error leaves [.7, 1.4] with probability below 1e-3.
    The wrong twin forgets the factor 19 of the jackknife.
    """
    errors = {found.name: found.errors for found in measured.measures}
    values = measured.gc["samples"]
    expected = 100 * spread(values) / np.sqrt(len(values))
    assert errors["GC content, mean"]["samples"] == pytest.approx(expected)
    assert not any(errors[name] for name in ("mean", "longest exact match", "distinct sequences"))

    generator = np.random.default_rng(5)
    real, training = [encode("GATTC" * 12)] * 40, encode("ACGT" * 20)

    def draw() -> tuple[float, float]:
        samples = list(generator.choice(4, (40, 60), p=(0.4, 0.1, 0.3, 0.2)).astype(np.uint8))
        part = _Set.of(samples, [], overlap(samples, training))
        divergence = next(q for q in _spectra(_Set.of(real, [], None).whole) if "3-mers" in q.name)
        return divergence.value(part.whole), part.error(divergence.value)

    found = np.array([draw() for _ in range(80)])
    ratio = found[:, 1].mean() / found[:, 0].std(ddof=1)
    assert 0.7 < ratio < 1.4
    assert not 0.7 < ratio / np.sqrt(19) < 1.4


def test_undecided_measures() -> None:
    def one(name: str, gap: float, errors: dict[str, float]) -> Measure:
        return Measure("", name, "", "", {"floor": 1.0, "ceiling": 1.0 + gap}, errors)

    errors = {"floor": 0.03, "ceiling": 0.04}
    measures = [
        one("near", 0.099, errors),
        one("far", 0.101, errors),
        one("below", -0.101, errors),
        one("without", 0.0, {}),
        one("undefined", 0.0, {"floor": np.nan, "ceiling": 0.1}),
    ]
    measured = Measured(measures, {}, {}, {}, {}, None)
    assert measured.undecided("floor", "ceiling") == (["near"], 3)


def test_memorised_samples_show() -> None:
    """Samples cut from the opposite strand of the training sequence are found completely."""
    generator = np.random.default_rng(7)
    training = generator.integers(0, 4, 2000).astype(np.uint8)
    copied = [reverse_complement(training[i : i + 40]) for i in range(0, 360, 30)]
    random, real = (list(generator.integers(0, 4, (12, 40)).astype(np.uint8)) for _ in range(2))
    others = {"samples": copied, "real vs real": random}
    sets = Sets(real, others, training, np.array([40]), True, "")
    values = {found.name: found.values for found in measure(sets, None, 0).measures}
    assert values["longest exact match"]["samples"] == 40
    assert values["20-mers in the training sequence"] == {"samples": 100, "real vs real": 0}
    assert values["longest exact match"]["real vs real"] < 15


def test_measures_of_known_sets() -> None:
    rows = [encode(text) for text in ("ACGT", "AACC", "GGTT", "TTTT", "TTTT", "NNGN")]
    np.testing.assert_array_equal(gc_content(rows), [0.5, 0.5, 0.5, 0, 0, 1])
    # AACC and GGTT are one sequence on two strands, as are the two TTTT.
    assert distinct_rows(rows[:5]) == 3 / 5
    # AC, CG, GT: AC and GT are one word, CG is its own reverse complement.
    assert distinct_kmers([encode("ACGT")], 2) == 2 / 3
    assert np.isnan(distinct_kmers([encode("AC")], 3))
