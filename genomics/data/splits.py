"""Split a genome into train, valid and test without overlaps or shared records.

Results have a key for every requested split, even an empty one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from genomics.io import Genome, describe_names, read_intervals
from genomics.sequence import (
    MASK_ID,
    Interval,
    Regions,
    Windows,
    merge,
    merge_parts,
    overlaps,
    reverse_complement,
    tile,
)
from seqdiff.checks import check_fractions
from seqdiff.data import SPLITS, Split

_CHUNK_BASES = 1 << 22

# Cuts the windows of a split, part by part, as often as they are needed.
Parts = Callable[[], Iterator[Windows]]


def split_by_label(intervals: Sequence[Interval], names: Sequence[str]) -> dict[Split, Regions]:
    """Group the rows of a BED file by their name, which must be train, valid or test.

    Raises:
        ValueError: If an interval has another name.
    """
    for interval in intervals:
        if interval.name not in SPLITS:
            raise ValueError(
                f"split_by_label: column 4 must be train, valid or test, got {interval.name!r} at "
                f"{interval.chrom}:{interval.start}-{interval.end}; correct or remove the row"
            )
    return {
        split: Regions.from_intervals([i for i in intervals if i.name == split], names)
        for split in SPLITS
        if any(i.name == split for i in intervals)
    }


def split_by_chromosome(
    regions: Regions, names: Sequence[str], valid: Sequence[str], test: Sequence[str]
) -> dict[Split, Regions]:
    """Hold out whole chromosomes; the others are for training.

    Raises:
        ValueError: If a chromosome is unknown or in both lists.
    """
    for owner, chroms in (("valid_chroms", valid), ("test_chroms", test)):
        unknown = [chrom for chrom in chroms if chrom not in names]
        if unknown:
            raise ValueError(
                f"{owner} must be records of the FASTA file ({describe_names(tuple(names))}), "
                f"got {unknown[0]!r}; correct the name"
            )
    both = sorted(set(valid) & set(test))
    if both:
        raise ValueError(
            f"valid_chroms and test_chroms must differ, got {both[0]!r} in both; choose one"
        )
    in_valid = np.isin(regions.chrom, [names.index(chrom) for chrom in valid])
    in_test = np.isin(regions.chrom, [names.index(chrom) for chrom in test])
    found: dict[Split, Regions] = {"train": regions.select(~in_valid & ~in_test)}
    if valid:
        found["valid"] = regions.select(in_valid)
    if test:
        found["test"] = regions.select(in_test)
    return found


def split_by_fraction(
    regions: Regions, fractions: tuple[float, float, float], length: int, seed: int
) -> dict[Split, Regions]:
    """Assign random contiguous blocks to the three splits.

    A block is 1 to 1024 windows long, about 1/256 of the sequence, so that the splits cover all
    regions and few windows are lost at block borders. Adjacent blocks of one split are joined.

    Args:
        regions: Intervals to split; overlapping ones count once.
        fractions: Fractions of the bases for train, valid and test.
        length: Tokens of a window.
        seed: Random seed.

    Raises:
        ValueError: If the fractions are negative or do not add up to 1.
    """
    check_fractions(fractions)
    joined = merge(regions)
    total = int((joined.end - joined.start).sum())
    block = length * min(1024, max(1, total // (256 * length)))
    pieces = tile(joined, block, block, "pad")
    order = np.random.default_rng((seed, 0)).permutation(len(pieces))
    sizes = (pieces.end - pieces.start)[order]
    before = np.cumsum(sizes) - sizes
    valid_end, test_end = fractions[1] * total, (fractions[1] + fractions[2]) * total
    # Half a base prevents rounding errors in the sum from giving an empty split one block.
    part = np.searchsorted([valid_end - 0.5, test_end - 0.5], before, side="left")
    return {
        split: merge(pieces.select(order[part == number]))
        for split, number, fraction in zip(SPLITS, (2, 0, 1), fractions, strict=True)
        if fraction > 0
    }


def drop_leaks(train: Windows, held_out: Sequence[Regions]) -> Windows:
    """Drop the training windows that overlap a held-out interval of the same genome."""
    leaks = np.zeros(len(train), dtype=bool)
    for regions in held_out:
        leaks |= overlaps(train, regions)
    return train.select(~leaks)


def without_leaks(windows: dict[Split, tuple[Genome, Parts]]) -> dict[Split, tuple[Genome, Parts]]:
    """Drop the training windows that overlap a window of another split in the same genome."""
    if "train" not in windows:
        return windows
    genome, train = windows["train"]
    held_out = [
        merge_parts(parts())
        for split, (other, parts) in windows.items()
        if split != "train" and other is genome
    ]
    return {**windows, "train": (genome, partial(_drop_leaks_in_parts, train, held_out))}


def _drop_leaks_in_parts(train: Parts, held_out: Sequence[Regions]) -> Iterator[Windows]:
    for part in train():
        yield drop_leaks(part, held_out)


def shared_records(
    genome: Genome, used: Regions, other: Genome, other_used: Regions
) -> list[tuple[str, str]]:
    """Find records of one genome that equal whole records of another on either strand.

    Args:
        genome: One genome.
        used: Intervals in use; records without an interval are skipped.
        other: The other genome. If it is the same one, copies of a record are searched, and records
            used by both sides are skipped.
        other_used: Intervals in use of the other genome.

    Returns:
        The names in both genomes, in the order of ``other``.
    """
    if other is genome:
        both = np.intersect1d(used.chrom, other_used.chrom)
        used, other_used = (r.select(~np.isin(r.chrom, both)) for r in (used, other_used))
    # A digest reads the whole record, so it is computed only for lengths that occur in both.
    lengths = np.intersect1d(genome.lengths[used.chrom], other.lengths[other_used.chrom])
    names = {_digest(genome, chrom): genome.names[chrom] for chrom in _of(genome, used, lengths)}
    shared = []
    for chrom in _of(other, other_used, lengths):
        name = names.get(_digest(other, chrom)) or names.get(_digest(other, chrom, opposite=True))
        if name is not None and any((ids != MASK_ID).any() for ids in _chunks(other, chrom)):
            shared.append((name, other.names[chrom]))
    return shared


def _of(genome: Genome, used: Regions, lengths: Int64[np.ndarray, " n"]) -> list[int]:
    """Return the records in use with one of the given lengths."""
    chroms = np.unique(used.chrom)
    return chroms[np.isin(genome.lengths[chroms], lengths)].tolist()


def _chunks(
    genome: Genome, chrom: int, *, backwards: bool = False
) -> Iterator[UInt8[np.ndarray, " _"]]:
    """Read a record in chunks, from its start or from its end."""
    start, length = int(genome.offsets[chrom]), int(genome.lengths[chrom])
    firsts = range(0, length, _CHUNK_BASES)
    for first in reversed(firsts) if backwards else firsts:
        yield genome.ids[start + first : start + min(first + _CHUNK_BASES, length)]
        genome.count_reads(1, _CHUNK_BASES)


def _digest(genome: Genome, chrom: int, *, opposite: bool = False) -> bytes:
    """Hash a record or its reverse complement."""
    digest = hashlib.blake2b(digest_size=16)
    for chunk in _chunks(genome, chrom, backwards=opposite):
        digest.update((reverse_complement(chunk) if opposite else chunk).tobytes())
    return digest.digest()


@dataclass(frozen=True)
class HoldOut:
    """Where each split comes from, see ``FastaDataModule``.

    Attributes:
        split: Fractions of train, valid and test.
        split_seed: Seed of the random blocks.
        bed: BED file of the intervals to use.
        chroms: Records of the training file that form each split.
        files: FASTA file of each split that has its own.
    """

    split: tuple[float, float, float]
    split_seed: int
    bed: str | Path | None
    chroms: dict[Split, list[str]]
    files: dict[Split, str | Path]

    def __post_init__(self) -> None:
        """Check the arguments without reading a file."""
        check_fractions(self.split)
        if self.split_seed < 0:
            raise ValueError(
                f"FastaDataModule.split_seed must be at least 0, got {self.split_seed}; "
                "set data.split_seed"
            )
        for name in self.chroms.keys() & self.files.keys():
            raise ValueError(
                f"FastaDataModule.{name}_fasta must be given alone, got {name}_chroms too; "
                "give only one of them"
            )

    def regions(self, genome: Genome, length: int) -> dict[Split, Regions]:
        """Divide the training file into disjoint regions for the splits without their own file.

        Raises:
            FileNotFoundError: If the BED file does not exist.
            ValueError: If the BED file is not valid, or a record is not in the genome.
        """
        regions = Regions.whole(genome.lengths)
        if self.bed is not None:
            rows = read_intervals(self.bed, genome)
            if any(row.name.lower() in SPLITS for row in rows):
                given = [f"{name}_chroms" for name in self.chroms]
                given += [f"{name}_fasta" for name in self.files]
                if given:
                    raise ValueError(
                        "FastaDataModule.bed must not name splits in column 4 if "
                        f"{given[0]} is given, got both; remove one of them"
                    )
                return split_by_label(rows, genome.names)
            regions = merge(Regions.from_intervals(rows, genome.names))
        named = split_by_chromosome(
            regions, genome.names, self.chroms.get("valid", []), self.chroms.get("test", [])
        )
        rest = named.pop("train")
        train, valid, test = self.split
        if "valid" in self.files or "valid" in named:
            train, valid = train + valid, 0.0
        if "test" in self.files or "test" in named:
            train, test = train + test, 0.0
        return named | split_by_fraction(rest, (train, valid, test), length, self.split_seed)
