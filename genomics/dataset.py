"""Windows of a genome as rows of tokens."""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float64, Int64, Integer, UInt8
from numpy.lib.stride_tricks import sliding_window_view

from seqdiff.data.dataset import SequenceDataset

from .alphabet import MASK_ID, reverse_complement
from .cache import Genome
from .intervals import Windows

_CHUNK_BASES = 1 << 24


class WindowDataset(SequenceDataset):
    """Windows read straight from the encoded genome; those without a known base are left out.

    Attributes:
        genome: Where the bases are.
        length: Tokens of a row.
        reverse_complement: Whether training rows are read from a random strand.
        record_labels: Class of each record of the genome; ``None`` without classes.
    """

    def __init__(
        self,
        genome: Genome,
        windows: Windows,
        *,
        reverse_complement: bool = False,
        record_labels: Int64[np.ndarray, " R"] | None = None,
    ) -> None:
        """Keep the windows that hold a known base.

        Args:
            genome: Where the bases are.
            windows: Which stretches of it; each must lie inside its chromosome.
            reverse_complement: Read training rows from either strand with probability 1/2.
            record_labels: Class of each record of the genome; its windows have the same.
        """
        self.genome = genome
        self.length = windows.length
        self.reverse_complement = reverse_complement
        self.record_labels = record_labels
        self._starts = genome.offsets[windows.chrom] + windows.start
        sizes = (windows.end - windows.start).astype(np.int32)
        self._sizes = sizes if (sizes < self.length).any() else None
        self._keep(self._has_known_base())

    def __len__(self) -> int:
        """Count the windows."""
        return len(self._starts)

    @property
    def windows(self) -> Windows:
        """The windows that are left, in order."""
        chrom = self._records(self._starts)
        start = self._starts - self.genome.offsets[chrom]
        sizes = self.length if self._sizes is None else self._sizes
        return Windows(chrom, start, start + sizes, self.length)

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[UInt8[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Fetch rows; unknown bases, and what lies past a window's end, are the mask."""
        starts, ids = self._starts[indices], self.genome.ids
        if self._sizes is None:
            tokens = sliding_window_view(ids, self.length)[starts]
            return tokens, tokens != MASK_ID
        tokens = np.full((len(starts), self.length), MASK_ID, dtype=np.uint8)
        for row, start, size in zip(tokens, starts, self._sizes[indices], strict=True):
            row[:size] = ids[start : start + size]
        return tokens, tokens != MASK_ID

    def labels(self, indices: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"] | None:
        """Fetch the classes of the records that rows come from."""
        if self.record_labels is None:
            return None
        return self.record_labels[self._records(self._starts[indices])]

    def classes(self) -> set[int]:
        """List the classes that some window has."""
        if self.record_labels is None:
            return set()
        return set(self.record_labels[np.unique(self._records(self._starts))].tolist())

    def _records(self, starts: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.genome.offsets, starts, side="right") - 1

    def augment(
        self,
        tokens: Integer[np.ndarray, "B L"],
        loss_mask: Bool[np.ndarray, "B L"],
        uniform: Float64[np.ndarray, " B"],
    ) -> tuple[Integer[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Replace each row by its reverse complement with probability 1/2, if so asked."""
        if not self.reverse_complement:
            return tokens, loss_mask
        flipped = uniform < 0.5
        tokens, loss_mask = tokens.copy(), loss_mask.copy()
        tokens[flipped] = reverse_complement(tokens[flipped])
        loss_mask[flipped] = loss_mask[flipped, ::-1]
        return tokens, loss_mask

    def _has_known_base(self) -> np.ndarray:
        """Read whole windows only where the first base is unknown: those are few."""
        known = self.genome.ids[self._starts] != MASK_ID
        doubtful = np.flatnonzero(~known)
        for part in np.array_split(doubtful, len(doubtful) * self.length // _CHUNK_BASES + 1):
            known[part] = self.rows(part)[1].any(axis=1)
        return known

    def _keep(self, chosen: np.ndarray) -> None:
        self._starts = self._starts[chosen]
        self._sizes = None if self._sizes is None else self._sizes[chosen]
