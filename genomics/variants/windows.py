"""The stretch of a genome around a variant, with the reference and with the alternative allele."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, UInt8

from genomics.io import Genome, Variant, describe_names
from genomics.sequence import BASES, MASK_ID, decode, encode

_LETTERS = set(BASES)


@dataclass(frozen=True)
class AlleleWindows:
    """A window of a genome with either allele in it, equally long.

    Attributes:
        ref: Ids ``0..4`` with the reference allele.
        alt: Ids with the alternative; all else is as in the genome, from the same base on, except
            where the end of the chromosome is too near.
        changed: Where both differ, if the alleles are equally long; else ``None``, for then no
            position holds the one or the other.
    """

    ref: UInt8[np.ndarray, " W"]
    alt: UInt8[np.ndarray, " W"]
    changed: Bool[np.ndarray, " W"] | None


class Refusal(NamedTuple):
    """Why an allele cannot be scored.

    Attributes:
        reason: For a reader.
        mismatch: Whether it is that REF is not what the genome holds.
    """

    reason: str
    mismatch: bool = False


def refusal(variant: Variant, genome: Genome, window: int) -> Refusal | None:
    """Say why an allele cannot be scored, if it cannot.

    Args:
        variant: The allele.
        genome: What REF is compared with.
        window: Most bases of a window.

    Raises:
        ValueError: If the genome has no such chromosome, so that the files do not go together.
    """
    if variant.chrom not in genome.names:
        raise ValueError(
            f"chromosome {variant.chrom!r} is not in the FASTA file, which has "
            f"{describe_names(genome.names)}; use matching names or remove the line"
        )
    chromosome, start, end = genome.record(variant.chrom), variant.start, _end(variant)
    if not variant.ref or not set(variant.ref) <= _LETTERS:
        return Refusal(f"REF must be letters of {BASES}, got {_short(variant.ref)!r}")
    if not 0 <= start < end <= len(chromosome):
        return Refusal(f"POS lies outside {variant.chrom}, which has {len(chromosome)} bases")
    found = decode(chromosome[start:end])
    if found != variant.ref:
        return Refusal(f"REF {_short(variant.ref)} is {_short(found)} in the genome", mismatch=True)
    if not variant.alt or not set(variant.alt) <= _LETTERS:
        return Refusal(f"ALT must be letters of {BASES}, got {_short(variant.alt)!r}")
    if variant.alt == variant.ref:
        return Refusal("ALT is REF")
    room = _room(variant, len(chromosome), window)
    longest = max(len(variant.ref), len(variant.alt))
    if longest >= room:
        return Refusal(
            f"an allele of {longest} bases leaves no context in a window of {max(room, 0)}"
        )
    windows = allele_windows(variant, genome, window)
    counts = [int((ids != MASK_ID).sum()) for ids in (windows.ref, windows.alt)]
    if counts[0] != counts[1]:
        return Refusal(
            f"N nearby leaves {counts[0]} known bases in the window with REF, {counts[1]} with ALT"
        )
    return None


def allele_windows(variant: Variant, genome: Genome, window: int) -> AlleleWindows:
    """Cut a window around a variant that ``refusal`` has nothing against.

    The variant stands in the middle, except near the ends of its chromosome, where the window is
    moved inside. On a chromosome too short for it the window takes all that both alleles leave.

    Args:
        variant: The allele.
        genome: Where to.
        window: Most bases.
    """
    chromosome, start, end = genome.record(variant.chrom), variant.start, _end(variant)
    size = _room(variant, len(chromosome), window)
    before, after = chromosome[max(0, start - size) : start], chromosome[end : end + size]
    before_window = len(before) - (size - max(len(variant.ref), len(variant.alt))) // 2
    ref, alt = (
        _cut(np.concatenate((before, encode(allele), after)), before_window, size)
        for allele in (variant.ref, variant.alt)
    )
    same_length = len(variant.ref) == len(variant.alt)
    return AlleleWindows(ref, alt, ref != alt if same_length else None)


def _cut(ids: np.ndarray, first: int, size: int) -> np.ndarray:
    """Cut a window, moved inside where it would stand out at an end."""
    first = min(max(0, first), len(ids) - size)
    return ids[first : first + size]


def _end(variant: Variant) -> int:
    return variant.start + len(variant.ref)


def _room(variant: Variant, length: int, window: int) -> int:
    """Bases of a window for which both alleles have enough of a chromosome."""
    return min(window, length - max(0, len(variant.ref) - len(variant.alt)))


def _short(letters: str) -> str:
    """Letters for a message, the end of long ones left out."""
    return letters if len(letters) <= 20 else f"{letters[:17]}... ({len(letters)} bases)"
