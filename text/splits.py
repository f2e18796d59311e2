"""Dealing documents to train, valid and test by a hash of their text."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int8, UInt64

_U64 = np.uint64


def check_shares(shares: tuple[float, float, float]) -> None:
    """Check shares of train, valid and test.

    Raises:
        ValueError: If one is negative or no number, or they do not add up to 1.
    """
    if not (all(share >= 0 for share in shares) and abs(sum(shares) - 1) <= 1e-6):
        raise ValueError(
            f"split must be three shares of train, valid and test that add up to 1, "
            f"got {list(shares)}; for example [0.9, 0.05, 0.05]"
        )


def deal(
    hashes: UInt64[np.ndarray, " D"], valid: float, test: float, seed: int
) -> Int8[np.ndarray, " D"]:
    """Deal documents so that equal texts go together; adding documents moves no other.

    Args:
        hashes: Of the documents' texts.
        valid: Probability of the valid split.
        test: Probability of the test split.
        seed: Chooses another deal.

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
