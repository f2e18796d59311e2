"""Rows of tokens, cut from concatenated documents or with one document each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from seqdiff.data import SequenceDataset, StringTokenizer
from text.corpora.shards import TokenStore


@dataclass(frozen=True)
class Layout:
    """Layout of a row around the ids of documents.

    Attributes:
        length: Ids of a row.
        frame: Ids that open and close a row, if any.
        separator: Id that follows a document in a wrapped row, if any.
        pad: Id of padding.
    """

    length: int
    frame: tuple[int, int] | None
    separator: int | None
    pad: int

    @classmethod
    def of(cls, tokenizer: StringTokenizer, length: int) -> Layout:
        """Take the special ids of a tokenizer; padding has the id of the mask."""
        return cls(length, tokenizer.frame, tokenizer.separator, tokenizer.vocab_size)

    @property
    def body(self) -> int:
        """Number of ids of a row that come from documents."""
        return self.length if self.frame is None else self.length - 2

    def empty(self, num: int) -> tuple[Int64[np.ndarray, "{num} _"], Int64[np.ndarray, "{num} _"]]:
        """Make rows of padding; return them and a view of the part for documents."""
        tokens = np.full((num, self.length), self.pad, dtype=np.int64)
        return tokens, tokens if self.frame is None else tokens[:, 1:-1]

    def close(self, tokens: Int64[np.ndarray, "B L"], sizes: Int64[np.ndarray, " B"]) -> None:
        """Write the frame around the first ``sizes`` ids of each body."""
        if self.frame is not None:
            tokens[:, 0] = self.frame[0]
            tokens[np.arange(len(tokens)), 1 + sizes] = self.frame[1]

    def padding(self, sizes: Int64[np.ndarray, " B"]) -> Bool[np.ndarray, "B L"]:
        """Mark the positions after the last id of each row."""
        last = sizes if self.frame is None else sizes + 2
        return np.arange(self.length) >= last[:, None]

    def counted(
        self, tokens: Int64[np.ndarray, "B L"], sizes: Int64[np.ndarray, " B"]
    ) -> Bool[np.ndarray, "B L"]:
        """Mark the known ids; unknown text has the id of padding, but is attended to."""
        return ~self.padding(sizes) & (tokens != self.pad)


def describe_rows(
    tokenizer: StringTokenizer, length: int, *, wrap: bool, split: bool
) -> tuple[str, str]:
    """Describe how rows are cut and which positions count."""
    if wrap:
        name = tokenizer.separator_name
        between = "" if name is None else f", each followed by the separator {name}"
        rows = f"rows of {length:,} tokens are cut from concatenated documents{between}"
        counts = "all positions count" + ("" if name is None else ", including separators")
    else:
        each = "one document or a piece of one" if split else "one document"
        rows = f"each row has {each}, with at most {length:,} tokens"
        counts = "padding is neither attended to nor counted"
    names = tokenizer.special
    framed = "rows have no BOS and EOS tokens"
    if names is not None:
        framed = f"the BOS and EOS tokens of a row, {names[0]} and {names[1]}, count"
    elif tokenizer.frame is not None:
        framed = "the BOS and EOS tokens of a row count"
    return rows, f"{counts}; {framed}"


class WrappedRows(SequenceDataset):
    """Rows cut from concatenated documents, each followed by the separator.

    A row is [BOS] L-2 ids [EOS]. Training shuffles the documents in every epoch, so the cuts differ
    between epochs.
    Source: Sahoo et al. 2024, arXiv:2406.07524, appendix D.
    """

    def __init__(
        self,
        store: TokenStore,
        documents: Int64[np.ndarray, " _"],
        layout: Layout,
        *,
        keep_tail: bool,
    ) -> None:
        """Concatenate documents.

        Args:
            store: Tokenized documents.
            documents: Indices of the documents, in order.
            layout: Layout of a row.
            keep_tail: Whether to keep and pad an incomplete last row, for an evaluation that counts
                every token.
        """
        self.store, self.documents, self.layout = store, documents, layout
        self.keep_tail = keep_tail
        self._ends = np.cumsum(store.lengths[documents] + (layout.separator is not None))
        total = int(self._ends[-1]) if len(documents) else 0
        self._total = total if keep_tail else total - total % layout.body

    def __len__(self) -> int:
        """Number of rows."""
        return -(-self._total // self.layout.body)

    @property
    def num_counted(self) -> int:
        """Number of positions that count, in all rows, if all ids are known."""
        return self._total + len(self) * (self.layout.length - self.layout.body)

    def _sizes(self, indices: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
        return np.minimum(self._total - indices * self.layout.body, self.layout.body)

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Fetch rows; every known id counts, including the frame and the separators."""
        tokens, bodies = self.layout.empty(len(indices))
        sizes = self._sizes(indices)
        first = indices * self.layout.body
        documents = np.searchsorted(self._ends, first, side="right")
        for body, start, document, size in zip(
            bodies, first.tolist(), documents.tolist(), sizes.tolist(), strict=True
        ):
            self._fill(body[:size], start, document)
        self.layout.close(tokens, sizes)
        return tokens, self.layout.counted(tokens, sizes)

    def _fill(self, body: np.ndarray, start: int, place: int) -> None:
        """Fill a body with ids from position ``start`` on, which is in document ``place``."""
        if self.layout.separator is not None:
            body[:] = self.layout.separator
        filled = 0
        while filled < len(body):
            document, end = int(self.documents[place]), int(self._ends[place])
            length = int(self.store.lengths[document])
            skipped = start + filled - (end - length - (self.layout.separator is not None))
            ids = self.store.read(document, skipped, min(length, skipped + len(body) - filled))
            body[filled : filled + len(ids)] = ids
            filled, place = end - start, place + 1

    def padding(self, indices: Int64[np.ndarray, " B"]) -> Bool[np.ndarray, "B L"] | None:
        """Mark the padding of the last row; ``None`` if all rows are full."""
        sizes = self._sizes(indices)
        return None if (sizes == self.layout.body).all() else self.layout.padding(sizes)

    def epoch(self, seed: int, number: int) -> WrappedRows:
        """Return the same documents in another order."""
        # The third number makes this order independent of the order in which rows are streamed.
        order = np.random.default_rng((seed, number, 1)).permutation(self.documents)
        return WrappedRows(self.store, order, self.layout, keep_tail=self.keep_tail)


