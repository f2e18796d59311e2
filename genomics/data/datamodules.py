"""Data modules for DNA: any FASTA file, and the HG38 set of the long-range DNA literature."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int64

from genomics.data.leaks import HoldOut, shared_records, without_leaks
from genomics.data.splits import split_by_label
from genomics.data.windows import WindowDataModule
from genomics.io import Genome, LabelTable, describe_names, load_genome, read_intervals
from genomics.sequence import OffEnd, Regions, Windows, check_tiling, extended_windows, tile
from seqdiff.data import SPLITS, Split

Windowing = Literal["leak_free", "reference"]

# Bases that the published HG38 set reads from the start of each interval.
HG38_EXTENT = 1 << 20


class FastaDataModule(WindowDataModule):
    """Windows of a FASTA file of your own, or of several.

    The splits never share a base. They come from column 4 of ``bed`` if it holds train, valid and
    test. Otherwise valid and test each are the records that ``valid_chroms`` or ``test_chroms``
    names, or the whole of a FASTA file of their own, or else dealt: their share in ``split`` of
    what remains of ``fasta``. All else trains.

    No record of one split may be in another under another name or in another file, on either
    strand; what comes back as a mere part of a record, or of one that both splits read a part of,
    is not noticed.

    Windows are read on the plus strand, whatever column 6 of ``bed`` says.

    With ``label_file`` the model learns classes of records, such as promoters and enhancers: a
    window has the class of its record, on either strand.

    Args:
        fasta: FASTA file, plain, gzip or bgzip, to train on.
        length: Bases of a window.
        stride: From one training window to the next; ``None`` means ``length``. Evaluation windows
            always stand end to end.
        split: Shares of train, valid and test, dealt in blocks; 0 does without that split. The
            share of a split that has records or a file of its own goes to training.
        split_seed: Chooses which blocks go where; part of what the data is, so it does not follow
            the run's seed.
        bed: BED file of the intervals to use, with the split in column 4 or without.
        valid_chroms: Records to validate on.
        test_chroms: Records to test on.
        valid_fasta: Another FASTA file to validate on.
        test_fasta: Another FASTA file to test on.
        labels: Names of the classes of records, kept with the run.
        label_file: Tab-separated lines of a record and its class, for all FASTA files.
        off_end: The last window of an interval: moved inside, dropped, or padded with N.
        reverse_complement: Read training rows from either strand with probability 1/2.
        batch_size: Training examples per device and forward pass.
        eval_batch_size: The same for validation and test; ``None`` means ``batch_size``.
        num_workers: Loader processes per device.

    Raises:
        ValueError: If a number is out of range, two ways to split contradict each other, or only
            one of ``labels`` and ``label_file`` is given.
    """

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
        labels: list[str] | None = None,
        label_file: str | Path | None = None,
        off_end: OffEnd = "shift",
        reverse_complement: bool = True,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            fasta,
            length,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
            reverse_complement=reverse_complement,
        )
        self.stride = length if stride is None else stride
        self.off_end: OffEnd = off_end
        check_tiling(type(self).__name__, length, self.stride, off_end)
        self.label_table = LabelTable.from_keys(labels, label_file)
        self.labels = labels
        chroms: dict[Split, list[str] | None] = {"valid": valid_chroms, "test": test_chroms}
        files: dict[Split, str | Path | None] = {"valid": valid_fasta, "test": test_fasta}
        self.hold_out = HoldOut(
            split,
            split_seed,
            bed,
            {name: given for name, given in chroms.items() if given},
            {name: given for name, given in files.items() if given is not None},
        )

    def windows(self) -> dict[Split, tuple[Genome, Windows]]:
        """Read the files and choose the windows of each split that was asked for.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is not sound, no record of it is as long as a window, or two
                splits read the same record under two names or from two files.
        """
        genome = self._load(self.fasta)
        regions = self.hold_out.regions(genome, self.length)
        parts: dict[Split, tuple[Genome, Regions]] = {
            split: (genome, found) for split, found in regions.items()
        }
        for split, file in self.hold_out.files.items():
            other = self._load(file)
            parts[split] = (other, Regions.whole(other.lengths))
        windows: dict[Split, tuple[Genome, Windows]] = {}
        for split, (source, found) in parts.items():
            stride = self.stride if split == "train" else self.length
            windows[split] = (source, tile(found, self.length, stride, self.off_end))
        self._refuse_shared_records(windows)
        return without_leaks(windows)

    def record_labels(self, split: Split, genome: Genome) -> Int64[np.ndarray, " R"] | None:
        """Number the class of each record that a split is read from; ``None`` without classes.

        Raises:
            FileNotFoundError: If there is no table.
            ValueError: If the table is not sound.
        """
        return None if self.label_table is None else self.label_table.of_records(genome.names)

    def file(self, split: Split) -> str | Path:
        """Name the FASTA file that a split is read from."""
        return self.hold_out.files.get(split, self.fasta)

    def keys(self, split: Split) -> str:
        """Name the keys that give a split its sequence, for an error message."""
        own = "data.fasta" if split == "train" else f"data.{split}_chroms, data.{split}_fasta"
        return f"data.split, {own} or rows named {split} in data.bed"

    def _load(self, file: str | Path) -> Genome:
        genome = load_genome(file)
        longest = int(genome.lengths.max())
        if self.length > longest and self.off_end != "pad":
            raise ValueError(
                f"FastaDataModule.length must not exceed the longest record of {file} ({longest} "
                f"bases), got {self.length}; set a shorter data.length, or data.off_end to pad"
            )
        return genome

    def _refuse_shared_records(self, windows: dict[Split, tuple[Genome, Windows]]) -> None:
        for pair in combinations(SPLITS, 2):
            if not all(split in windows for split in pair):
                continue
            # Of two splits in different files at least one has a file of its own: the one to mend.
            one_file = windows[pair[0]][0] is windows[pair[1]][0]
            other, own = pair if one_file or pair[1] in self.hold_out.files else pair[::-1]
            shared = shared_records(*windows[other], *windows[own])
            if not shared:
                continue
            if one_file:
                names = describe_names(tuple(" = ".join(copies) for copies in shared))
                raise ValueError(
                    f"FastaDataModule.fasta must hold no record twice, once for {other} and once "
                    f"for {own}, got {len(shared)} such in {self.file(own)} ({names}); "
                    "keep one copy of each, or hold both out together with data.valid_chroms or "
                    "data.test_chroms"
                )
            names = describe_names(tuple(name for name, _ in shared))
            raise ValueError(
                f"FastaDataModule.{own}_fasta must share no record with the {other} split, got "
                f"{len(shared)} of {self.file(other)} again in {self.file(own)} ({names}); "
                f"remove them from one file, or leave data.{own}_fasta out and hold out "
                "records of data.fasta by name with data.valid_chroms and data.test_chroms"
            )


class HG38DataModule(WindowDataModule):
    """The HG38 set: Basenji intervals, each extended to 2^20 bases and cut into windows.

    Source: Nguyen et al. 2023, arXiv:2306.15794, and Schiff et al. 2024, arXiv:2403.03234. As
    published, extended training intervals reach into evaluation intervals; the default leaves such
    training windows out and keeps the evaluation windows as they are.

    Args:
        fasta: The hg38 FASTA file, plain, gzip or bgzip.
        bed: BED file whose column 4 is train, valid or test.
        length: Bases of a window; must divide 2^20.
        windowing: ``leak_free``, or ``reference`` for the published windows, training windows that
            overlap evaluation windows included.
        reverse_complement: Read training rows from either strand with probability 1/2.
        batch_size: Training examples per device and forward pass.
        eval_batch_size: The same for validation and test; ``None`` means ``batch_size``.
        num_workers: Loader processes per device.

    Raises:
        ValueError: If a number is out of range or the windowing is unknown.
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
        super().__init__(
            fasta,
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
        self.bed, self.windowing = bed, windowing

    def keys(self, split: Split) -> str:
        """Name the keys that give a split its sequence, for an error message."""
        return f"rows named {split} in data.bed"

    def windows(self) -> dict[Split, tuple[Genome, Windows]]:
        """Read both files and cut the windows of each split.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is not sound, or a chromosome is shorter than a window.
        """
        genome = load_genome(self.fasta)
        regions = split_by_label(read_intervals(self.bed, genome), genome.names)
        windows: dict[Split, tuple[Genome, Windows]] = {
            split: (genome, extended_windows(found, genome.lengths, self.length, HG38_EXTENT))
            for split, found in regions.items()
        }
        return without_leaks(windows) if self.windowing == "leak_free" else windows
