"""Refuse splits that hold the same text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from jaxtyping import UInt64

from seqdiff.cache import content_digest, make_cache_folder
from seqdiff.data.dataset import Split

from .corpora import Files, Part, Source


def check_sources(parts: Mapping[Split, Part]) -> None:
    """Refuse a file in two splits, under whatever name, before anything slow.

    Args:
        parts: Of the splits with a source of their own.

    Raises:
        OSError: If the cache cannot be written.
        ValueError: If two splits share a file's content, or are the same part of a source.
    """
    for one, other in combinations(parts, 2):
        a, b = parts[one], parts[other]
        if a.source == b.source:
            if a.first == b.first:
                raise _same(one, other, a.source.name)
            continue
        first, second = _digests(a.source), _digests(b.source)
        for digest in first.keys() & second.keys():
            names = dict.fromkeys((first[digest], second[digest]))
            raise _same(one, other, " and its copy ".join(names))


def check_documents(
    hashes: Mapping[Split, UInt64[np.ndarray, " _"]], parts: Mapping[Split, Part]
) -> None:
    """Refuse two splits with the same documents, in whatever order and kind of file.

    Args:
        hashes: Of each split's documents.
        parts: Where they are.

    Raises:
        ValueError: If there are two.
    """
    for one, other in combinations(hashes, 2):
        a, b = hashes[one], hashes[other]
        if len(a) == len(b) > 0 and np.array_equal(np.sort(a), np.sort(b)):
            names = (parts[one].source.name, parts[other].source.name)
            raise _same(one, other, " and ".join(names) + " with the same documents")


def _digests(source: Source) -> dict[str, str]:
    if not isinstance(source, Files):
        return {}
    folder = make_cache_folder()
    return {content_digest(path, folder): str(path.resolve()) for path in source.paths}


def _same(one: Split, other: Split, what: str) -> ValueError:
    return ValueError(
        f"data.{other} must hold other text than data.{one}, got {what} in both; "
        f"name other files, or leave data.{other} out to deal it from data.train"
    )
