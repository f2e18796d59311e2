"""Data modules for DNA: any FASTA file, and the HG38 set of the long-range DNA literature."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np

from .bed import read_bed
from .cache import Genome, load_genome
from .intervals import OffEnd, Regions, Windows, extended_windows, tile
from .splits import (
    SPLITS,
    Split,
    check_fractions,
    drop_leaks,
    split_by_chromosome,
    split_by_fraction,
    split_by_label,
)
from .window_datamodule import WindowDataModule

Windowing = Literal["leak_free", "reference"]

# Bases that the published HG38 set reads from the start of each interval.
HG38_EXTENT = 1 << 20


class FastaDataModule(WindowDataModule):
    """Windows of a FASTA file of your own, or of several."""

    def __init__(
        self,
        fasta: str | Path,
        length: int,
        *,
        stride: int | None = None,
        split: tuple[float, float, float] = (0.9, 0.05, 0.05),
        split_seed: int = 0,
        bed: str | Path | None = None,
        valid_chroms: list[str] | None = None,
        test_chroms: list[str] | None = None,
        valid_fasta: str | Path | None = None,
        test_fasta: str | Path | None = None,
        off_end: OffEnd = "shift",
        reverse_complement: bool = True,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Describe the data; nothing is read yet.

        The splits never share a base. They come from column 4 of ``bed`` if it holds train, valid
        and test; else from ``valid_chroms`` and ``test_chroms`` if given; else from ``split``. A
        split that has a FASTA file of its own is that whole file, and its share goes to training.

        Args:
            fasta: FASTA file, plain, gzip or bgzip, to train on.
            length: Bases of a window.
            stride: From one training window to the next; ``None`` means ``length``. Evaluation
                windows always stand end to end.
            split: Shares of train, valid and test, dealt in blocks.
            split_seed: Chooses which blocks go where; part of what the data is, so it does not
                follow the run's seed.
            bed: BED file of the intervals to use, with the split in column 4 or without.
            valid_chroms: Records to validate on.
            test_chroms: Records to test on.
            valid_fasta: Another FASTA file to validate on.
            test_fasta: Another FASTA file to test on.
            off_end: The last window of an interval: moved inside, dropped, or padded with N.
            reverse_complement: Read training rows from either strand with probability 1/2.
            batch_size: Training examples per device and forward pass.
            eval_batch_size: The same for validation and test; ``None`` means ``batch_size``.
            num_workers: Loader processes per device.

        Raises:
            ValueError: If a number is out of range or two ways to split contradict each other.
        """
        super().__init__(
            length,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            reverse_complement=reverse_complement,
        )
        if stride is not None and stride < 1:
            raise ValueError(
                f"FastaDataModule.stride must be at least 1, got {stride}; set data.stride"
            )
        if off_end not in ("shift", "drop", "pad"):
            raise ValueError(
                f"FastaDataModule.off_end must be shift, drop or pad, got {off_end!r}; "
                "set data.off_end"
            )
        check_fractions(split)
        for name, chroms, other in (
            ("valid", valid_chroms, valid_fasta),
            ("test", test_chroms, test_fasta),
        ):
            if chroms and other is not None:
                raise ValueError(
                    f"FastaDataModule.{name}_fasta must stand alone, got {name}_chroms too; "
                    "give only one of them"
                )
        self.fasta, self.bed = fasta, bed
        self.stride = length if stride is None else stride
        self.split, self.split_seed = split, split_seed
        self.off_end: OffEnd = off_end
        self.chroms = {"valid": valid_chroms or [], "test": test_chroms or []}
        self.other_fasta: dict[Split, str | Path | None] = {
            "valid": valid_fasta,
            "test": test_fasta,
        }

    def windows(self) -> dict[Split, tuple[Genome, Windows]]:
        """Read the files and choose the windows of each split.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is not sound, or no record is as long as a window.
        """
        genome = load_genome(self.fasta)
        self._check_length(self.fasta, genome)
        regions = self._regions(genome)
        genomes: dict[Split, Genome] = dict.fromkeys(SPLITS, genome)
        for name, file in self.other_fasta.items():
            if file is not None:
                other = load_genome(file)
                self._check_length(file, other)
                _check_different(genome, other, name)
                genomes[name], regions[name] = other, Regions.whole(other.lengths)
        windows: dict[Split, Windows] = {
            name: tile(
                regions[name],
                self.length,
                self.stride if name == "train" else self.length,
                self.off_end,
            )
            for name in SPLITS
        }
        return _without_leaks(genomes, windows)

    def _regions(self, genome: Genome) -> dict[Split, Regions]:
        regions = Regions.whole(genome.lengths)
        if self.bed is not None:
            lengths = dict(zip(genome.names, genome.lengths.tolist(), strict=True))
            rows = read_bed(self.bed, lengths)
            if any(row.name in SPLITS for row in rows):
                self._check_bed_alone()
                return split_by_label(rows, genome.names)
            regions = Regions.from_intervals(rows, genome.names)
        if self.chroms["valid"] or self.chroms["test"]:
            return split_by_chromosome(
                regions, genome.names, self.chroms["valid"], self.chroms["test"]
            )
        valid = self.split[1] if self.other_fasta["valid"] is None else 0.0
        test = self.split[2] if self.other_fasta["test"] is None else 0.0
        fractions = (1.0 - valid - test, valid, test)
        return split_by_fraction(regions, fractions, self.length, self.split_seed)

    def _check_bed_alone(self) -> None:
        given = [f"{s}_chroms" for s, c in self.chroms.items() if c]
        given += [f"{s}_fasta" for s, f in self.other_fasta.items() if f is not None]
        if given:
            raise ValueError(
                f"FastaDataModule.bed names the splits in column 4, got {given[0]} too; "
                "remove one of them"
            )

    def _check_length(self, file: str | Path, genome: Genome) -> None:
        longest = int(genome.lengths.max())
        if self.length > longest and self.off_end != "pad":
            raise ValueError(
                f"FastaDataModule.length must not exceed the longest record of {file} ({longest} "
                f"bases), got {self.length}; set a shorter data.length, or data.off_end to pad"
            )


