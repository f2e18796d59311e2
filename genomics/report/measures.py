"""The numbers of a report, for the samples and for the sets that they are compared with."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt8
from scipy.stats import ks_2samp

from genomics.baselines import K, discriminator_auroc, kmer_frequencies
from genomics.io import MotifScores, count_hits
from genomics.report.sets import MIN_LENGTH, Rows, Sets
from genomics.sequence import (
    MASK_ID,
    MAX_K,
    Overlap,
    Spectra,
    count_kmers,
    count_kmers_of_each,
    join,
    js_divergence,
    merge_strands,
    overlap,
    pearson,
    reverse_complement,
)

_DIVERSITY_K = 12
_GROUPS = 20


@dataclass(frozen=True)
class Measure:
    """One number for each set.

    Attributes:
        section: Heading of the section.
        name: Name of the measure.
        unit: Unit or range.
        note: How to read it.
        values: Values by set (for lengths: samples and training rows); NaN if undefined.
        errors: Standard errors over the choice of the sequences of each set, by ``jackknife``;
            empty for measures without.
    """

    section: str
    name: str
    unit: str
    note: str
    values: dict[str, float]
    errors: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class MotifTable:
    """Motif hits in each set.

    Attributes:
        names: Names of the motifs.
        per_kilobase: Hits on both strands per 1,000 bases, by set, including ``real``.
        enrichment: log2 of (hits + 1/2) / (hits in the real windows + 1/2), by set.
    """

    names: list[str]
    per_kilobase: dict[str, Float64[np.ndarray, " motifs"]]
    enrichment: dict[str, Float64[np.ndarray, " motifs"]]


@dataclass(frozen=True, eq=False)
class Measured:
    """The contents of a report.

    Attributes:
        measures: The table of numbers.
        lengths: Bases of each sample and of each training row.
        spectra: k-mer counts of both strands, by set, including ``real``.
        gc: GC content of each sequence, by set.
        longest: Bases of each sequence's longest match with the training sequence, by set.
        motifs: Motif hits, if a motif file was given.
    """

    measures: list[Measure]
    lengths: dict[str, Int64[np.ndarray, " n"]]
    spectra: dict[str, Spectra]
    gc: dict[str, Float64[np.ndarray, " n"]]
    longest: dict[str, Int64[np.ndarray, " n"]]
    motifs: MotifTable | None

    def undecided(self, one: str, other: str) -> tuple[list[str], int]:
        """Find the measures that cannot tell two sets apart, for example a floor from a ceiling.

        Args:
            one: Name of a set.
            other: Name of another set.

        Returns:
            The names of the measures whose two values differ by at most two standard errors of the
            difference, and the number of measures that have errors of both.
        """
        found, total = [], 0
        for each in self.measures:
            error = math.hypot(each.errors.get(one, math.nan), each.errors.get(other, math.nan))
            if math.isfinite(error):
                total += 1
                if abs(each.values[one] - each.values[other]) <= 2 * error:
                    found.append(each.name)
        return found, total


def gc_content(rows: Rows) -> Float64[np.ndarray, " n"]:
    """Fraction of G and C among the known bases of each row; NaN without any."""
    known = np.array([(row != MASK_ID).sum() for row in rows])
    found = np.array([((row == 1) | (row == 2)).sum() for row in rows])
    return np.where(known > 0, found / np.maximum(known, 1), np.nan)


def distinct_kmers(rows: Sequence[UInt8[np.ndarray, " _"]], k: int) -> float:
    """Fraction of distinct k-mers, up to the reverse complement, among all; NaN without any."""
    counts = count_kmers_of_each([join(rows)], k)
    code = counts.indices.copy()
    opposite = np.zeros_like(code)
    for _ in range(k):
        opposite = 4 * opposite + 3 - code % 4
        code //= 4
    total = int(counts.data.sum(dtype=np.int64))
    return len(np.unique(np.minimum(counts.indices, opposite))) / total if total else float("nan")


def distinct_rows(rows: Rows) -> float:
    """Fraction of distinct sequences, up to the reverse complement."""
    distinct = {min(row.tobytes(), reverse_complement(row).tobytes()) for row in rows}
    return len(distinct) / len(rows)


def jackknife(estimates: Sequence[float]) -> float:
    """Standard error of an estimate by the delete-a-group jackknife; NaN if one is undefined.

    Source: Shao and Tu 1995, The Jackknife and Bootstrap, section 2.3, for groups of equal size.

    Args:
        estimates: The estimate without each of at least two groups of sequences.
    """
    found, count = np.asarray(estimates), len(estimates)
    return math.sqrt((count - 1) / count * ((found - found.mean()) ** 2).sum())


@dataclass(frozen=True, eq=False)
class _Part:
    """What is measured of a set, or of a set without some of its sequences.

    Attributes:
        gc: GC content of each sequence with a known base.
        spectra: k-mer counts of both strands.
        hits: Hits of each motif in as many bases as the whole set has.
        overlap: Matches with the training sequence; ``None`` for the real windows.
    """

    gc: np.ndarray
    spectra: Spectra
    hits: np.ndarray
    overlap: Overlap | None


@dataclass(frozen=True, eq=False)
class _Set:
    """A set of sequences, as a whole and without each of its groups."""

    whole: _Part
    parts: list[_Part]

    @classmethod
    def of(cls, rows: Rows, motifs: list[MotifScores], overlap: Overlap | None) -> _Set:
        groups = np.array_split(np.arange(len(rows)), min(_GROUPS, len(rows)))
        members = [[rows[i] for i in group.tolist()] for group in groups]
        counts = [merge_strands(count_kmers(join(group))) for group in members]
        hits = np.stack([count_hits(motifs, group) for group in members])
        bases = np.array([sum(map(len, group)) for group in members])
        gc = gc_content(rows)

        def part(left_out: int | None) -> _Part:
            chosen = [i for i in range(len(groups)) if i != left_out]
            numbers = np.concatenate([groups[i] for i in chosen])
            matches = None
            if overlap is not None:
                every = (overlap.longest, overlap.words, overlap.contained)
                matches = Overlap(*(found[numbers] for found in every))
            return _Part(
                gc[numbers][np.isfinite(gc[numbers])],
                tuple(np.sum(k, axis=0) for k in zip(*(counts[i] for i in chosen), strict=True)),
                hits[chosen].sum(axis=0) * (bases.sum() / bases[chosen].sum()),
                matches,
            )

        return cls(part(None), [part(number) for number in range(len(groups))])

    def error(self, value: Callable[[_Part], float]) -> float:
        """Return the standard error of a value; NaN if it is undefined without some group."""
        if len(self.parts) < 2 or not all(part.spectra[-1].any() for part in self.parts):
            return math.nan
        return jackknife([value(part) for part in self.parts])


def measure(
    sets: Sets,
    motifs: list[MotifScores] | None,
    seed: int,
    on_progress: Callable[[], object] = lambda: None,
) -> Measured:
    """Compare every set with the real windows and the training sequence.

    Args:
        sets: The sets.
        motifs: Motifs to count, if any.
        seed: Seed of the discriminator's folds.
        on_progress: Called after each part.
    """
    lengths = {
        "samples": np.array([len(row) for row in sets.others["samples"]]),
        "training rows": sets.training_lengths,
    }
    found = [row for rows in sets.others.values() for row in rows]
    matches = overlap(found, sets.training, word=MIN_LENGTH, on_progress=on_progress)
    parts = [
        part.reshape(len(sets.others), -1)
        for part in (matches.longest, matches.words, matches.contained)
    ]
    overlaps = {name: Overlap(*rows) for name, *rows in zip(sets.others, *parts, strict=True)}
    on_progress()
    scored = motifs or []
    real = _Set.of(sets.real, scored, None)
    others = {name: _Set.of(rows, scored, overlaps[name]) for name, rows in sets.others.items()}
    on_progress()
    every = {"real": real, **others}
    table = None if motifs is None else _motif_table(motifs, every, sum(map(len, sets.real)))

    def compute(quantity: _Quantity) -> Measure:
        section, name, unit, note, value = quantity
        values = {key: value(found.whole) for key, found in others.items()}
        errors = {key: found.error(value) for key, found in others.items()}
        return Measure(section, name, unit, note, values, errors)

    measures = [
        *_lengths(lengths),
        *map(compute, _composition(real.whole)),
        *map(compute, _spectra(real.whole)),
        *([] if motifs is None else [compute(_enrichment(len(motifs), real.whole))]),
        _discriminator(sets, seed),
        *_diversity(sets.others),
        _longest(overlaps),
        *map(compute, _memorisation()),
    ]
    on_progress()
    return Measured(
        measures,
        lengths,
        {name: found.whole.spectra for name, found in every.items()},
        {
            "real": gc_content(sets.real),
            **{name: gc_content(rows) for name, rows in sets.others.items()},
        },
        {name: found.longest for name, found in overlaps.items()},
        table,
    )


class _Quantity(NamedTuple):
    """A measure, see ``Measure``, and how it is computed from a part of a set."""

    section: str
    name: str
    unit: str
    note: str
    value: Callable[[_Part], float]


def _lengths(lengths: dict[str, np.ndarray]) -> Iterator[Measure]:
    kinds = {
        "mean": np.mean,
        "standard deviation": lambda found: found.std(ddof=1) if len(found) > 1 else np.nan,
        "shortest": np.min,
        "longest": np.max,
    }
    for name, compute in kinds.items():
        values = {key: float(compute(found)) for key, found in lengths.items()}
        yield Measure("Length", name, "bases", "", values)


def _composition(real: _Part) -> Iterator[_Quantity]:
    section = "Composition"
    note = f"the real windows have {100 * real.gc.mean():.2f}"
    yield _Quantity(
        section, "GC content, mean", "%", note, lambda part: float(100 * part.gc.mean())
    )
    note = f"the real windows have {100 * real.gc.std(ddof=1):.2f}"
    name = "GC content, standard deviation over sequences"
    yield _Quantity(section, name, "%", note, lambda part: float(100 * part.gc.std(ddof=1)))
    name = "GC content, Kolmogorov-Smirnov distance"
    note = "0 if the distributions are equal"
    yield _Quantity(
        section, name, "0 to 1", note, lambda part: float(np.asarray(ks_2samp(part.gc, real.gc))[0])
    )


def _spectra(real: _Part) -> Iterator[_Quantity]:
    section = "k-mer spectra, both strands"
    for k in range(1, MAX_K + 1):
        yield _Quantity(
            section,
            f"{k}-mers, Jensen-Shannon divergence",
            "bits, 0 to 1",
            "0 if the spectra are equal",
            lambda part, k=k: js_divergence(part.spectra[k - 1], real.spectra[k - 1]),
        )
    # On both strands single bases have two frequencies, whose correlation is always 1 or -1.
    for k in range(2, MAX_K + 1):
        yield _Quantity(
            section,
            f"{k}-mers, Pearson correlation",
            "-1 to 1",
            "1 if the spectra are proportional",
            lambda part, k=k: pearson(part.spectra[k - 1], real.spectra[k - 1]),
        )


def _log_ratio(part: _Part, real: _Part) -> Float64[np.ndarray, " motifs"]:
    return np.log2((part.hits + 0.5) / (real.hits + 0.5))


def _motif_table(motifs: list[MotifScores], every: dict[str, _Set], bases: int) -> MotifTable:
    real = every["real"].whole
    return MotifTable(
        [motif.name for motif in motifs],
        {name: 1000 * found.whole.hits / bases for name, found in every.items()},
        {name: _log_ratio(found.whole, real) for name, found in every.items() if name != "real"},
    )


def _enrichment(count: int, real: _Part) -> _Quantity:
    return _Quantity(
        "Motifs, both strands",
        f"mean |enrichment| over {count:,} motif{'s' * (count != 1)}",
        "log2",
        "0 if as frequent as in real windows",
        lambda part: float(np.abs(_log_ratio(part, real)).mean()),
    )


def _discriminator(sets: Sets, seed: int) -> Measure:
    real = kmer_frequencies(sets.real)
    areas = {
        name: discriminator_auroc(real, kmer_frequencies(rows), seed)
        for name, rows in sets.others.items()
    }
    name = f"{K}-mer logistic regression against real windows"
    note = "1 if always told apart; real vs real differs from 0.5 only by chance"
    return Measure("Discriminator", name, "AUROC, held out", note, areas)


def _diversity(sets: dict[str, Rows]) -> Iterator[Measure]:
    section = "Diversity"
    rows = {name: 100 * distinct_rows(found) for name, found in sets.items()}
    yield Measure(section, "distinct sequences", "%", "100 if no sequence occurs twice", rows)
    kmers = {name: 100 * distinct_kmers(found, _DIVERSITY_K) for name, found in sets.items()}
    name = f"distinct {_DIVERSITY_K}-mers, canonical"
    yield Measure(section, name, "%", "far below real if the model repeats itself", kmers)


_COPIES = "Memorisation, both strands of the training sequence"
_COPIED = "far above real vs real if sequences are copied"


def _longest(overlaps: dict[str, Overlap]) -> Measure:
    most = {name: float(found.longest.max()) for name, found in overlaps.items()}
    return Measure(_COPIES, "longest exact match", "bases", _COPIED, most)


def _memorisation() -> Iterator[_Quantity]:
    def mean(part: _Part) -> float:
        assert part.overlap is not None
        return float(part.overlap.longest.mean())

    def contained(part: _Part) -> float:
        assert part.overlap is not None
        return 100 * part.overlap.containment

    name = "longest exact match, mean over sequences"
    yield _Quantity(_COPIES, name, "bases", _COPIED, mean)
    name = f"{MIN_LENGTH}-mers in the training sequence"
    yield _Quantity(_COPIES, name, "%", _COPIED, contained)
