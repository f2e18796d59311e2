"""The data module for text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np
from jaxtyping import Int64, UInt64
from typing_extensions import override

from seqdiff.checks import check_fractions
from seqdiff.data import (
    SPLITS,
    HubTokenizer,  # noqa: F401  (a choice once imported)
    SequenceDataModule,
    Split,
    StringTokenizer,
)
from seqdiff.experts import BackoffModel, Block, ContextCounts, longest_order
from seqdiff.files import names_files
from seqdiff.likelihood import RowNats
from text.corpora.documents import UNITS, Reading, Unit
from text.corpora.ngrams import NGramModel
from text.corpora.preparation import prepare
from text.corpora.rows import DocumentRows, Layout, WrappedRows, describe_rows
from text.corpora.shards import TokenStore
from text.corpora.sources import Part, Source, find_part, published_split
from text.corpora.splits import check_documents, check_sources, deal
from text.tokenizers import (
    SubwordTokenizer,  # noqa: F401  (its subclasses are choices once imported)
)

LongDocuments = Literal["refuse", "truncate", "split"]

_BLOCK_ROWS = 1024
_COUNTED_TOKENS, _BACKOFF_TOKENS, _CHOICE_TOKENS = 1 << 22, 1 << 24, 1 << 20
_CHARACTERS = 512


class TextDataModule(SequenceDataModule):
    """Rows of text from local files or a published corpus.

    If ``wrap`` is true, documents are concatenated, each followed by the tokenizer's separator, and
    cut into rows. If the tokenizer has a frame, a row is ``[BOS] L-2 tokens [EOS]``. All positions
    count. If ``wrap`` is false, a row is ``[BOS] document [EOS]`` followed by padding, which is
    neither attended to nor counted. Training shuffles the documents in every epoch. For evaluation,
    the last wrapped row is padded, so that every token counts.

    If ``train`` names a published corpus, splits that you do not set are those of that corpus.
    Otherwise they are drawn from the documents of ``train``. Equal documents always get the same
    split.

    Args:
        tokenizer: Maps strings to ids and back.
        length: Number of tokens in a row, including the frame.
        train: Files or globs of .txt, .jsonl, .parquet and FASTA (.fa, .fasta, .faa, .fna) files,
            optionally with .gz; or the name of a published corpus such as ``wikitext-103``, see
            ``text.corpora.published``.
        valid: Validation data, in the same form.
        test: Test data, in the same form.
        split: Fractions of the documents of ``train`` that go to train, valid and test; 0 leaves
            that split out. If a split has files of its own, its fraction is added to training.
        split_seed: Seed of the split. It is independent of the seed of the run, because it defines
            the data.
        wrap: Whether documents are concatenated; otherwise each document gets its own row.
        long_documents: How to treat an unwrapped document longer than a row: raise an error,
            truncate it, or split it into several rows.
        document: Unit of text in a .txt file: ``file``, ``line``, or ``paragraph`` (paragraphs
            are separated by empty lines).
        field: Field of a .jsonl line, or column of a .parquet file, that holds the text.
        detokenizer: Rules that undo the word-level tokenization of an older corpus: ``wikitext``,
            ``ptb``, ``lm1b``, ``lambada``, ``scientific_papers`` or ``none``. If null, a published
            corpus uses its own rules, and other files use ``none``.
        num_processes: Number of processes that tokenize in parallel; null means one per core.
        batch_size: Training examples per device and forward pass.
        eval_batch_size: Batch size for validation and test; ``None`` means ``batch_size``.
        num_workers: Loader processes per device.

    Raises:
        ValueError: If a number is out of range.
    """

    def __init__(
        self,
        tokenizer: StringTokenizer,
        length: int,
        train: list[str] | str,
        *,
        valid: list[str] | str | None = None,
        test: list[str] | str | None = None,
        split: tuple[float, float, float] = (0.9, 0.05, 0.05),
        split_seed: int = 0,
        wrap: bool = True,
        long_documents: LongDocuments = "refuse",
        document: Unit = "line",
        field: str = "text",
        detokenizer: str | None = None,
        num_processes: int | None = None,
        batch_size: int = 32,
        eval_batch_size: int | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            tokenizer,
            batch_size=batch_size,
            eval_batch_size=eval_batch_size,
            num_workers=num_workers,
        )
        for name, least, got in (("length", 3, length), ("num_processes", 1, num_processes)):
            if got is not None and got < least:
                raise ValueError(
                    f"TextDataModule.{name} must be at least {least}, got {got}; set data.{name}"
                )
        choices = {"long_documents": get_args(LongDocuments), "document": UNITS}
        for name, got in (("long_documents", long_documents), ("document", document)):
            if got not in choices[name]:
                raise ValueError(
                    f"TextDataModule.{name} must be one of {', '.join(choices[name])}, "
                    f"got {got!r}; set data.{name}"
                )
        check_fractions(split)
        self.tokenizer: StringTokenizer = tokenizer
        self.token_name = tokenizer.token_name
        self.length = self.context_length = length
        self.given: dict[Split, list[str] | str | None] = {
            "train": train,
            "valid": valid,
            "test": test,
        }
        self.split, self.split_seed = split, split_seed
        self.wrap, self.long_documents = wrap, long_documents
        self.reading = Reading(document, field)
        self.detokenizer = detokenizer
        self.num_processes = num_processes
        self._datasets: dict[Split, WrappedRows | DocumentRows] = {}

    @classmethod
    def is_path(cls, argument: str, value: str) -> bool:
        """Tell whether the value of an argument names a file; see ``seqdiff.run.Located``."""
        return argument in SPLITS and names_files(value)

    @property
    @override
    def counting(self) -> tuple[str, str]:
        split = self.long_documents == "split"
        return describe_rows(self.tokenizer, self.length, wrap=self.wrap, split=split)

    def prepare(self) -> None:
        """Tokenize the files into the cache."""
        self._build()

    def dataset(self, split: Split) -> WrappedRows | DocumentRows:
        """Open a split; the first call reads the corpora and assigns documents to all splits.

        Raises:
            FileNotFoundError: If a file is missing.
            OSError: If the cache cannot be written.
            ValueError: If a file is invalid, there is no such split, or a requested split has no
                rows.
        """
        if split not in SPLITS:
            raise ValueError(
                f"TextDataModule.dataset must be one of {', '.join(SPLITS)}, got {split!r}"
            )
        self._build()
        if split not in self._datasets:
            there = list(self._datasets)
            other = "" if split == "train" else f"evaluate another with --split {there[-1]}, or "
            raise ValueError(
                f"TextDataModule.dataset: there is no {split} split, only {' and '.join(there)}; "
                f"{other}set data.{split} to files"
            )
        return self._datasets[split]

    def baselines(self, split: Split) -> dict[str, RowNats]:
        """Fit n-gram models to the training rows and score a split, row by row.

        The models are n-grams of order 0 to 4 for bytes and characters, or 0 and 1 for larger
        vocabularies, and a ``BackoffModel``. The order and the concentration of the
        ``BackoffModel`` are chosen on 2^20 tokens of the validation split. It is left out if there
        is no validation split. The models are fitted to evenly spaced rows with at most 2^22
        training tokens (2^24 for ``BackoffModel``).
        """
        train, scored = self.dataset("train"), self.dataset(split)
        vocab_size = self.tokenizer.vocab_size
        order = 4 if vocab_size <= _CHARACTERS else 1
        model = NGramModel(_blocks(train, _COUNTED_TOKENS), vocab_size, order)
        by_order, counted = model.nats_by_order(_blocks(scored))
        found = {f"n-gram order {k}": RowNats(by_order[k], counted) for k in range(order + 1)}
        if "valid" in self._datasets:
            learnt = _blocks(train, _BACKOFF_TOKENS)
            counts = ContextCounts(learnt, vocab_size, longest_order(vocab_size))
            valid = _blocks(self.dataset("valid"), _CHOICE_TOKENS)
            backoff = BackoffModel.choose(counts, valid)
            nats = np.concatenate([backoff.nats(*block) for block in _blocks(scored)])
            found[f"interpolated n-gram, order {backoff.order}"] = RowNats(nats, counted)
        return found

    def _build(self) -> None:
        if self._datasets:
            return
        parts = self._parts()
        stores: dict[tuple[Source, str], TokenStore] = {}
        for part in parts.values():
            key = (part.source, part.detokenizer)
            if key not in stores:
                stores[key] = prepare(
                    part.source,
                    self.tokenizer,
                    detokenizer=part.detokenizer,
                    num_processes=self.num_processes,
                )
        layout = Layout.of(self.tokenizer, self.length)
        chosen: dict[Split, tuple[Part, Int64[np.ndarray, " _"]]] = {}
        for split, part in parts.items():
            documents = np.arange(len(stores[part.source, part.detokenizer]))
            chosen[split] = part, documents[part.first : part.last]
        hashes: dict[Split, UInt64[np.ndarray, " _"]] = {
            split: stores[part.source, part.detokenizer].hashes[ids]
            for split, (part, ids) in chosen.items()
        }
        check_documents(hashes, parts)
        self._deal(chosen, stores)
        self._datasets = {
            split: self._rows(split, part, stores[part.source, part.detokenizer], ids, layout)
            for split, (part, ids) in sorted(chosen.items(), key=lambda e: SPLITS.index(e[0]))
        }

    def _parts(self) -> dict[Split, Part]:
        """Find the sources of the splits that have their own."""
        parts: dict[Split, Part] = {
            split: find_part(split, value, self.reading, self.detokenizer)
            for split in SPLITS
            for value in [self.given[split] or published_split(self.given["train"], split)]
            if value is not None
        }
        check_sources(parts)
        return parts

    def _deal(
        self,
        chosen: dict[Split, tuple[Part, Int64[np.ndarray, " _"]]],
        stores: dict[tuple[Source, str], TokenStore],
    ) -> None:
        """Assign training documents to the splits that have no source."""
        part, documents = chosen["train"]
        fractions = [
            0.0 if split in chosen else fraction
            for split, fraction in zip(SPLITS[1:], self.split[1:], strict=True)
        ]
        hashes = stores[part.source, part.detokenizer].hashes[documents]
        owner = deal(hashes, fractions[0], fractions[1], self.split_seed)
        chosen["train"] = part, documents[owner == 0]
        for place, (split, fraction) in enumerate(zip(SPLITS[1:], fractions, strict=True), start=1):
            if fraction > 0:
                chosen[split] = part, documents[owner == place]

    def _rows(
        self,
        split: Split,
        part: Part,
        store: TokenStore,
        documents: Int64[np.ndarray, " D"],
        layout: Layout,
    ) -> WrappedRows | DocumentRows:
        """Cut rows, and check that there is at least one."""
        if self.wrap:
            found = WrappedRows(store, documents, layout, keep_tail=split != "train")
        else:
            self._check_lengths(part, store, documents, layout)
            split_up = self.long_documents == "split"
            found = DocumentRows(store, documents, layout, split=split_up)
        if len(found) == 0:
            raise ValueError(
                f"TextDataModule: the {split} split has no row of {self.length} tokens, got "
                f"{len(documents):,} documents with {int(store.lengths[documents].sum()):,} tokens "
                f"from {part.source.name}; reduce data.length, set data.{split} to files, or set "
                "data.document to line or paragraph"
            )
        return found

    def _check_lengths(
        self, part: Part, store: TokenStore, documents: Int64[np.ndarray, " D"], layout: Layout
    ) -> None:
        lengths = store.lengths[documents]
        if self.long_documents == "refuse" and len(lengths) and lengths.max() > layout.body:
            longest = int(np.argmax(lengths))
            raise ValueError(
                f"TextDataModule.length must fit every document ({layout.body} of {self.length} "
                f"tokens are for text), got {int((lengths > layout.body).sum()):,} longer ones in "
                f"{part.source.name}, the longest with {int(lengths[longest]):,} tokens; increase "
                "data.length, set data.long_documents to split or truncate, or set data.wrap to "
                "true"
            )


def _blocks(dataset: WrappedRows | DocumentRows, most: int | None = None) -> Iterator[Block]:
    """Yield blocks of all rows, or of evenly spaced rows with about ``most`` tokens."""
    step = 1 if most is None else -(-len(dataset) * dataset.layout.length // most)
    chosen = np.arange(0, len(dataset), max(1, step))
    for first in range(0, len(chosen), _BLOCK_ROWS):
        yield dataset.rows(chosen[first : first + _BLOCK_ROWS])
