"""The data module of tables: sequences with measured values, classes or both."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8

from genomics.baselines import baselines, interpolated_baseline
from genomics.data.windows import mirror
from genomics.io import SequenceTable, describe_names, read_table, split_rows
from genomics.sequence import MASK_ID, DNATokenizer, encode
from seqdiff.data import (
    SPLITS,
    Examples,
    SequenceDataModule,
    SequenceDataset,
    Signals,
    Split,
)
from seqdiff.files import names_files
from seqdiff.likelihood import RowNats
from seqdiff.types import NO_LABEL


class TableDataset(SequenceDataset):
    """The sequences of a split, padded to one length.

    Attributes:
        table: The rows of the split.
        reverse_complement: Whether training rows are read from a random strand.
    """

    def __init__(
        self,
        table: SequenceTable,
        length: int,
        *,
        classes: list[str] | None = None,
        reverse_complement: bool = False,
    ) -> None:
        """Encode the rows.

        Args:
            table: The rows.
            length: Tokens of a row; longer sequences are an error of the caller.
            classes: Names of the classes, in the order of their numbers.
            reverse_complement: Read training rows from either strand with probability 1/2.
        """
        self.table = table
        self.reverse_complement = reverse_complement
        self._ids = np.full((len(table), length), MASK_ID, dtype=np.uint8)
        for row, sequence in zip(self._ids, table.sequences, strict=True):
            row[: len(sequence)] = encode(sequence)
        lengths = np.array([len(sequence) for sequence in table.sequences])
        self._lengths = None if (lengths == length).all() else lengths
        self._values = table.values.astype(np.float32) if table.columns else None
        if self._values is not None and self._values.ndim == 3:
            after = length - self._values.shape[1]
            self._values = np.pad(
                self._values, ((0, 0), (0, after), (0, 0)), constant_values=np.nan
            )
        self._classes: Int64[np.ndarray, " R"] | None = None
        if classes is not None and table.labels is not None:
            numbers = {name: number for number, name in enumerate(classes)} | {"": NO_LABEL}
            self._classes = np.array([numbers[label] for label in table.labels])

    def __len__(self) -> int:
        """Count the rows."""
        return len(self._ids)

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[UInt8[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Fetch rows; unknown bases and padding do not count."""
        ids = self._ids[indices]
        return ids, ids != MASK_ID

    def labels(self, indices: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"] | None:
        """Fetch the classes of rows."""
        return None if self._classes is None else self._classes[indices]

    def signals(self, indices: Int64[np.ndarray, " B"]) -> Signals | None:
        """Fetch the measured values of rows."""
        return None if self._values is None else self._values[indices]

    def padding(self, indices: Int64[np.ndarray, " B"]) -> Bool[np.ndarray, "B L"] | None:
        """Mark the positions after the end of shorter rows."""
        if self._lengths is None:
            return None
        return np.arange(self._ids.shape[1]) >= self._lengths[indices, None]

    def augment(self, rows: Examples, uniform: Float64[np.ndarray, " B"]) -> Examples:
        """Replace each row by its reverse complement with probability 1/2, if enabled."""
        return mirror(rows, uniform < 0.5) if self.reverse_complement else rows


class TableDataModule(SequenceDataModule):
    """Sequences of a table with measured values, classes or both.

    Rows are assigned to splits by the column ``split_column``; by a column ``split`` if it holds
    train, valid and test; or else by a hash of the column ``group`` or, without groups,
    of the sequence. A sequence and its reverse complement never lie in two splits.

    Sequences that are shorter than ``length`` are padded at the end.

    Args:
        table: File that ends in .csv, .tsv or .parquet (the first two may be compressed by gzip),
            or file of arrays that ends in .h5 or .npz, see ``genomics.io.read_table``.
        signals: Columns of measured values, which the model is conditioned on. Empty cells and
            ``NA`` are missing values. For arrays, names of the values in their order.
        signal_tracks: Whether each position has values of its own, as in some files of arrays;
            ``None`` is what the file holds, which the run stores.
        sequence: Column of the sequences.
        split_column: Column that holds train, valid or test.
        group: Column of groups, such as clusters of similar sequences. A group is never divided
            between splits.
        split: Fractions of train, valid and test where the table has no splits; 0 leaves a split
            out.
        split_seed: Seed of the hash. It defines the data, so it is independent of the run's seed.
        labels: Names of the classes, stored with the run.
        label_column: Column of the classes; empty cells have none.
        length: Tokens of a row; ``None`` is the length of the longest sequence, which the run
            stores.
        clip: Replace measured values outside of this interval by its ends.
        reverse_complement: Read training rows from either strand with probability 1/2. The default
            is no, because the activity of a promoter depends on its strand.
        batch_size: Training examples per device and forward pass.
        eval_batch_size: The same for validation and test; ``None`` means ``batch_size``.
        num_workers: Loader processes per device.

    Raises:
        ValueError: If a number is out of range, neither signals nor labels are given, or only one
            of ``labels`` and ``label_column`` is.
    """

    token_name: str = "base"
    file_suffix: str = "fa"

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Tell whether the value of an argument names a file; see ``seqdiff.run.Located``."""
        return argument == "table" and names_files(value)

    def __init__(
        self,
        table: str | Path,
        signals: list[str] | None = None,
        *,
        signal_tracks: bool | None = None,
        sequence: str = "sequence",
        split_column: str | None = None,
        group: str | None = None,
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        split_seed: int = 0,
        labels: list[str] | None = None,
        label_column: str | None = None,
        length: int | None = None,
        clip: tuple[float, float] | None = None,
        reverse_complement: bool = False,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            DNATokenizer(),
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        if length is not None and length < 1:
            raise ValueError(f"TableDataModule.length must be at least 1, got {length}")
        if min(split) < 0 or abs(sum(split) - 1) > 1e-6 or split[0] == 0:
            raise ValueError(
                "TableDataModule.split must be fractions of train, valid and test that add up to "
                f"1, with some for training, got {split}; the default is 0.8, 0.1, 0.1"
            )
        if (labels is None) != (label_column is None):
            missing = "labels" if labels is None else "label_column"
            raise ValueError(
                f"TableDataModule.{missing} must be given too, got none; data.labels lists the "
                "classes, and data.label_column names their column"
            )
        if labels is not None and (not labels or len(set(labels)) < len(labels) or "" in labels):
            raise ValueError(
                f"TableDataModule.labels must be different names, at least one, got {labels}"
            )
        if clip is not None and not clip[0] < clip[1]:
            raise ValueError(
                f"TableDataModule.clip must be a lower and a higher value, got {list(clip)}; for "
                "example --data.clip '[-6, 12]'"
            )
        self.table, self.sequence, self.group = table, sequence, group
        self.split_column, self.split, self.split_seed = split_column, split, split_seed
        self.labels, self.label_column, self.clip = labels, label_column, clip
        self.signals = signals or None
        self.signal_tracks = bool(signal_tracks)
        self._tracks = signal_tracks
        self.length = self.context_length = length
        self.reverse_complement = reverse_complement
        self.complement = tuple(DNATokenizer().complement) if reverse_complement else None
        self._datasets: dict[Split, TableDataset] = {}

    def found(self) -> dict[str, object]:
        """Return the length of the longest sequence and the kind of values, which a run stores."""
        self._build()
        return {"length": self.length, "signal_tracks": self.signal_tracks}

    def dataset(self, split: Split) -> TableDataset:
        """Open a split; the first call reads the table.

        Rows are in the order of the table.

        Raises:
            FileNotFoundError: If there is no table.
            ValueError: If the table is not valid, a sequence is longer than ``length``, or the
                split has no row.
        """
        if split not in SPLITS:
            raise ValueError(
                f"TableDataModule.dataset must be one of {', '.join(SPLITS)}, got {split!r}"
            )
        self._build()
        if split not in self._datasets:
            raise ValueError(
                f"TableDataModule.dataset: there is no {split} split in {self.table}, only "
                f"{' and '.join(self._datasets)}; give it rows by data.split or a column split"
            )
        return self._datasets[split]

    def baselines(self, split: Split) -> dict[str, RowNats]:
        """Fit Markov chains to the training rows and score the rows of a split.

        The chains are plain ones of order 0 to 8 and, if there is a validation split, the
        interpolated one of ``interpolated_baseline``. They ignore signals and classes. They are
        fitted to both strands if training uses both.
        """
        both = self.reverse_complement
        train, scored = ([self._tokens(name)] for name in ("train", split))
        found = baselines(train, scored, both_strands=both)
        if "valid" in self._datasets:
            valid = [self._tokens("valid")]
            found |= interpolated_baseline(train, valid, scored, both_strands=both)
        return found

    def _tokens(self, split: Split) -> UInt8[np.ndarray, "R L"]:
        dataset = self.dataset(split)
        return dataset.rows(np.arange(len(dataset)))[0]

    def _build(self) -> None:
        if self._datasets:
            return
        table = read_table(
            self.table,
            sequence=self.sequence,
            signals=self.signals or (),
            split=self.split_column,
            group=self.group,
            label=self.label_column,
        )
        tracks = table.values.ndim == 3
        if self._tracks not in (None, tracks):
            raise ValueError(
                f"TableDataModule.signal_tracks must be {str(tracks).lower()} for the values of "
                f"{self.table}, got {str(self._tracks).lower()}; leave data.signal_tracks out"
            )
        self.signal_tracks = tracks
        if self.clip is not None:
            table.values[:] = table.values.clip(*self.clip)
        longest = max(len(sequence) for sequence in table.sequences)
        if self.length is None:
            self.length = self.context_length = longest
        if longest > self.length:
            raise ValueError(
                f"TableDataModule.length must be at least that of the longest sequence of "
                f"{self.table}, {longest}, got {self.length}; raise data.length, or shorten the "
                "sequences"
            )
        parts = split_rows(table, self.split, self.split_seed)
        self._check_classes(table, parts["train"])
        self._datasets = {
            split: TableDataset(
                table.select(rows),
                self.length,
                classes=self.labels,
                reverse_complement=self.reverse_complement,
            )
            for split, rows in parts.items()
        }

    def _check_classes(self, table: SequenceTable, train: Int64[np.ndarray, " r"]) -> None:
        """Check that the cells of the classes are known, and that each occurs in training."""
        if self.labels is None or table.labels is None:
            return
        for row, label in zip(table.rows, table.labels, strict=True):
            if label and label not in self.labels:
                raise ValueError(
                    f"{self.table}: row {row}: {self.label_column} must be one of "
                    f"{describe_names(tuple(self.labels))}, got {label!r}; correct it, or add it "
                    "to data.labels"
                )
        learnt = {table.labels[row] for row in train}
        absent = [label for label in self.labels if label not in learnt]
        if absent:
            where = "only in valid or test" if absent[0] in table.labels else "in no row"
            raise ValueError(
                f"TableDataModule.labels must all occur in the training rows of {self.table}, got "
                f"{absent[0]!r} {where}; drop the name, or move some of its rows to training"
            )