class HG38DataModule(WindowDataModule):
    """The HG38 set: Basenji intervals, each extended to 2^20 bases and cut into windows.

    Source: Nguyen et al. 2023, arXiv:2306.15794, and Schiff et al. 2024, arXiv:2403.03234. As
    published, extended training intervals reach into evaluation intervals; the default leaves such
    training windows out and keeps the evaluation windows as they are.
    """

    def __init__(
        self,
        fasta: str | Path,
        bed: str | Path,
        length: int,
        *,
        windowing: Windowing = "leak_free",
        reverse_complement: bool = True,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        """Describe the data; nothing is read yet.

        Args:
            fasta: The hg38 FASTA file, plain, gzip or bgzip.
            bed: BED file whose column 4 is train, valid or test.
            length: Bases of a window; must divide 2^20.
            windowing: ``leak_free``, or ``reference`` for the published windows, training windows
                that overlap evaluation windows included.
            reverse_complement: Read training rows from either strand with probability 1/2.
            batch_size: Training examples per device and forward pass.
            eval_batch_size: The same for validation and test; ``None`` means ``batch_size``.
            num_workers: Loader processes per device.

        Raises:
            ValueError: If a number is out of range or the windowing is unknown.
        """
        super().__init__(
            length,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            reverse_complement=reverse_complement,
        )
        if HG38_EXTENT % length:
            raise ValueError(
                f"HG38DataModule.length must divide 2^20, got {length}; use a power of two"
            )
        if windowing not in ("leak_free", "reference"):
            raise ValueError(
                f"HG38DataModule.windowing must be leak_free or reference, got {windowing!r}; "
                "set data.windowing"
            )
        self.fasta, self.bed, self.windowing = fasta, bed, windowing

    def windows(self) -> dict[Split, tuple[Genome, Windows]]:
        """Read both files and cut the windows of each split.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is not sound, or a chromosome is shorter than a window.
        """
        genome = load_genome(self.fasta)
        lengths = dict(zip(genome.names, genome.lengths.tolist(), strict=True))
        regions = split_by_label(read_bed(self.bed, lengths), genome.names)
        windows: dict[Split, Windows] = {
            split: extended_windows(regions[split], genome.lengths, self.length, HG38_EXTENT)
            for split in SPLITS
        }
        if self.windowing == "leak_free":
            windows = drop_leaks(windows)
        return {split: (genome, windows[split]) for split in SPLITS}


def _without_leaks(
    genomes: dict[Split, Genome], windows: dict[Split, Windows]
) -> dict[Split, tuple[Genome, Windows]]:
    """Drop training windows that meet evaluation windows of the same genome."""
    nothing = np.zeros(0, dtype=np.int64)
    same: dict[Split, Windows] = {
        name: windows[name] if genomes[name] is genomes["train"] else windows[name].select(nothing)
        for name in SPLITS
    }
    kept: dict[Split, Windows] = {**windows, "train": drop_leaks(same)["train"]}
    return {name: (genomes[name], kept[name]) for name in SPLITS}


def _check_different(train: Genome, other: Genome, name: str) -> None:
    if len(train.ids) == len(other.ids) and np.array_equal(train.ids, other.ids):
        raise ValueError(
            f"FastaDataModule.{name}_fasta must differ from fasta, got the same sequence; "
            "leave it out to hold out a part, or name another file"
        )
