"""Data modules for DNA: FASTA files, and the HG38 data set of the long-range DNA literature."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
from jaxtyping import Int64

from genomics.data.splits import HoldOut, Parts, shared_records, split_by_label, without_leaks
from genomics.data.windows import WindowDataModule
from genomics.io import (
    Genome,
    check_file,
    describe_names,
    load_genome,
    read_intervals,
    read_text,
)
from genomics.sequence import (
    OffEnd,
    Regions,
    Windows,
    check_tiling,
    count_windows,
    extended_windows,
    tile_in_parts,
)
from seqdiff.data import SPLITS, Split
from seqdiff.types import NO_LABEL

Windowing = Literal["leak_free", "reference"]

# Bases that the published HG38 set reads from the start of each interval.
HG38_EXTENT = 1 << 20
_PART_INTERVALS = 256


@dataclass(frozen=True)
class LabelTable:
    """Classes of FASTA records, see ``FastaDataModule``.

    Attributes:
        names: Class names, in the order of their numbers.
        file: Tab-separated lines ``record label``.
    """

    names: tuple[str, ...]
    file: Path

    @classmethod
    def from_keys(cls, labels: Sequence[str] | None, file: str | Path | None) -> LabelTable | None:
        """Check the arguments without reading the file; ``None`` without labels.

        Raises:
            ValueError: If only one argument is given, or the names are missing, empty or repeated.
        """
        if labels is None and file is None:
            return None
        if labels is None or file is None:
            missing, given = ("labels", "label_file")[:: 1 if labels is None else -1]
            raise ValueError(
                f"FastaDataModule.{missing} must be given with {given}, got none; "
                "data.label_file gives the label of each record, data.labels lists the labels"
            )
        if not labels or len(set(labels)) < len(labels) or not all(map(str.strip, labels)):
            raise ValueError(
                f"FastaDataModule.labels must be different names, at least one, got {list(labels)};"
                " list each once"
            )
        return cls(tuple(labels), Path(file))

    def of_records(self, records: Sequence[str]) -> Int64[np.ndarray, " R"]:
        """Return the class number of each record, ``NO_LABEL`` if the file does not list it.

        Raises:
            FileNotFoundError: If the file does not exist.
            ValueError: If a line is not valid. The message starts with file and line.
        """
        numbers = {name: number for number, name in enumerate(self.names)}
        found: dict[str, int] = {}
        for line, text in enumerate(read_text(self.file, "label").splitlines(), start=1):
            if not text.strip() or text.startswith("#"):
                continue
            record, *rest = (column.strip() for column in text.split("\t"))
            if len(rest) != 1:
                raise ValueError(
                    f"{self.file}:{line}: a line needs a record and its label, got "
                    f"{1 + len(rest)} columns; separate the two by one tab"
                )
            if rest[0] not in numbers:
                raise ValueError(
                    f"{self.file}:{line}: label must be one of {describe_names(self.names)}, got "
                    f"{rest[0]!r}; correct it, or add it to data.labels"
                )
            if record in found:
                raise ValueError(
                    f"{self.file}:{line}: record {record!r} has two labels; keep one line"
                )
            found[record] = numbers[rest[0]]
        return np.array([found.get(record, NO_LABEL) for record in records], dtype=np.int64)


class FastaDataModule(WindowDataModule):
    """Windows of your own FASTA files.

    The splits never share a base. If column 4 of ``bed`` contains train, valid and test, it defines
    the splits. Otherwise valid and test each come from the records in ``valid_chroms`` or
    ``test_chroms``, from a FASTA file of their own, or from random blocks of the remaining
    sequence, in the fractions of ``split``. The rest is used for training.

    A record of one split must not occur in another split under another name, in another file or on
    the opposite strand. Copies of parts of records are not detected.

    Windows are read on the plus strand; column 6 of ``bed`` is ignored.

    With ``label_file`` the model is trained on classes of records, such as promoters and enhancers.
    A window has the class of its record, on either strand.

    With ``tracks`` the model is conditioned on values of every position, such as coverage. A
    position without a value in the file is unknown, not 0. Tracks are read backwards with the
    windows that are read from the other strand, so set ``reverse_complement`` to false for tracks
    of one strand.

    Args:
        fasta: FASTA file to train on, plain, gzip or bgzip.
        length: Bases of a window.
        stride: Distance between the starts of training windows; ``None`` means ``length``.
            Evaluation windows are always adjacent.
        split: Fractions of train, valid and test; 0 leaves a split out. If a split has its own
            records or file, its fraction is added to training.
        split_seed: Seed of the random blocks. It defines the data, so it is independent of the
            run's seed.
        bed: BED file of the intervals to use, with or without the split in column 4.
        valid_chroms: Records to validate on.
        test_chroms: Records to test on.
        valid_fasta: Another FASTA file to validate on.
        test_fasta: Another FASTA file to test on.
        labels: Names of the classes of records, stored with the run.
        label_file: Tab-separated lines of a record and its class, for all FASTA files.
        tracks: Names of signals, each with its bigWig or bedGraph file, for example
            ``{atac: atac.bw}``. They cover all FASTA files.
        off_end: What to do with the last window of an interval: ``shift`` moves it inside,
            ``drop`` leaves it out, ``pad`` fills it with N.
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
        tracks: dict[str, str | Path] | None = None,
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
            tracks=tracks,
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

    def windows(self) -> dict[Split, tuple[Genome, Parts]]:
        """Read the files and choose the windows of each requested split.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is not valid or has no record as long as a window, or if two
                splits contain the same record.
        """
        genome = self._load(self.fasta, "fasta")
        regions = self.hold_out.regions(genome, self.length)
        parts: dict[Split, tuple[Genome, Regions]] = {
            split: (genome, found) for split, found in regions.items()
        }
        for split, file in self.hold_out.files.items():
            other = self._load(file, f"{split}_fasta")
            parts[split] = (other, Regions.whole(other.lengths))
        windows: dict[Split, tuple[Genome, Parts]] = {}
        used: dict[Split, tuple[Genome, Regions]] = {}
        for split, (source, found) in parts.items():
            stride = self.stride if split == "train" else self.length
            tiling = (found, self.length, stride, self.off_end)
            windows[split] = (source, partial(tile_in_parts, *tiling))
            used[split] = (source, found.select(count_windows(*tiling) > 0))
        self._check_shared_records(used)
        return without_leaks(windows)

    def record_labels(self, genome: Genome) -> Int64[np.ndarray, " R"] | None:
        """Return the class number of each record of a genome, or ``None`` without classes.

        Raises:
            FileNotFoundError: If the label file does not exist.
            ValueError: If the label file is not valid.
        """
        return None if self.label_table is None else self.label_table.of_records(genome.names)

    def file(self, split: Split) -> str | Path:
        """Return the FASTA file that a split is read from."""
        return self.hold_out.files.get(split, self.fasta)

    def keys(self, split: Split) -> str:
        """Name the configuration keys that define a split, for error messages."""
        own = "data.fasta" if split == "train" else f"data.{split}_chroms, data.{split}_fasta"
        return f"data.split, {own} or rows named {split} in data.bed"

    def _load(self, file: str | Path, key: str) -> Genome:
        check_file(Path(file), f"set data.{key}")
        genome = load_genome(file)
        longest = int(genome.lengths.max())
        if self.length > longest and self.off_end != "pad":
            raise ValueError(
                f"FastaDataModule.length must not exceed the longest record of {file} ({longest} "
                f"bases), got {self.length}; set a shorter data.length, or data.off_end to pad"
            )
        return genome

    def _check_shared_records(self, used: dict[Split, tuple[Genome, Regions]]) -> None:
        for pair in combinations(SPLITS, 2):
            if not all(split in used for split in pair):
                continue
            # Of two splits in different files at least one has its own file: the one to correct.
            one_file = used[pair[0]][0] is used[pair[1]][0]
            other, own = pair if one_file or pair[1] in self.hold_out.files else pair[::-1]
            shared = shared_records(*used[other], *used[own])
            if not shared:
                continue
            if one_file:
                names = describe_names(tuple(" = ".join(copies) for copies in shared))
                raise ValueError(
                    f"FastaDataModule.fasta must not hold copies of one record in {other} and in "
                    f"{own}, got {len(shared)} copied records in {self.file(own)} ({names}); "
                    "keep one copy of each, or hold both out together with data.valid_chroms or "
                    "data.test_chroms"
                )
            names = describe_names(tuple(name for name, _ in shared))
            raise ValueError(
                f"FastaDataModule.{own}_fasta must share no record with the {other} split, got "
                f"{len(shared)} records of {self.file(other)} in {self.file(own)} too ({names}); "
                f"remove them from one file, or leave data.{own}_fasta out and hold out "
                "records of data.fasta by name with data.valid_chroms and data.test_chroms"
            )


