"""Arguments that several commands share, and their checks, which come before slow imports."""

from __future__ import annotations

import argparse
import math


def add_device(parser: argparse.ArgumentParser) -> None:
    """Declare ``--device``."""
    parser.add_argument("--device", help="cpu, cuda, ...; default: cuda if there is one, else cpu")


def check_count(owner: str, count: int) -> None:
    """Refuse a number of things that is not positive.

    Args:
        owner: Who was given it, for the message.
        count: The number.

    Raises:
        ValueError: If it is less than 1.
    """
    if count < 1:
        raise ValueError(f"{owner} must be at least 1, got {count}; raise it")


def check_seed(owner: str, seed: int) -> None:
    """Refuse a seed that does not fit in 32 bits.

    Args:
        owner: Who was given it, for the message.
        seed: The seed.

    Raises:
        ValueError: If it is not in [0, 2^32).
    """
    if not 0 <= seed < 2**32:
        raise ValueError(f"{owner} must be in [0, 2^32), got {seed}; choose one, such as 0")


def check_guidance(owner: str, strength: float | None) -> None:
    """Refuse a strength of guidance that is no strength.

    Args:
        owner: Who was given it, for the message.
        strength: It, if there is one.

    Raises:
        ValueError: If it is negative or not finite.
    """
    if strength is not None and not 0 <= strength < math.inf:
        raise ValueError(
            f"{owner} must be finite and at least 0, got {strength}; 1 samples given the label"
        )
