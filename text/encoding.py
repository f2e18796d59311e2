"""Tokenise blocks of documents in parallel processes, each block into a shard of its own."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from .detokenizers import DETOKENIZERS
from .shards import write_shard
from .tokenizers import TextTokenizer


class UnspellableError(ValueError):
    """A document that a tokenizer does not encode, which another would."""


@dataclass(frozen=True)
class Block:
    """Consecutive documents of a corpus.

    Attributes:
        source: What messages call the corpus.
        first: Number of the first document.
        documents: Their texts.
        characters: Their total length.
    """

    source: str
    first: int
    documents: list[str]
    characters: int


@dataclass(frozen=True)
class Encoder:
    """What is done to a document.

    Attributes:
        tokenizer: What encodes it.
        detokenizer: What mends it before, a key of ``DETOKENIZERS``.
    """

    tokenizer: TextTokenizer
    detokenizer: str

    def write(self, path: Path, block: Block) -> int:
        """Encode a block into a shard; give its size in characters.

        Raises:
            OSError: If the shard cannot be written.
            UnspellableError: If a document does not encode.
        """
        mend = DETOKENIZERS[self.detokenizer]
        texts = [mend(document) for document in block.documents]
        try:
            ids = self.tokenizer.encode_many(texts)
        except ValueError as error:
            raise self._blame(block, texts, error) from error
        kept = [place for place, found in enumerate(ids) if len(found)]
        hashes = [
            hashlib.blake2b(texts[place].encode("utf-8"), digest_size=8).digest() for place in kept
        ]
        write_shard(
            path,
            [ids[place] for place in kept],
            [int.from_bytes(found, "little") for found in hashes],
            self.tokenizer.vocab_size,
        )
        return block.characters

    def _blame(self, block: Block, texts: list[str], error: ValueError) -> ValueError:
        """Name the document that does not encode."""
        for place, text in enumerate(texts):
            try:
                self.tokenizer.encode(text)
            except ValueError as own:
                number = block.first + place + 1
                return UnspellableError(f"{block.source}: document {number}: {own}")
        return error


def encode_blocks(
    encoder: Encoder, jobs: Iterable[tuple[Path, Block]], num_processes: int
) -> Iterator[int]:
    """Encode blocks, few of them in memory at a time.

    Args:
        encoder: What is done to them.
        jobs: Where to, and what.
        num_processes: 1 works in this process.

    Yields:
        The characters of each block that is done.

    Raises:
        OSError: If a shard cannot be written, or a process was killed.
        UnspellableError: If a document does not encode.
    """
    if num_processes <= 1:
        for path, block in jobs:
            yield encoder.write(path, block)
        return
    # Not by fork: this process has threads.
    pool = ProcessPoolExecutor(
        num_processes, multiprocessing.get_context("spawn"), _start_worker, (encoder,)
    )
    try:
        pending: set[Future[int]] = set()
        for path, block in jobs:
            pending.add(pool.submit(_write, path, block))
            if len(pending) >= num_processes + 1:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in done)
        for future in pending:
            yield future.result()
    except BrokenProcessPool as error:
        raise OSError(
            "a process that tokenises was killed, perhaps for its memory; what is done is kept: "
            "run the same again with a lower data.num_processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker: Encoder | None = None


def _start_worker(encoder: Encoder) -> None:
    """Prepare a process, which is not to outlive its parent."""
    global _worker
    _worker = encoder
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent lets a block end, and stops
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write(path: Path, block: Block) -> int:
    assert _worker is not None
    return _worker.write(path, block)
