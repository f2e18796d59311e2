"""Windows of a genome as rows of tokens, and the base class of data modules that read them."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from numpy.lib.stride_tricks import sliding_window_view

from genomics.baselines import baselines, interpolated_baseline
from genomics.data.splits import Parts
from genomics.io import Genome, Track, describe_names, open_track
from genomics.sequence import (
    MASK_ID,
    DNATokenizer,
    Regions,
    Windows,
    complement,
    merge_parts,
    tile_in_parts,
)
from seqdiff.data import SPLITS, Examples, SequenceDataModule, SequenceDataset, Split
from seqdiff.files import names_files
from seqdiff.likelihood import RowNats
from seqdiff.types import NO_LABEL

_CHUNK_BASES = 1 << 24
_BLOCK_ROWS = 1024
_LOOKED_AT = 64
_PART_WINDOWS = 1 << 18
_FILES = ("fasta", "bed", "valid_fasta", "test_fasta", "label_file", "tracks")
_PLAIN_BASES, _INTERPOLATED_BASES, _CHOICE_BASES = 1 << 27, 1 << 25, 1 << 20


def mirror(rows: Examples, chosen: Bool[np.ndarray, " B"]) -> Examples:
    """Replace some rows by their reverse complements, and reverse their tracks.

    Labels and signals of whole rows stay as they are, and padding stays in place.
    """
    place = None if rows.padding is None else _places(rows.padding[chosen])
    tokens, loss_mask, signal = rows.tokens.copy(), rows.loss_mask.copy(), rows.signal
    tokens[chosen] = _backwards(complement(tokens[chosen]), place)
    loss_mask[chosen] = _backwards(loss_mask[chosen], place)
    if signal is not None and signal.ndim == 3:
        signal = signal.copy()
        signal[chosen] = _backwards(signal[chosen], place)
    return rows._replace(tokens=tokens, loss_mask=loss_mask, signal=signal)


def _places(padding: np.ndarray) -> np.ndarray:
    """Return the positions of reversed rows, of which padding at the end stays in place."""
    place = np.tile(np.arange(padding.shape[1]), (len(padding), 1))
    last = (~padding).sum(axis=1, keepdims=True) - 1
    return np.where(place <= last, last - place, place)


def _backwards(values: np.ndarray, place: np.ndarray | None) -> np.ndarray:
    """Reverse rows: whole ones, or to the given positions."""
    if place is None:
        return values[:, ::-1]
    return np.take_along_axis(values, place if values.ndim == 2 else place[..., None], axis=1)


class WindowDataset(SequenceDataset):
    """Windows read from the encoded genome; windows without a known base are left out.

    Rows are ordered by record, then by start. The index takes eight bytes of memory per window.

    Attributes:
        genome: The genome.
        length: Tokens of a row.
        reverse_complement: Whether training rows are read from a random strand.
        record_labels: Class of each record of the genome, or ``None`` without classes.
        tracks: Tracks of the genome.
    """

    def __init__(
        self,
        genome: Genome,
        windows: Windows | Iterable[Windows],
        *,
        reverse_complement: bool = False,
        record_labels: Int64[np.ndarray, " R"] | None = None,
        tracks: Sequence[Track] = (),
    ) -> None:
        """Select the windows that contain a known base.

        Args:
            genome: The genome.
            windows: Windows, each inside its chromosome, or at least one part of them.
            reverse_complement: Read training rows from either strand with probability 1/2.
            record_labels: Class of each record of the genome, and so of its windows.
            tracks: Tracks of the genome, whose values are the signals.
        """
        self.genome = genome
        self.reverse_complement = reverse_complement
        self.record_labels = record_labels
        self.tracks = tracks
        starts, sizes = array("q"), array("i")  # which grow without a second copy in memory
        for part in [windows] if isinstance(windows, Windows) else windows:
            self.length = part.length
            start, size = genome.offsets[part.chrom] + part.start, part.end - part.start
            known = self._has_known_base(start, size)
            starts.frombytes(start[known].astype(np.int64).tobytes())
            sizes.frombytes(size[known].astype(np.int32).tobytes())
        self._starts = np.frombuffer(starts, np.int64)
        self._sizes = self._unless_full(np.frombuffer(sizes, np.int32))
        if (self._starts[1:] < self._starts[:-1]).any():
            order = np.argsort(self._starts, kind="stable")
            self._starts = self._starts[order]
            self._sizes = None if self._sizes is None else self._sizes[order]

    def _unless_full(self, sizes: np.ndarray) -> np.ndarray | None:
        return None if (sizes == self.length).all() else sizes

    def __len__(self) -> int:
        """Number of windows."""
        return len(self._starts)

    @property
    def windows(self) -> Windows:
        """The windows with a known base, in order."""
        return self._windows(np.arange(len(self)))

    def _windows(self, indices: np.ndarray) -> Windows:
        chrom = self._records(self._starts[indices])
        start = self._starts[indices] - self.genome.offsets[chrom]
        sizes = self.length if self._sizes is None else self._sizes[indices]
        return Windows(chrom, start, start + sizes, self.length)

    def regions(self) -> Regions:
        """Return the intervals that the windows cover, disjoint and in order."""
        parts = (
            self._windows(np.arange(first, min(first + _PART_WINDOWS, len(self))))
            for first in range(0, len(self), _PART_WINDOWS)
        )
        return merge_parts(parts)

    def records(self) -> Int64[np.ndarray, " _"]:
        """Return the numbers of the records that have windows, in order."""
        ends = self.genome.offsets + self.genome.lengths
        bounds = np.searchsorted(self._starts, np.stack([self.genome.offsets, ends]))
        return np.flatnonzero(bounds[1] > bounds[0])

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[UInt8[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Read rows; unknown bases and positions past a window's end are the mask."""
        tokens = self._read(
            self._starts[indices], None if self._sizes is None else self._sizes[indices]
        )
        return tokens, tokens != MASK_ID

    def _read(self, starts: np.ndarray, sizes: np.ndarray | None) -> np.ndarray:
        ids = self.genome.ids
        if sizes is None:
            tokens = sliding_window_view(ids, self.length)[starts]
        else:
            tokens = np.full((len(starts), self.length), MASK_ID, dtype=np.uint8)
            for row, start, size in zip(tokens, starts, sizes, strict=True):
                row[:size] = ids[start : start + size]
        self.genome.count_reads(len(starts), self.length)
        return tokens

    def labels(self, indices: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"] | None:
        """Return the classes of the records that rows come from."""
        if self.record_labels is None:
            return None
        return self.record_labels[self._records(self._starts[indices])]

    def signals(self, indices: Int64[np.ndarray, " B"]) -> Float32[np.ndarray, "B L S"] | None:
        """Read the tracks, NaN where a file has no value and past a window's end."""
        if not self.tracks:
            return None
        found = np.full((len(indices), self.length, len(self.tracks)), np.nan, dtype=np.float32)
        chroms = self._records(self._starts[indices])
        starts = self._starts[indices] - self.genome.offsets[chroms]
        sizes = np.full(len(indices), self.length) if self._sizes is None else self._sizes[indices]
        for row, chrom, start, size in zip(found, chroms, starts, sizes, strict=True):
            name = self.genome.names[chrom]
            for place, track in enumerate(self.tracks):
                row[:size, place] = track.values(name, int(start), int(start + size))
        return found

    def classes(self) -> set[int]:
        """Return the classes that occur."""
        if self.record_labels is None:
            return set()
        return set(self.record_labels[self.records()].tolist())

    def _records(self, starts: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.genome.offsets, starts, side="right") - 1

    def augment(self, rows: Examples, uniform: Float64[np.ndarray, " B"]) -> Examples:
        """Replace each row by its reverse complement with probability 1/2, if enabled."""
        return mirror(rows, uniform < 0.5) if self.reverse_complement else rows

    def _has_known_base(self, starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Check the first base of each window; read a whole window only if that base is unknown."""
        known = np.zeros(len(starts), dtype=bool)
        for first in range(0, len(starts), _LOOKED_AT):
            part = slice(first, first + _LOOKED_AT)
            known[part] = self.genome.ids[starts[part]] != MASK_ID
            self.genome.count_reads(len(starts[part]), 1)
        doubtful = np.flatnonzero(~known)
        for part in np.array_split(doubtful, len(doubtful) * self.length // _CHUNK_BASES + 1):
            tokens = self._read(starts[part], self._unless_full(sizes[part]))
            known[part] = (tokens != MASK_ID).any(axis=1)
        return known


class WindowDataModule(SequenceDataModule):
    """Base class of data modules for genome windows; subclasses choose the windows.

    See ``FastaDataModule`` for the arguments.
    """

    token_name: str = "base"
    file_suffix: str = "fa"

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Tell whether the value of an argument names a file; see ``seqdiff.run.Located``."""
        return argument in _FILES and names_files(value)

    def __init__(
        self,
        fasta: str | Path,
        length: int,
        *,
        batch_size: int,
        eval_batch_size: int | None,
        num_workers: int,
        reverse_complement: bool,
        tracks: Mapping[str, str | Path] | None = None,
    ) -> None:
        super().__init__(
            DNATokenizer(),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        if length < 1:
            raise ValueError(
                f"{type(self).__name__}.length must be at least 1, got {length}; set data.length"
            )
        self.fasta = fasta
        self.length = self.context_length = length
        self.reverse_complement = reverse_complement
        self.complement = tuple(DNATokenizer().complement) if reverse_complement else None
        self.tracks = dict(tracks or {})
        self.signals = list(self.tracks) or None
        self.signal_tracks = bool(self.tracks)
        self._datasets: dict[Split, WindowDataset] = {}

    @abstractmethod
    def windows(self) -> dict[Split, tuple[Genome, Parts]]:
        """Read the files and choose the windows of each requested split."""

    @abstractmethod
    def keys(self, split: Split) -> str:
        """Name the configuration keys that define a split, for error messages."""

    def record_labels(self, genome: Genome) -> Int64[np.ndarray, " R"] | None:
        """Return the class number of each record of a genome, or ``None`` without classes."""
        del genome
        return None

    def file(self, split: Split) -> str | Path:
        """Return the FASTA file that a split is read from."""
        del split
        return self.fasta

    def prepare(self) -> None:
        """Encode the files into the cache."""
        self._build()

    def dataset(self, split: Split) -> WindowDataset:
        """Open a split; the first call reads the files and builds all splits.

        Windows are sorted by record in the order of the FASTA file, then by start.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is not valid, the split does not exist, or any requested split has
                no window.
        """
        owner = type(self).__name__
        if split not in SPLITS:
            raise ValueError(f"{owner}.dataset must be one of {', '.join(SPLITS)}, got {split!r}")
        self._build()
        if split not in self._datasets:
            there = list(self._datasets)
            other = "" if split == "train" else f"evaluate another with --split {there[-1]}, or "
            raise ValueError(
                f"{owner}.dataset: there is no {split} split, only {' and '.join(there)}; "
                f"{other}give {split} sequence by {self.keys(split)}"
            )
        return self._datasets[split]

    def baselines(self, split: Split) -> dict[str, RowNats]:
        """Fit Markov chains to the training windows and score the windows of a split.

        The chains are plain ones of order 0 to 8 and, if there is a validation split to choose its
        order and concentration on, the interpolated one of ``interpolated_baseline``. They are
        fitted to both strands if training uses both. Every base of overlapping training windows is
        counted once. At most about 2^27 training bases are used for the plain chains, 2^25 for the
        interpolated chain and 2^20 validation bases, from evenly spaced windows.
        """
        train, both = _disjoint(self.dataset("train")), self.reverse_complement
        scored = self.dataset(split)
        found = baselines(_tokens(train, _PLAIN_BASES), _tokens(scored), both_strands=both)
        if "valid" in self._datasets:
            found |= interpolated_baseline(
                _tokens(train, _INTERPOLATED_BASES),
                _tokens(self.dataset("valid"), _CHOICE_BASES),
                _tokens(scored),
                both_strands=both,
            )
        return found

    def _build(self) -> None:
        if self._datasets:
            return
        datasets: dict[Split, WindowDataset] = {}
        found = self.windows()
        tracks = self._open_tracks(list(found.values())) if self.tracks else {}
        for split in SPLITS:
            if split not in found:
                continue
            genome, windows = found[split]
            datasets[split] = WindowDataset(
                genome,
                windows(),
                reverse_complement=self.reverse_complement,
                record_labels=self.record_labels(genome),
                tracks=tracks.get(genome, ()),
            )
            if len(datasets[split]) == 0:
                outside = " outside valid and test" if split == "train" else ""
                raise ValueError(
                    f"{type(self).__name__}: the {split} split holds no window of {self.length} "
                    f"bases with a known base{outside}, got {genome.lengths.sum():,} bases in all "
                    f"in {self.file(split)}; use a shorter data.length, or give {split} more "
                    f"sequence by {self.keys(split)}"
                )
            self._check_labels(split, datasets[split])
        self._check_classes(datasets)
        self._datasets = datasets

    def _open_tracks(self, found: list[tuple[Genome, Parts]]) -> dict[Genome, list[Track]]:
        """Open the tracks of each genome, and check that they cover the records in use."""
        tracks: dict[Genome, list[Track]] = {}
        for genome in {genome for genome, _ in found}:
            parts = (part for g, windows in found if g is genome for part in windows())
            used = [genome.names[chrom] for chrom in np.unique(merge_parts(parts).chrom)]
            lengths = dict(zip(genome.names, genome.lengths.tolist(), strict=True))
            tracks[genome] = [open_track(file, lengths, used) for file in self.tracks.values()]
        return tracks

    def _check_labels(self, split: Split, dataset: WindowDataset) -> None:
        """Check that every record of a split has a class if there are classes."""
        if dataset.record_labels is None:
            return
        used = dataset.records()
        bare = used[dataset.record_labels[used] == NO_LABEL]
        if len(bare):
            names = describe_names(tuple(dataset.genome.names[i] for i in bare))
            raise ValueError(
                f"{type(self).__name__}.label_file must have a line for every record that is used, "
                f"got none for {len(bare)} of {self.file(split)} ({names}); add them, or leave "
                "the records out"
            )

    def _check_classes(self, datasets: dict[Split, WindowDataset]) -> None:
        """Check that every class occurs in training: otherwise its embedding is never trained."""
        if self.labels is None:
            return
        there = {split: dataset.classes() for split, dataset in datasets.items()}
        for number, name in enumerate(self.labels):
            if number in there["train"]:
                continue
            found = [split for split, classes in there.items() if number in classes]
            got, fix = "in no record that is used", "give this label to a record, or drop the name"
            if found:
                got = f"only in {' and '.join(found)}"
                fix = "move one of its records to training, or drop the name and its records"
            raise ValueError(
                f"{type(self).__name__}.labels must all occur in the training records, got "
                f"{name!r} {got}; {fix}"
            )


def _disjoint(dataset: WindowDataset) -> WindowDataset:
    """Cut the bases of a data set into adjacent windows."""
    parts = tile_in_parts(dataset.regions(), dataset.length, dataset.length, "pad")
    return WindowDataset(dataset.genome, parts)


def _tokens(dataset: WindowDataset, most: int | None = None) -> Iterator[UInt8[np.ndarray, "_ _"]]:
    """Read all windows in blocks, or evenly spaced windows with at most about ``most`` bases."""
    step = 1 if most is None else -(-len(dataset) * dataset.length // most)
    chosen = np.arange(0, len(dataset), max(1, step))
    for first in range(0, len(chosen), _BLOCK_ROWS):
        yield dataset.rows(chosen[first : first + _BLOCK_ROWS])[0]
