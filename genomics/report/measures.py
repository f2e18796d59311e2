"""The numbers of a report, for the samples and for the sets that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Measure:
    """One number for each set.

    Attributes:
        section: Heading of the section.
        name: Name of the measure.
        unit: Unit or range.
        note: How to read it.
        values: Values by set (for lengths: samples and training rows); NaN if undefined.
    """

    section: str
    name: str
    unit: str
    note: str
    values: dict[str, float]


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
    every = {"real": sets.real, **sets.others}
    lengths = {
        "samples": np.array([len(row) for row in sets.others["samples"]]),
        "training rows": sets.training_lengths,
    }
    spectra = {name: merge_strands(count_kmers(join(rows))) for name, rows in every.items()}
    gc = {name: gc_content(rows) for name, rows in every.items()}
    on_progress()
    table = None if motifs is None else _motif_table(motifs, every)
    on_progress()
    found = [row for rows in sets.others.values() for row in rows]
    matches = overlap(found, sets.training, word=MIN_LENGTH, on_progress=on_progress)
    parts = [
        part.reshape(len(sets.others), -1)
        for part in (matches.longest, matches.words, matches.contained)
    ]
    overlaps = {name: Overlap(*rows) for name, *rows in zip(sets.others, *parts, strict=True)}
    measures = [
        *_lengths(lengths),
        *_composition(gc),
        *_spectra(spectra),
        *([] if table is None else _motif_measures(table)),
        _discriminator(sets, seed),
        *_diversity(sets.others),
        *_memorisation(overlaps),
    ]
    on_progress()
    longest = {name: found.longest for name, found in overlaps.items()}
    return Measured(measures, lengths, spectra, gc, longest, table)


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


def _composition(gc: dict[str, np.ndarray]) -> Iterator[Measure]:
    section = "Composition"
    real = gc["real"][np.isfinite(gc["real"])]
    others = {name: found[np.isfinite(found)] for name, found in gc.items() if name != "real"}
    means = {name: float(100 * found.mean()) for name, found in others.items()}
    note = f"the real windows have {100 * real.mean():.2f}"
    yield Measure(section, "GC content, mean", "%", note, means)
    spreads = {name: float(100 * found.std(ddof=1)) for name, found in others.items()}
    note = f"the real windows have {100 * real.std(ddof=1):.2f}"
    yield Measure(section, "GC content, standard deviation over sequences", "%", note, spreads)
    distances = {
        name: float(np.asarray(ks_2samp(found, real))[0]) for name, found in others.items()
    }
    note = "0 if the distributions are equal"
    yield Measure(section, "GC content, Kolmogorov-Smirnov distance", "0 to 1", note, distances)


def _spectra(spectra: dict[str, Spectra]) -> Iterator[Measure]:
    section = "k-mer spectra, both strands"
    others = {name: found for name, found in spectra.items() if name != "real"}
    for k in range(1, MAX_K + 1):
        real = spectra["real"][k - 1]
        values = {name: js_divergence(found[k - 1], real) for name, found in others.items()}
        note = "0 if the spectra are equal"
        yield Measure(section, f"{k}-mers, Jensen-Shannon divergence", "bits, 0 to 1", note, values)
    # On both strands single bases have two frequencies, whose correlation is always 1 or -1.
    for k in range(2, MAX_K + 1):
        real = spectra["real"][k - 1]
        values = {name: pearson(found[k - 1], real) for name, found in others.items()}
        note = "1 if the spectra are proportional"
        yield Measure(section, f"{k}-mers, Pearson correlation", "-1 to 1", note, values)


def _motif_table(motifs: list[MotifScores], every: dict[str, Rows]) -> MotifTable:
    counts = {name: count_hits(motifs, rows) for name, rows in every.items()}
    bases = sum(map(len, every["real"]))
    return MotifTable(
        [motif.name for motif in motifs],
        {name: 1000 * found / bases for name, found in counts.items()},
        {
            name: np.log2((found + 0.5) / (counts["real"] + 0.5))
            for name, found in counts.items()
            if name != "real"
        },
    )


def _motif_measures(table: MotifTable) -> Iterator[Measure]:
    section = "Motifs, both strands"
    gaps = {name: float(np.abs(found).mean()) for name, found in table.enrichment.items()}
    count = len(table.names)
    name = f"mean |enrichment| over {count:,} motif{'s' * (count != 1)}"
    yield Measure(section, name, "log2", "0 if as frequent as in real windows", gaps)


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


def _memorisation(overlaps: dict[str, Overlap]) -> Iterator[Measure]:
    section = "Memorisation, both strands of the training sequence"
    most = {name: float(found.longest.max()) for name, found in overlaps.items()}
    note = "far above real vs real if sequences are copied"
    yield Measure(section, "longest exact match", "bases", note, most)
    means = {name: float(found.longest.mean()) for name, found in overlaps.items()}
    yield Measure(section, "longest exact match, mean over sequences", "bases", note, means)
    contained = {name: 100 * found.containment for name, found in overlaps.items()}
    yield Measure(section, f"{MIN_LENGTH}-mers in the training sequence", "%", note, contained)
