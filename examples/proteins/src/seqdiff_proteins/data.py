"""Proteins of a FASTA file or a table: of any length, or rows of an alignment."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seqdiff.checks import check_fractions
from seqdiff.data import SPLITS, SequenceDataModule, SequenceDataset, Split
from seqdiff.likelihood import RowNats
from seqdiff_proteins.alphabet import GAP, ProteinTokenizer
from seqdiff_proteins.baselines import site_profile, unigram
from seqdiff_proteins.fasta import read_fasta

TABLES = (".tsv", ".csv", ".tsv.gz", ".csv.gz")


class Protein(NamedTuple):
    """A protein of a file; ``split`` is ``None`` if the file does not say it."""

    name: str
    sequence: str
    split: str | None = None


def read_proteins(path: Path) -> list[Protein]:
    """Read a FASTA file, or a table (.tsv or .csv, perhaps .gz) with a column ``sequence``.

    A table may have the columns ``name`` and ``split``.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is not valid.
    """
    if not path.name.endswith(TABLES):
        return [Protein(*record) for record in read_fasta(path)]
    import pandas as pd

    if not path.is_file():
        raise FileNotFoundError(f"{path}: must be an existing file; check the path")
    tabs = "\t" if ".tsv" in path.suffixes else ","
    try:
        table = pd.read_csv(path, sep=tabs, dtype=str, keep_default_na=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{path}: must be a table ({error}); fetch it again") from error
    if "sequence" not in table:
        raise ValueError(
            f"{path}: must have a column sequence, got {', '.join(table)}; rename the column"
        )
    names = table["name"] if "name" in table else map(str, range(1, len(table) + 1))
    splits = table["split"] if "split" in table else [None] * len(table)
    return [Protein(*row) for row in zip(names, table["sequence"], splits, strict=True)]


class ProteinRows(SequenceDataset):
    """Rows of equal length in memory; shorter proteins are padded at the end."""

    def __init__(self, rows: Sequence[np.ndarray], length: int, unknown: int) -> None:
        self.tokens = np.full((len(rows), length), unknown, dtype=np.uint8)
        for row, ids in zip(self.tokens, rows, strict=True):
            row[: len(ids)] = ids
        self.lengths = np.array([len(ids) for ids in rows])
        self.unknown = unknown

    def __len__(self) -> int:
        return len(self.tokens)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Fetch rows; unknown residues and padding are not counted."""
        tokens = self.tokens[indices]
        return tokens, tokens != self.unknown

    def padding(self, indices: np.ndarray) -> np.ndarray | None:
        """Mark the positions after the end of shorter proteins."""
        if (self.lengths == self.tokens.shape[1]).all():
            return None
        return np.arange(self.tokens.shape[1]) >= self.lengths[indices, None]