class HG38DataModule(WindowDataModule):
    """The HG38 data set: Basenji intervals, each extended to 2^20 bases and cut into windows.

    Source: Nguyen et al. 2023, arXiv:2306.15794, and Schiff et al. 2024, arXiv:2403.03234. The
    published training intervals overlap evaluation intervals once extended. The default leaves out
    the training windows that overlap evaluation windows.

    Args:
        fasta: The hg38 FASTA file, plain, gzip or bgzip.
        bed: BED file whose column 4 is train, valid or test.
        length: Bases of a window; must divide 2^20.
        windowing: ``leak_free``, or ``reference`` for all published windows.
        tracks: Names of signals and their files, see ``FastaDataModule``.
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
        tracks: dict[str, str | Path] | None = None,
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
            tracks=tracks,
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
        """Name the configuration keys that define a split, for error messages."""
        return f"rows named {split} in data.bed"

    def windows(self) -> dict[Split, tuple[Genome, Parts]]:
        """Read both files and cut the windows of each split.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is not valid or a chromosome is shorter than a window.
        """
        check_file(Path(self.fasta), "set data.fasta")
        genome = load_genome(self.fasta)
        regions = split_by_label(read_intervals(self.bed, genome), genome.names)
        windows: dict[Split, tuple[Genome, Parts]] = {
            split: (genome, partial(self._extended, genome, found))
            for split, found in regions.items()
        }
        return without_leaks(windows) if self.windowing == "leak_free" else windows

    def _extended(self, genome: Genome, regions: Regions) -> Iterator[Windows]:
        """Extend and cut some intervals at a time."""
        for first in range(0, len(regions), _PART_INTERVALS):
            part = regions.select(np.arange(first, min(first + _PART_INTERVALS, len(regions))))
            yield extended_windows(part, genome.lengths, self.length, HG38_EXTENT)
