"""Keep what is evaluated out of training: held-out regions, overlaps, shared records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8

from genomics.data.splits import (
    check_fractions,
    split_by_chromosome,
    split_by_fraction,
    split_by_label,
)
from genomics.io import Genome, read_intervals
from genomics.sequence import MASK_ID, Regions, Windows, merge, overlaps, reverse_complement
from seqdiff.data import SPLITS, Split

_CHUNK_BASES = 1 << 22


def drop_leaks(train: Windows, held_out: Sequence[Windows]) -> Windows:
    """Leave out the training windows that share a base with a held-out window.

    Args:
        train: Training windows.
        held_out: Windows of the same genome, a set for each held-out split.
    """
    leaks = np.zeros(len(train), dtype=bool)
    for windows in held_out:
        leaks |= overlaps(train, windows)
    return train.select(~leaks)


def without_leaks(
    windows: dict[Split, tuple[Genome, Windows]],
) -> dict[Split, tuple[Genome, Windows]]:
    """Leave out the training windows that share a base with a held-out window of their genome.

    Args:
        windows: Of each split, with the genome that they are cut from.
    """
    if "train" not in windows:
        return windows
    genome, train = windows["train"]
    held_out = [w for split, (g, w) in windows.items() if split != "train" and g is genome]
    return {**windows, "train": (genome, drop_leaks(train, held_out))}


def shared_records(
    genome: Genome, used: Regions, other: Genome, other_used: Regions
) -> list[tuple[str, str]]:
    """Find the records of one genome that are, base for base, records of another.

    A record counts as the same on the opposite strand too, and whatever its name. Records are
    compared whole: a part of a record is not found in it.

    Args:
        genome: One genome.
        used: What is read of it; records without an interval are passed over.
        other: The other genome. If it is the same one, its copies of a record are looked for, and
            records of which both sides read a part are passed over.
        other_used: What is read of the other.

    Returns:
        The names in either genome, in the order of ``other``.
    """
    if other is genome:
        both = np.intersect1d(used.chrom, other_used.chrom)
        used, other_used = (r.select(~np.isin(r.chrom, both)) for r in (used, other_used))
    # A digest costs a pass over the record, so records without a partner in length have none.
    lengths = np.intersect1d(genome.lengths[used.chrom], other.lengths[other_used.chrom])
    names = {_digest(ids): name for name, ids in _records(genome, used, lengths)}
    shared = []
    for other_name, ids in _records(other, other_used, lengths):
        name = names.get(_digest(ids)) or names.get(_digest(ids, opposite=True))
        if name is not None and (ids != MASK_ID).any():
            shared.append((name, other_name))
    return shared


def _records(
    genome: Genome, used: Regions, lengths: Int64[np.ndarray, " n"]
) -> Iterator[tuple[str, UInt8[np.ndarray, " _"]]]:
    """The records in use that have one of some lengths."""
    places = np.unique(used.chrom)
    for place in places[np.isin(genome.lengths[places], lengths)].tolist():
        first = genome.offsets[place]
        yield genome.names[place], genome.ids[first : first + genome.lengths[place]]


def _digest(ids: np.ndarray, *, opposite: bool = False) -> bytes:
    """Hash a record as it stands, or as the opposite strand reads."""
    digest = hashlib.blake2b(digest_size=16)
    firsts = range(0, len(ids), _CHUNK_BASES)
    for first in reversed(firsts) if opposite else firsts:
        chunk = ids[first : first + _CHUNK_BASES]
        digest.update((reverse_complement(chunk) if opposite else chunk).tobytes())
    return digest.digest()


@dataclass(frozen=True)
class HoldOut:
    """Which splits there are and where each comes from, as ``FastaDataModule`` describes it.

    Attributes:
        split: Shares of train, valid and test.
        split_seed: Chooses which blocks go where.
        bed: BED file of the intervals to use.
        chroms: Records of the training file that a split is.
        files: FASTA file that a split is.
    """

    split: tuple[float, float, float]
    split_seed: int
    bed: str | Path | None
    chroms: dict[Split, list[str]]
    files: dict[Split, str | Path]

    def __post_init__(self) -> None:
        """Check what can be checked without reading a file.

        Raises:
            ValueError: If the shares are not shares, the seed is negative, or two ways to hold out
                contradict each other.
        """
        check_fractions(self.split)
        if self.split_seed < 0:
            raise ValueError(
                f"FastaDataModule.split_seed must be at least 0, got {self.split_seed}; "
                "set data.split_seed"
            )
        for name in self.chroms.keys() & self.files.keys():
            raise ValueError(
                f"FastaDataModule.{name}_fasta must stand alone, got {name}_chroms too; "
                "give only one of them"
            )

    def regions(self, genome: Genome, length: int) -> dict[Split, Regions]:
        """Cut the training file into the splits that have no file of their own.

        Of valid and test, one that has records of its own is those, and one that has neither
        records nor a file is dealt its share of what remains; what nobody takes trains.

        Args:
            genome: The training file.
            length: Bases of a window.

        Returns:
            Regions that share no base; a split that was not asked for is not there.

        Raises:
            FileNotFoundError: If there is no such BED file.
            ValueError: If the BED file is not sound, or a record is not in the genome.
        """
        regions = Regions.whole(genome.lengths)
        if self.bed is not None:
            rows = read_intervals(self.bed, genome)
            if any(row.name.lower() in SPLITS for row in rows):
                self._check_bed_alone()
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

    def _check_bed_alone(self) -> None:
        given = [f"{name}_chroms" for name in self.chroms]
        given += [f"{name}_fasta" for name in self.files]
        if given:
            raise ValueError(
                f"FastaDataModule.bed names the splits in column 4, got {given[0]} too; "
                "remove one of them"
            )
