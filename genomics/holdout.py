"""What of a genome is held out of training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from seqdiff.data.dataset import SPLITS, Split

from .bed import read_intervals
from .cache import Genome
from .intervals import Regions, merge
from .splits import check_fractions, split_by_chromosome, split_by_fraction, split_by_label


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