class DocumentRows(SequenceDataset):
    """Rows with one framed document each; the padding is neither attended to nor counted."""

    def __init__(
        self,
        store: TokenStore,
        documents: Int64[np.ndarray, " _"],
        layout: Layout,
        *,
        split: bool = False,
    ) -> None:
        """Assign documents to rows.

        Args:
            store: Tokenized documents.
            documents: Indices of the documents, in order.
            layout: Layout of a row.
            split: Whether to split a document longer than a row into several framed rows;
                otherwise it is truncated.
        """
        self.store, self.documents, self.layout = store, documents, layout
        pieces = np.ones(len(documents), dtype=np.int64)
        if split:
            pieces = np.maximum(1, -(-store.lengths[documents] // layout.body))
        self._document = np.repeat(documents, pieces)
        piece = np.arange(len(self._document)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self._first = piece * layout.body

    def __len__(self) -> int:
        """Number of rows."""
        return len(self._document)

    @property
    def num_counted(self) -> int:
        """Number of positions that count, in all rows, if all ids are known."""
        bodies = int(self._sizes(np.arange(len(self))).sum())
        return bodies + len(self) * (self.layout.length - self.layout.body)

    def _sizes(self, indices: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
        left = self.store.lengths[self._document[indices]] - self._first[indices]
        return np.minimum(left, self.layout.body)

    def rows(
        self, indices: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Fetch rows; all known ids count, including the frame; padding does not."""
        tokens, bodies = self.layout.empty(len(indices))
        sizes = self._sizes(indices)
        places = (self._document[indices].tolist(), self._first[indices].tolist(), sizes.tolist())
        for body, document, first, size in zip(bodies, *places, strict=True):
            body[:size] = self.store.read(document, first, first + size)
        self.layout.close(tokens, sizes)
        return tokens, self.layout.counted(tokens, sizes)

    def padding(self, indices: Int64[np.ndarray, " B"]) -> Bool[np.ndarray, "B L"]:
        """Mark the padding after each document."""
        return self.layout.padding(self._sizes(indices))
