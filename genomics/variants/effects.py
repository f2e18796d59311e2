"""Variant effects of a model: likelihood ratios, masked-marginal scores and mutagenesis.

All scores are averages over both strands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from genomics.io import Genome, Variant, describe_names
from genomics.sequence import (
    BASES,
    MASK_ID,
    STRANDS,
    both_strands,
    decode,
    device_of,
    encode,
    masked_log_probs,
    reverse_complement,
)
from seqdiff.denoiser import Denoiser
from seqdiff.likelihood import Estimator, contrast
from seqdiff.run import Engine, Run, Shard
from seqdiff.run import masked_marginals as string_marginals

_BATCHES_PER_SHARD = 8


@dataclass(frozen=True)
class AlleleWindows:
    """A window of a genome with each allele, of equal length.

    Attributes:
        ref: Ids ``0..4`` with the reference allele.
        alt: Ids with the alternative allele, starting at the same base except near the end of the
            chromosome.
        changed: Positions that differ, or ``None`` if the alleles differ in length.
    """

    ref: UInt8[np.ndarray, " W"]
    alt: UInt8[np.ndarray, " W"]
    changed: Bool[np.ndarray, " W"] | None


class Refusal(NamedTuple):
    """The reason why an allele cannot be scored.

    Attributes:
        reason: The reason in words.
        mismatch: Whether REF differs from the genome.
    """

    reason: str
    mismatch: bool = False


def refusal(variant: Variant, genome: Genome, window: int) -> Refusal | None:
    """Return why an allele cannot be scored, or ``None`` if it can.

    Raises:
        ValueError: If the chromosome is not in the genome.
    """
    if variant.chrom not in genome.names:
        raise ValueError(
            f"chromosome {variant.chrom!r} is not in the FASTA file, which has "
            f"{describe_names(genome.names)}; use matching names or remove the line"
        )
    chromosome, start, end = genome.record(variant.chrom), variant.start, _end(variant)
    if not variant.ref or not set(variant.ref) <= set(BASES):
        return Refusal(f"REF must consist of {BASES}, got {_short(variant.ref)!r}")
    if not 0 <= start < end <= len(chromosome):
        return Refusal(f"POS lies outside {variant.chrom}, which has {len(chromosome)} bases")
    found = decode(chromosome[start:end])
    if found != variant.ref:
        return Refusal(f"REF {_short(variant.ref)} is {_short(found)} in the genome", mismatch=True)
    if not variant.alt or not set(variant.alt) <= set(BASES):
        return Refusal(f"ALT must consist of {BASES}, got {_short(variant.alt)!r}")
    if variant.alt == variant.ref:
        return Refusal("ALT equals REF")
    room = _room(variant, len(chromosome), window)
    longest = max(len(variant.ref), len(variant.alt))
    if longest >= room:
        return Refusal(
            f"an allele of {longest} bases leaves no context in a window of {max(room, 0)}"
        )
    windows = allele_windows(variant, genome, window)
    counts = [int((ids != MASK_ID).sum()) for ids in (windows.ref, windows.alt)]
    if counts[0] != counts[1]:
        return Refusal(
            f"N nearby leaves {counts[0]} known bases in the window with REF, {counts[1]} with ALT"
        )
    return None


def allele_windows(variant: Variant, genome: Genome, window: int) -> AlleleWindows:
    """Cut a window around a variant for which ``refusal`` returns ``None``.

    The variant is in the middle, except near the ends of its chromosome, where the window is moved
    inside. On a chromosome shorter than the window, both windows have the length of the chromosome
    with the shorter allele.
    """
    chromosome, start, end = genome.record(variant.chrom), variant.start, _end(variant)
    size = _room(variant, len(chromosome), window)
    before, after = chromosome[max(0, start - size) : start], chromosome[end : end + size]
    before_window = len(before) - (size - max(len(variant.ref), len(variant.alt))) // 2
    ref, alt = (
        _cut(np.concatenate((before, encode(allele), after)), before_window, size)
        for allele in (variant.ref, variant.alt)
    )
    same_length = len(variant.ref) == len(variant.alt)
    return AlleleWindows(ref, alt, ref != alt if same_length else None)


def _cut(ids: np.ndarray, first: int, size: int) -> np.ndarray:
    """Cut a window, moved inside if it would pass an end."""
    first = min(max(0, first), len(ids) - size)
    return ids[first : first + size]


def _end(variant: Variant) -> int:
    return variant.start + len(variant.ref)


def _room(variant: Variant, length: int, window: int) -> int:
    """Return the length of a window that fits into the chromosome with either allele."""
    return min(window, length - max(0, len(variant.ref) - len(variant.alt)))


def _short(allele: str) -> str:
    return allele if len(allele) <= 20 else f"{allele[:17]}... ({len(allele)} bases)"


class LikelihoodRatio(NamedTuple):
    """log p(alternative) - log p(reference) in nats, or the difference of bounds on them.

    Attributes:
        nats: The estimate, averaged over both strands.
        standard_error: Standard error of ``nats`` from the estimator's draws.
        low: Lower end of the 95% interval.
        high: Upper end of the 95% interval.
    """

    nats: float
    standard_error: float
    low: float
    high: float


def likelihood_ratios(
    denoiser: Denoiser,
    windows: Sequence[AlleleWindows],
    *,
    estimator: Estimator,
    seed: int = 0,
    batch_size: int = 32,
) -> list[LikelihoodRatio]:
    """Compare the likelihoods of both windows of each variant under the same masks.

    A ratio depends on the windows and the seed only, not on the variant's position or on other
    variants. Alternative alleles at one site have the same noise.

    Args:
        denoiser: The model in eval mode.
        windows: Windows of any lengths.
        estimator: A likelihood estimator for the model.
        seed: Random seed.
        batch_size: Maximum number of rows per network call.
    """
    device = device_of(denoiser)
    found: dict[int, LikelihoodRatio] = {}
    for indices in _by_length([pair.ref for pair in windows]):
        refs, alts = [windows[i].ref for i in indices], [windows[i].alt for i in indices]
        difference = contrast(
            denoiser,
            both_strands(refs, refs).to(device),
            both_strands(alts, refs).to(device),
            estimator=estimator,
            rows_per_call=batch_size,
            seed=seed,
        )
        for number, index in enumerate(indices):
            mean = difference.mean_of([STRANDS * number + strand for strand in range(STRANDS)])
            values = (mean.nats, mean.standard_error, *mean.interval())
            found[index] = LikelihoodRatio(*(float(value[0]) for value in values))
    return [found[index] for index in range(len(windows))]


def masked_marginals(
    denoiser: Denoiser,
    windows: Sequence[AlleleWindows],
    *,
    batch_size: int = 32,
) -> list[float | None]:
    """Mask the bases that a variant changes and compare both alleles there.

    The score is the sum of log p(alternative) - log p(reference) over these positions. Source:
    Meier et al. 2021, "Language models enable zero-shot prediction of the effects of mutations on
    protein function", equation 1.

    Args:
        denoiser: The model in eval mode.
        windows: Windows of any lengths.
        batch_size: Maximum number of rows per network call.

    Returns:
        Nats, or ``None`` for alleles that differ in length.
    """
    # Alternative alleles at one site need one network call.
    sites: dict[tuple[bytes, bytes], list[int]] = {}
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for index, pair in enumerate(windows):
        if pair.changed is None:
            continue
        group = sites.setdefault((pair.ref.tobytes(), pair.changed.tobytes()), [])
        if not group:
            rows.append((pair.ref, pair.changed))
        group.append(index)
    scores: list[float | None] = [None] * len(windows)
    found = _masked_rows(denoiser, rows, batch_size)
    for group, log_probs in zip(sites.values(), found, strict=True):
        for index in group:
            pair = windows[index]
            scores[index] = _gain(log_probs, pair.ref[pair.changed], pair.alt[pair.changed])
    return scores


class SharedWindow(NamedTuple):
    """A window of a genome in which the bases that some variants change are masked together.

    Attributes:
        ref: Ids ``0..4`` of the reference.
        masked: The masked positions.
        variants: Number of each variant in the list that ``share_windows`` was given.
        changed: For each variant, the numbers of its bases among the masked ones.
        alts: For each variant, the ids of its alternative allele at these bases.
    """

    ref: UInt8[np.ndarray, " W"]
    masked: Bool[np.ndarray, " W"]
    variants: list[int]
    changed: list[Int64[np.ndarray, " n"]]
    alts: list[UInt8[np.ndarray, " n"]]


def share_windows(
    variants: Sequence[Variant], genome: Genome, window: int, spacing: int
) -> list[SharedWindow]:
    """Assign variants to windows, so that sites that are far enough apart are masked together.

    A window takes sites, from left to right, that lie within half of its length. It is centred on
    them, except near the ends of the chromosome. The window of a single site is that of
    ``allele_windows``.

    Args:
        variants: Alleles as long as their references, for which ``refusal`` returns ``None``.
        genome: The genome.
        window: Bases of a window.
        spacing: Smallest distance between the bases of two sites in a window; 1 for neighbours.
    """
    alleles: dict[_Site, list[tuple[int, np.ndarray]]] = {}
    for number, variant in enumerate(variants):
        ref, alt = encode(variant.ref), encode(variant.alt)
        (changed,) = (ref != alt).nonzero()
        place = tuple((variant.start + changed).tolist())
        site = _Site(variant.chrom, variant.start, _end(variant), place)
        alleles.setdefault(site, []).append((number, alt[changed]))
    groups: list[list[_Site]] = []
    near: list[list[_Site]] = []
    for site in sorted(alleles):
        half = min(window, len(genome.record(site.chrom))) // 2
        near = [g for g in near if g[0].chrom == site.chrom and site.end - g[0].start <= half]
        free = (g for g in near if site.start - (g[-1].end - 1) >= spacing)
        if (group := next(free, None)) is None:
            group = []
            near.append(group)
            groups.append(group)
        group.append(site)
    return [_share(group, alleles, genome, window) for group in groups]


class _Site(NamedTuple):
    """Bases that alleles change."""

    chrom: str
    start: int
    end: int
    changed: tuple[int, ...]


def _share(
    group: list[_Site],
    alleles: dict[_Site, list[tuple[int, np.ndarray]]],
    genome: Genome,
    window: int,
) -> SharedWindow:
    chromosome = genome.record(group[0].chrom)
    size = min(window, len(chromosome))
    start, end = group[0].start, group[-1].end
    first = min(max(0, start - (size - (end - start)) // 2), len(chromosome) - size)
    places = np.array([place for site in group for place in site.changed]) - first
    masked = np.zeros(size, dtype=bool)
    masked[places] = True
    shared = SharedWindow(np.array(chromosome[first : first + size]), masked, [], [], [])
    before = 0
    for site in group:
        numbers = np.arange(before, before + len(site.changed))
        before += len(site.changed)
        for variant, alt in alleles[site]:
            shared.variants.append(variant)
            shared.changed.append(numbers)
            shared.alts.append(alt)
    return shared


def shared_marginals(
    denoiser: Denoiser,
    windows: Sequence[SharedWindow],
    *,
    batch_size: int = 32,
    progress: Callable[[float], object] | None = None,
) -> list[float]:
    """Compute ``masked_marginals`` with the other variants of each window masked too.

    Args:
        denoiser: The model in eval mode.
        windows: All windows of ``share_windows``.
        batch_size: Maximum number of rows per network call.
        progress: Called with the fraction of the windows that are done.

    Returns:
        Nats, in the order of the variants.
    """
    scores: dict[int, float] = {}
    rows = [(shared.ref, shared.masked) for shared in windows]
    found = _masked_rows(denoiser, rows, batch_size, progress)
    for shared, log_probs in zip(windows, found, strict=True):
        old = shared.ref[shared.masked]
        for variant, changed, alt in zip(shared.variants, shared.changed, shared.alts, strict=True):
            scores[variant] = _gain(log_probs[changed], old[changed], alt)
    return [scores[number] for number in range(len(scores))]


def _masked_rows(
    denoiser: Denoiser,
    rows: Sequence[tuple[np.ndarray, np.ndarray]],
    batch_size: int,
    progress: Callable[[float], object] | None = None,
) -> list[Float64[np.ndarray, "n 4"]]:
    """Compute ``masked_log_probs`` of rows of any lengths, each with its masked positions."""
    found: dict[int, np.ndarray] = {}
    for indices in _by_length([ref for ref, _ in rows]):
        for first in range(0, len(indices), batch_size):
            part = indices[first : first + batch_size]
            ref, masked = (np.stack(side) for side in zip(*(rows[i] for i in part), strict=True))
            ends = masked.sum(axis=1).cumsum()[:-1]
            log_probs = np.split(masked_log_probs(denoiser, ref, masked), ends)
            found |= zip(part, log_probs, strict=True)
            if progress is not None:
                progress(len(found) / len(rows))
    return [found[index] for index in range(len(rows))]


def _gain(log_probs: Float64[np.ndarray, "n 4"], ref: np.ndarray, alt: np.ndarray) -> float:
    number = np.arange(len(log_probs))
    return float((log_probs[number, alt] - log_probs[number, ref]).sum())


def token_marginals(
    run: Run, windows: Sequence[AlleleWindows], *, batch_size: int = 32
) -> list[float | None]:
    """Do what ``masked_marginals`` does for a model whose tokens are several bases long.

    See ``seqdiff.run.masked_marginals`` for the tokens that are masked.

    Args:
        run: The model.
        windows: Windows of any lengths.
        batch_size: Maximum number of rows per network call.

    Returns:
        Nats, averaged over both strands; ``None`` for alleles that differ in length.
    """
    chosen = [number for number, pair in enumerate(windows) if pair.changed is not None]
    pairs = [
        (decode(turn(windows[number].ref)), decode(turn(windows[number].alt)))
        for number in chosen
        for turn in (np.asarray, reverse_complement)
    ]
    found = np.array(string_marginals(run, pairs, batch_size=batch_size)).reshape(-1, STRANDS)
    scores: list[float | None] = [None] * len(windows)
    for number, score in zip(chosen, found.mean(axis=1).tolist(), strict=True):
        scores[number] = score
    return scores


def _by_length(rows: Sequence[np.ndarray]) -> list[list[int]]:
    """Group the indices of rows by length, so that no row is padded."""
    indices: dict[int, list[int]] = {}
    for index, row in enumerate(rows):
        indices.setdefault(len(row), []).append(index)
    return list(indices.values())


def mutation_effects(
    denoiser: Denoiser,
    ids: UInt8[np.ndarray, " L"],
    *,
    window: int,
    batch_size: int = 32,
    progress: Callable[[int], object] | None = None,
) -> Float64[np.ndarray, "L 4"]:
    """Mask each base in turn and compare all four bases with the reference there.

    Args:
        denoiser: The model in eval mode.
        ids: Ids ``0..4`` of the sequence.
        window: Maximum bases that the network sees. The window is centred on the position, and
            moved inside near the ends of a longer sequence.
        batch_size: Windows per network call.
        progress: Called with the number of positions just scored.

    Returns:
        log p(base) - log p(reference) in nats, in the order of ``BASES``: 0 for the reference
        itself, NaN if it is unknown.
    """
    effects = np.full((len(ids), len(BASES)), np.nan)
    for positions in _known(ids, batch_size):
        effects[positions] = _effects(denoiser, *_windows_around(ids, positions, window))
        if progress is not None:
            progress(len(positions))
    return effects


def mutate_records(
    run: Run,
    records: Sequence[UInt8[np.ndarray, " L"]],
    *,
    window: int,
    batch_size: int = 32,
    engine: Engine | None = None,
) -> list[Float64[np.ndarray, "L 4"]]:
    """Compute the ``mutation_effects`` of several sequences, with a progress bar.

    Args:
        run: The model.
        records: Ids ``0..4`` of each sequence.
        window: See ``mutation_effects``.
        batch_size: Windows per network call.
        engine: Where to compute; by default in this process.
    """
    effects = [np.full((len(ids), len(BASES)), np.nan) for ids in records]
    places = [
        (number, part)
        for number, ids in enumerate(records)
        for part in _known(ids, _BATCHES_PER_SHARD * batch_size)
    ]
    shards = (
        Shard(len(part), _windows_around(records[number], part, window)) for number, part in places
    )
    work = partial(_mutate, batch_size=batch_size)
    total = sum(len(part) for _, part in places)
    found = (engine or Engine()).map("mutating", work, run, shards, total)
    for (number, part), result in zip(places, found, strict=True):
        effects[number][part] = result["effects"]
    return effects


def _known(ids: UInt8[np.ndarray, " L"], size: int) -> list[np.ndarray]:
    """Divide the positions of known bases into parts."""
    known = (ids != MASK_ID).nonzero()[0]
    return [known[first : first + size] for first in range(0, len(known), size)]


def _windows_around(
    ids: UInt8[np.ndarray, " L"], positions: np.ndarray, window: int
) -> tuple[UInt8[np.ndarray, "B W"], np.ndarray]:
    """Cut a window around each position, and find the position in it."""
    size = min(window, len(ids))
    starts = np.clip(positions - (size - 1) // 2, 0, len(ids) - size)
    return ids[starts[:, None] + np.arange(size)], positions - starts


def _effects(
    denoiser: Denoiser, rows: UInt8[np.ndarray, "B W"], places: np.ndarray
) -> Float64[np.ndarray, "B 4"]:
    masked = np.arange(rows.shape[1]) == places[:, None]
    log_probs = masked_log_probs(denoiser, rows, masked)
    reference = log_probs[np.arange(len(rows)), rows[masked]]
    return log_probs - reference[:, None]


def _mutate(
    run: Run,
    windows: tuple[np.ndarray, np.ndarray],
    progress: Callable[[int], object],
    *,
    batch_size: int,
) -> dict[str, np.ndarray]:
    """Return the effects of a shard."""
    rows, places = windows
    parts = []
    for first in range(0, len(rows), batch_size):
        batch = slice(first, first + batch_size)
        parts.append(_effects(run.denoiser, rows[batch], places[batch]))
        progress(first + len(parts[-1]))
    return {"effects": np.concatenate(parts)}
