"""Cutting a genome into train, valid and test without overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from .bed import Interval
from .cache import describe_names
from .intervals import Regions, Windows, merge, overlaps, tile

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, Split, Split] = ("train", "valid", "test")


def split_by_label(intervals: Sequence[Interval], names: Sequence[str]) -> dict[Split, Regions]:
    """Group intervals by their name, which must be train, valid or test.

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
    }


def split_by_chromosome(
    regions: Regions, names: Sequence[str], valid: Sequence[str], test: Sequence[str]
) -> dict[Split, Regions]:
    """Hold out whole chromosomes; the others train.

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
    return {
        "train": regions.select(~in_valid & ~in_test),
        "valid": regions.select(in_valid),
        "test": regions.select(in_test),
    }


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
    places = {"valid": order[dealt == 0], "test": order[dealt == 1], "train": order[dealt == 2]}
    return {split: merge(pieces.select(places[split])) for split in SPLITS}


def check_fractions(fractions: tuple[float, float, float]) -> None:
    """Check shares of train, valid and test.

    Raises:
        ValueError: If one is negative or they do not add up to 1.
    """
    if min(fractions) < 0 or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(
            f"split must be three shares of train, valid and test that add up to 1, "
            f"got {list(fractions)}; for example [0.9, 0.05, 0.05]"
        )


def drop_leaks(windows: dict[Split, Windows]) -> dict[Split, Windows]:
    """Leave out the training windows that share a base with a valid or test window."""
    train = windows["train"]
    leaks = overlaps(train, windows["valid"]) | overlaps(train, windows["test"])
    return {**windows, "train": train.select(~leaks)}