class Proteins(SequenceDataModule):
    """Proteins of any length.

    Rows have ``length`` residues. A longer protein is cut into pieces of nearly equal length, so
    that every residue counts; a shorter one is padded, and padding is neither read nor counted.

    Without a column ``split``, a protein's split follows from a hash of its sequence. Proteins of
    one family then lie in all splits: group them by similarity, and write the split into a table.

    Args:
        path: FASTA file (.fa, .faa, .fasta), or table (.tsv, .csv) with the columns ``sequence``
            and perhaps ``name`` and ``split`` (train, valid, test); .gz may follow.
        length: Residues of a row.
        split: Fractions of the proteins that go to train, valid and test, without a column split.
        batch_size: Training rows per device and forward pass.
        eval_batch_size: The same for validation and test; by default ``batch_size``.
        num_workers: Loader processes per device.

    Raises:
        ValueError: If the length is not positive, or the fractions do not add up to 1.
    """

    token_name = "residue"
    file_suffix = "fasta"
    gaps = False

    def __init__(
        self,
        path: str,
        length: int,
        *,
        split: tuple[float, float, float] = (0.8, 0.1, 0.1),
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        tokenizer = ProteinTokenizer(self.gaps)
        super().__init__(
            tokenizer,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        if length < 1:
            raise ValueError(
                f"{type(self).__name__}.length must be at least 1, got {length}; set data.length"
            )
        check_fractions(split)
        self.tokenizer: ProteinTokenizer = tokenizer
        self.path, self.split = path, split
        self.length = self.context_length = length
        self._datasets: dict[str, ProteinRows] = {}

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Tell seqdiff which arguments name files, so that a run can be used from any folder."""
        return argument == "path"

    @property
    def counting(self) -> tuple[str, ...]:
        """Say what counts, for reports."""
        return (
            f"rows of {self.length:,} residues: longer proteins are cut into pieces, shorter ones "
            "padded; X, B, Z and J are given and not counted",
        )

    def dataset(self, split: Split) -> ProteinRows:
        """Open a split; the first call reads the file.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file or a sequence is not valid, or a split has no protein.
        """
        if not self._datasets:
            self._datasets = self._read()
        if split not in self._datasets:
            raise ValueError(
                f"{type(self).__name__}.dataset must be one of {', '.join(self._datasets)}, got "
                f"{split!r}; choose one"
            )
        return self._datasets[split]

    def baselines(self, split: Split) -> dict[str, RowNats]:
        """Score a split by the frequencies of residues in the training rows."""
        return {"unigram": unigram(self.dataset("train"), self.dataset(split))}

    def _read(self) -> dict[str, ProteinRows]:
        path = Path(self.path)
        rows: dict[str, list[np.ndarray]] = {name: [] for name in SPLITS}
        for protein in read_proteins(path):
            name = protein.split or self._deal(protein.sequence)
            if name not in rows:
                raise ValueError(
                    f"{path}: {protein.name}: the split must be one of {', '.join(SPLITS)}, got "
                    f"{name!r}; correct it"
                )
            try:
                rows[name] += self._cut(self.tokenizer.encode(protein.sequence))
            except ValueError as error:
                raise ValueError(f"{path}: {protein.name}: {error}") from None
        unknown = self.tokenizer.vocab_size
        for name, found in rows.items():
            if not any((ids != unknown).any() for ids in found):
                raise ValueError(
                    f"{path}: the {name} split must have a protein, got none; add proteins, or "
                    "set data.split"
                )
        return {name: ProteinRows(found, self.length, unknown) for name, found in rows.items()}

    def _deal(self, sequence: str) -> str:
        """Choose the split of a sequence; equal sequences, apart from gaps, get the same."""
        bare = sequence.upper().replace(GAP, "").replace(".", "")
        digest = hashlib.blake2b(bare.encode(), digest_size=8).digest()
        place = int.from_bytes(digest, "big") / 2**64
        return SPLITS[0 if place < self.split[0] else 1 if place < sum(self.split[:2]) else 2]

    def _cut(self, ids: np.ndarray) -> list[np.ndarray]:
        """Cut a protein into as few pieces as fit; an empty protein into none."""
        pieces = -(-len(ids) // self.length)
        return np.array_split(ids, pieces) if pieces else []


class AlignedProteins(Proteins):
    """Rows of an alignment, all ``length`` columns long; a gap is a token like the residues.

    Args:
        path: See ``Proteins``; FASTA files of alignments have gaps.
        length: Columns of the alignment.
        split: See ``Proteins``.
        batch_size: See ``Proteins``.
        eval_batch_size: See ``Proteins``.
        num_workers: See ``Proteins``.

    Raises:
        ValueError: See ``Proteins``.
    """

    gaps = True

    @property
    def counting(self) -> tuple[str, ...]:
        """Say what counts, for reports."""
        return (f"rows of {self.length:,} columns; gaps count, X, B, Z and J are given",)

    def baselines(self, split: Split) -> dict[str, RowNats]:
        """Score a split by the frequencies of residues, in all columns and in each column."""
        profile = site_profile(self.dataset("train"), self.dataset(split))
        return {**super().baselines(split), "site profile": profile}

    def _cut(self, ids: np.ndarray) -> list[np.ndarray]:
        if len(ids) != self.length:
            raise ValueError(
                f"a row of the alignment must have {self.length:,} columns, got {len(ids):,}; "
                "align it, or set data.length"
            )
        return [ids]
