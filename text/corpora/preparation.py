"""Tokenize a corpus once, in parallel, into shards in a cache keyed by the content of the corpus.

Finished shards are kept if the preparation is interrupted. The next preparation only writes the
missing shards. One process at a time prepares a corpus. Other processes wait for it and use its
shards.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from seqdiff.data import StringTokenizer, digest
from seqdiff.files import alone, make_cache_folder, parse_json, write_bytes
from seqdiff.progress import Bar
from text.corpora.detokenizers import DETOKENIZERS, VERSION
from text.corpora.shards import TokenStore, open_shard, write_shard
from text.corpora.sources import Source


class UnspellableError(ValueError):
    """A document that a tokenizer cannot encode."""


@dataclass(frozen=True)
class Block:
    """Consecutive documents of a corpus.

    Attributes:
        source: Name of the corpus in messages.
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
    """How documents are detokenized and encoded.

    Attributes:
        tokenizer: Encodes the document.
        detokenizer: Key of ``DETOKENIZERS``, applied first.
    """

    tokenizer: StringTokenizer
    detokenizer: str

    def write(self, path: Path, block: Block) -> int:
        """Encode a block into a shard; return its size in characters.

        Raises:
            OSError: If the shard cannot be written.
            UnspellableError: If a document cannot be encoded.
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
        top = max((int(ids[place].max()) for place in kept), default=0)
        write_shard(
            path,
            [ids[place] for place in kept],
            [int.from_bytes(found, "little") for found in hashes],
            max(self.tokenizer.vocab_size, top + 1),  # unknown text has the id of the mask
        )
        return block.characters

    def _blame(self, block: Block, texts: list[str], error: ValueError) -> ValueError:
        """Return an error that names the document that cannot be encoded."""
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
    """Encode blocks in parallel, with a bounded number of them in memory.

    Args:
        encoder: Encodes each block.
        jobs: Pairs of the path of a shard and its block.
        num_processes: Worker processes; with 1, this process does the work.

    Yields:
        The number of characters of each finished block.

    Raises:
        OSError: If a shard cannot be written, or a process was killed.
        UnspellableError: If a document cannot be encoded.
    """
    if num_processes <= 1:
        for path, block in jobs:
            yield encoder.write(path, block)
        return
    # Forking is unsafe, because this process has threads.
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
            "a tokenizing process was killed, perhaps because memory ran out; run the same command "
            "again with a lower data.num_processes (finished shards are kept)"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


_worker: Encoder | None = None


def _start_worker(encoder: Encoder) -> None:
    """Prepare a worker process, which ends when its parent ends."""
    global _worker
    _worker = encoder
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # the parent finishes the current blocks, then stops
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _write(path: Path, block: Block) -> int:
    assert _worker is not None
    return _worker.write(path, block)


_SHARD_CHARACTERS = 1 << 22
_BAR_FROM_CHARACTERS = 16 << 20
_MANIFEST = "manifest.json"


def prepare(
    source: Source,
    tokenizer: StringTokenizer,
    *,
    detokenizer: str = "none",
    num_processes: int | None = None,
) -> TokenStore:
    """Open a corpus as ids; the first call tokenizes it.

    Args:
        source: The documents.
        tokenizer: Encodes them.
        detokenizer: Key of ``DETOKENIZERS``, applied first.
        num_processes: Processes that tokenize in parallel; ``None`` means one for each core that
            this process may use.

    Raises:
        OSError: If the cache cannot be written.
        UnspellableError: If a document cannot be encoded.
        ValueError: If a file is invalid, see ``read_documents``, or there is no document.
    """
    root = make_cache_folder()
    options = [str(VERSION), detokenizer, tokenizer.fingerprint, str(_SHARD_CHARACTERS)]
    folder = root / "text" / digest([*source.identity(root), *options])[:40]
    prepared = _open(folder)
    if prepared is not None:
        return prepared
    tokenizer.encode("")  # raises an error at once if files or special tokens are missing
    _ = tokenizer.frame
    total = _survey(source)
    folder.mkdir(parents=True, exist_ok=True)
    # Where file locks do not exist, two processes may write the same shards. Each write is
    # atomic.
    say = "waiting for another process that is tokenizing this corpus"
    with alone(folder / "lock", lambda: Console(stderr=True).print(say)):
        prepared = _open(folder)
        if prepared is None:
            _build(source, Encoder(tokenizer, detokenizer), folder, total, num_processes)
            prepared = _open(folder)
    assert prepared is not None
    return prepared


def _survey(source: Source) -> int:
    """Read and check a whole corpus, before the slow tokenization; return its characters."""
    total = 0
    bar = _bar(True, "reading")
    task = bar.add_task(source.name, total=None)
    with ExitStack() as shown:
        for document in source.documents():
            if total < _BAR_FROM_CHARACTERS <= total + len(document):
                shown.enter_context(bar)
            total += len(document)
            bar.update(task, completed=total)
    if total == 0:
        raise ValueError(
            f"{source.name}: must hold at least one document with text, got none; check the files"
        )
    return total


def _bar(shown: bool, verb: str) -> Bar:
    return Bar(
        TextColumn(f"{verb} {{task.description}}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        disable=not shown,
    )


def _build(
    source: Source, encoder: Encoder, folder: Path, total: int, num_processes: int | None
) -> None:
    """Write the shards that are missing or damaged, then the manifest."""
    paths: list[Path] = []
    with _bar(total >= _BAR_FROM_CHARACTERS, "tokenising") as bar:
        task = bar.add_task(source.name, total=total)

        def missing() -> Iterator[tuple[Path, Block]]:
            for block in _blocks(source):
                paths.append(folder / f"{len(paths):06d}.shard")
                if _is_sound(paths[-1]):
                    bar.advance(task, block.characters)
                else:
                    yield paths[-1], block

        workers = min(
            _cores() if num_processes is None else num_processes, -(-total // _SHARD_CHARACTERS)
        )
        for done in encode_blocks(encoder, missing(), workers):
            bar.advance(task, done)
    _write_manifest(folder, paths)


def _cores() -> int:
    """Count the cores that this process may use, or all cores if the platform cannot tell."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _blocks(source: Source) -> Iterator[Block]:
    """Cut a corpus into blocks of whole documents; the cuts depend only on the corpus."""
    documents: list[str] = []
    first = size = 0
    for document in source.documents():
        documents.append(document)
        size += len(document)
        if size >= _SHARD_CHARACTERS:
            yield Block(source.name, first, documents, size)
            first, size, documents = first + len(documents), 0, []
    if documents:
        yield Block(source.name, first, documents, size)


def _is_sound(path: Path) -> bool:
    try:
        open_shard(path, check=True)
    except (FileNotFoundError, ValueError):
        return False
    return True


def _write_manifest(folder: Path, paths: list[Path]) -> None:
    entries = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in paths]
    write_bytes(folder / _MANIFEST, json.dumps(entries).encode())


def _open(folder: Path) -> TokenStore | None:
    """Open a prepared corpus; ``None`` if shards are missing or damaged.

    If a shard was modified after the manifest was written, its checksum is verified.
    """
    manifest = folder / _MANIFEST
    try:
        entries = parse_json(manifest.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    paths = [folder / name for name, *_ in entries]
    touched = False
    for path, (_, size, modified) in zip(paths, entries, strict=True):
        if not path.is_file() or path.stat().st_size != size:
            return None
        if path.stat().st_mtime_ns != modified:
            if not _is_sound(path):
                return None
            touched = True
    if touched:
        _write_manifest(folder, paths)
    return TokenStore(paths)
