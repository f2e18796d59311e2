"""Cutting a genome into train, valid and test without overlap.

A split that was not asked for is not among the keys of a result; one that was is, even if empty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from genomics.io import describe_names
from genomics.sequence import Interval, Regions, merge, tile
from seqdiff.data import SPLITS, Split


def split_by_label(intervals: Sequence[Interval], names: Sequence[str]) -> dict[Split, Regions]:
    """Group intervals by their name, which must be train, valid or test.

    Args:
        intervals: Rows of a BED file.
        names: Of the chromosomes, in the order of the genome.

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
    """Hold out whole chromosomes; the others train.

    Args:
        regions: What to split.
        names: Of the chromosomes, in the order of the genome.
        valid: Chromosomes to validate on.
        test: Chromosomes to test on.

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
            f"valid_chroms and test_chroms must differ, both have {both[0]!r}; choose one"
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
    """Deal contiguous blocks at random to the three splits.

    A block is 1 to 1024 windows long, about 1/256 of all there is, so the splits come from
    everywhere and few windows are lost at the borders. Blocks of one split that touch are joined.

    Args:
        regions: What to split; overlapping intervals count once.
        fractions: Shares of train, valid and test in the bases.
        length: Tokens of a window, the grain of the blocks.
        seed: Chooses the blocks.

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
    # Half a base keeps a rounding error in the sum from handing an empty split one block.
    dealt = np.searchsorted([valid_end - 0.5, test_end - 0.5], before, side="left")
    return {
        split: merge(pieces.select(order[dealt == place]))
        for split, place, share in zip(SPLITS, (2, 0, 1), fractions, strict=True)
        if share > 0
    }


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Check shares of train, valid and test.

    Args:
        fractions: Of the bases, in this order.

    Raises:
        ValueError: If one is negative or no number, or they do not add up to 1.
    """
    if not (all(share >= 0 for share in fractions) and abs(sum(fractions) - 1) <= 1e-6):
        raise ValueError(
            f"split must be three shares of train, valid and test that add up to 1, "
            f"got {list(fractions)}; for example [0.9, 0.05, 0.05]"
        )
