"""Tokenise a corpus once, in parallel, into shards that are found again by its content.

The shards of an interrupted preparation stay and the next one makes the others. One process at a
time prepares a corpus; others wait for it and use what it made.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn

from seqdiff.bars import Bar
from seqdiff.cache import make_cache_folder
from seqdiff.files import alone, write_bytes

from .corpora import Source
from .detokenizers import VERSION
from .encoding import Block, Encoder, encode_blocks
from .shards import TokenStore, open_shard
from .tokenizers import TextTokenizer, digest

_SHARD_CHARACTERS = 1 << 22
_BAR_FROM_CHARACTERS = 16 << 20
_MANIFEST = "manifest.json"


def prepare(
    source: Source,
    tokenizer: TextTokenizer,
    *,
    detokenizer: str = "none",
    num_processes: int | None = None,
) -> TokenStore:
    """Open a corpus as ids, tokenising it the first time.

    Args:
        source: The documents.
        tokenizer: What to encode them by.
        detokenizer: What mends them before, a key of ``DETOKENIZERS``.
        num_processes: That tokenise at a time; ``None`` is one for each core of this process.

    Raises:
        OSError: If the cache cannot be written.
        UnspellableError: If a document does not encode.
        ValueError: If a file is not sound, see ``read_documents``, or there is no document.
    """
    root = make_cache_folder()
    options = [str(VERSION), detokenizer, tokenizer.fingerprint, str(_SHARD_CHARACTERS)]
    folder = root / "text" / digest([*source.identity(root), *options])[:40]
    prepared = _open(folder)
    if prepared is not None:
        return prepared
    tokenizer.encode("")  # its files are missed now, not in an hour, and its special tokens too
    _ = tokenizer.frame
    total = _survey(source)
    folder.mkdir(parents=True, exist_ok=True)
    # Where there are no locks, two processes make the same shards, each whole.
    with alone(folder / "lock", _say_waiting):
        prepared = _open(folder)
        if prepared is None:
            _build(source, Encoder(tokenizer, detokenizer), folder, total, num_processes)
            prepared = _open(folder)
    assert prepared is not None
    return prepared


def _survey(source: Source) -> int:
    """Read a whole corpus, which is fast, before the slow part, and count its characters."""
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
            f"{source.name}: must hold a document with text, got none; check the files"
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


class _Job(NamedTuple):
    path: Path
    block: Block


def _build(
    source: Source, encoder: Encoder, folder: Path, total: int, num_processes: int | None
) -> None:
    """Make the shards that are missing or damaged, then the manifest."""
    paths: list[Path] = []
    with _bar(total >= _BAR_FROM_CHARACTERS, "tokenising") as bar:
        task = bar.add_task(source.name, total=total)

        def missing() -> Iterator[_Job]:
            for block in _blocks(source):
                paths.append(folder / f"{len(paths):06d}.shard")
                if _is_sound(paths[-1]):
                    bar.advance(task, block.characters)
                else:
                    yield _Job(paths[-1], block)

        if num_processes is None:
            num_processes = _cores()
        workers = min(num_processes, -(-total // _SHARD_CHARACTERS))
        for done in encode_blocks(encoder, missing(), workers):
            bar.advance(task, done)
    _write_manifest(folder, paths)


def _cores() -> int:
    """Count the cores that this process may use, as far as the platform tells."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _blocks(source: Source) -> Iterator[Block]:
    """Cut a corpus into blocks of whole documents, always at the same places."""
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
    """Open what was prepared; ``None`` if it is not complete and sound.

    A shard that has been touched since is read and compared with its checksum.
    """
    manifest = folder / _MANIFEST
    try:
        entries = json.loads(manifest.read_bytes())
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


def _say_waiting() -> None:
    Console(stderr=True).print("another process is tokenising this corpus: waiting for it")
