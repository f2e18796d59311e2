"""Assign documents to splits by a hash of their text, and reject splits that share text."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

import numpy as np
from jaxtyping import Int8, UInt64

from seqdiff.data import Split
from seqdiff.files import content_digest, make_cache_folder
from text.corpora.sources import Files, Part, Source

_U64 = np.uint64


def deal(
    hashes: UInt64[np.ndarray, " D"], valid: float, test: float, seed: int
) -> Int8[np.ndarray, " D"]:
    """Assign documents to splits.

    Equal texts get the same split. If documents are added, the others keep their splits.

    Args:
        hashes: Hashes of the documents' texts.
        valid: Probability of the valid split.
        test: Probability of the test split.
        seed: Seed of the assignment.

    Returns:
        0 for train, 1 for valid, 2 for test.
    """
    place = _mix(hashes ^ _mix(np.full_like(hashes, seed % 2**64))) / 2.0**64
    owner = np.zeros(len(hashes), dtype=np.int8)
    owner[place < valid + test] = 2
    owner[place < valid] = 1
    return owner


def _mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al. 2014, OOPSLA, figure 17)."""
    x = x + _U64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D049BB133111EB)
    return x ^ (x >> _U64(31))


def check_sources(parts: Mapping[Split, Part]) -> None:
    """Check, before slow work, that no file is in two splits, even under another name.

    Raises:
        OSError: If the cache cannot be written.
        ValueError: If two splits have a file with the same content, or are the same part of a
            source.
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
    """Check that no two splits have the same documents, whatever their order and file format.

    Args:
        hashes: Hashes of the documents of each split.
        parts: The source of each split.

    Raises:
        ValueError: If two splits have the same documents.
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
        f"data.{other} must hold different text from data.{one}, got {what} in both; set "
        f"data.{other} to other files, or remove it to draw it from data.train"
    )
