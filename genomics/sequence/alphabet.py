"""The DNA alphabet: A, C, G, T as ids 0..3; N and every other IUPAC code as the mask, 4.

An ambiguous base is unknown, not wrong: it enters as the absorbing state and never counts. Anything
outside the IUPAC nucleotide code (NC-IUB 1984, Nucleic Acids Research 13:3021) is an error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Integer, UInt8

BASES = "ACGT"
IUPAC = {
    **{base: base for base in BASES},
    **{"R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC"},
    **{"B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT"},
}
AMBIGUOUS = "".join(IUPAC)[len(BASES) :]
MASK_ID = len(BASES)
INVALID = 255

_DECODE = np.frombuffer((BASES + "N").encode(), dtype=np.uint8)
_COMPLEMENT = np.array([3, 2, 1, 0, MASK_ID], dtype=np.uint8)


def _encode_table() -> bytes:
    table = bytearray([INVALID]) * 256
    for i, letter in enumerate(BASES):
        table[ord(letter)] = table[ord(letter.lower())] = i
    for letter in AMBIGUOUS:
        table[ord(letter)] = table[ord(letter.lower())] = MASK_ID
    return bytes(table)


def _upper_table() -> bytes:
    table = bytearray([INVALID]) * 256
    for letter in IUPAC:
        table[ord(letter)] = table[ord(letter.lower())] = ord(letter)
    return bytes(table)


def _meant_table() -> np.ndarray:
    table = np.zeros((256, len(BASES)), dtype=bool)
    for letter, bases in IUPAC.items():
        for case in (letter, letter.lower()):
            table[ord(case)] = [base in bases for base in BASES]
    return table


ENCODE_TABLE = _encode_table()
UPPER_TABLE = _upper_table()
_MEANT = _meant_table()


def check_encoded(ids: bytes, letters: bytes, *, where: str, offset: int = 0) -> None:
    """Refuse letters that ``ENCODE_TABLE`` or ``UPPER_TABLE`` mapped to ``INVALID``.

    Args:
        ids: ``letters`` through the table.
        letters: The text itself, to name the first offender.
        where: File and record, or whatever locates the text.
        offset: Bases of the record that came before ``letters``.

    Raises:
        ValueError: If a letter is not an IUPAC nucleotide code.
    """
    place = ids.find(INVALID)
    if place < 0:
        return
    letter = chr(letters[place])
    raise ValueError(
        f"{where}: {letter!r} at offset {offset + place} (0-based, in bases of the "
        f"record) is not DNA; use A, C, G, T or an IUPAC code ({AMBIGUOUS}), upper or lower case"
    )


def encode(sequence: str | bytes, *, where: str = "sequence") -> UInt8[np.ndarray, " L"]:
    """Encode letters; lower case as upper, ambiguity codes as the mask.

    Args:
        sequence: Letters without line breaks.
        where: How an error names the sequence.

    Raises:
        ValueError: If a letter is not an IUPAC nucleotide code.
    """
    return np.frombuffer(_translate(sequence, ENCODE_TABLE, where), dtype=np.uint8).copy()


def allowed(sequence: str | bytes, *, where: str = "sequence") -> Bool[np.ndarray, "L 4"]:
    """Say which bases the IUPAC code of each position stands for, in either case.

    Args:
        sequence: Letters without line breaks.
        where: How an error names the sequence.

    Raises:
        ValueError: If a letter is not an IUPAC nucleotide code.
    """
    letters = np.frombuffer(_translate(sequence, UPPER_TABLE, where), dtype=np.uint8)
    return _MEANT[letters]


def _translate(sequence: str | bytes, table: bytes, where: str) -> bytes:
    # "replace" keeps one byte a character, so an offset in the error is an offset in the string.
    letters = sequence.encode("latin-1", "replace") if isinstance(sequence, str) else sequence
    found = letters.translate(table)
    check_encoded(found, letters, where=where)
    return found


def decode(ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
    """Decode to upper case, the mask as N.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    return _look_up(_DECODE, np.asarray(ids, dtype=np.int64), "decode").tobytes().decode("ascii")


def complement(ids: Integer[np.ndarray, "*shape"]) -> Integer[np.ndarray, "*shape"]:
    """Swap A with T and C with G; the mask stays. The dtype stays too.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    return _look_up(_COMPLEMENT, ids, "complement").astype(ids.dtype, copy=False)


def reverse_complement(ids: Integer[np.ndarray, "*shape L"]) -> Integer[np.ndarray, "*shape L"]:
    """Read the opposite strand: reverse the last axis and complement.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    return complement(ids[..., ::-1])


def reads_backwards(ids: Integer[np.ndarray, " L"]) -> bool:
    """Say whether the other strand's ids come first: the one that noise is a function of."""
    return reverse_complement(ids).tobytes() < ids.tobytes()


def _look_up(table: np.ndarray, ids: np.ndarray, owner: str) -> np.ndarray:
    if ids.size and (ids.max() > MASK_ID or (ids.dtype.kind == "i" and ids.min() < 0)):
        raise ValueError(
            f"{owner}.ids must lie in 0..{MASK_ID}, got {int(ids.min())}..{int(ids.max())}; "
            f"encode the sequence with genomics.sequence.alphabet.encode"
        )
    return np.take(table, ids)


@dataclass(frozen=True)
class DNATokenizer:
    """One id a base; the DNA domain's ``seqdiff.data.Tokenizer``."""

    @property
    def vocab_size(self) -> int:
        """K = 4."""
        return len(BASES)

    @property
    def fingerprint(self) -> str:
        """A digest of the encoding table."""
        return "dna-" + hashlib.sha256(ENCODE_TABLE).hexdigest()[:16]

    @property
    def complement(self) -> Sequence[int]:
        """A with T, C with G: ``seqdiff.data.StrandTokenizer``."""
        return _COMPLEMENT[:MASK_ID].tolist()

    def allowed(self, string: str) -> Bool[np.ndarray, "L 4"]:
        """Read an IUPAC pattern, see ``allowed``: ``seqdiff.data.ConstraintTokenizer``.

        Raises:
            ValueError: If a letter is not an IUPAC nucleotide code.
        """
        return allowed(string)

    def encode(self, string: str) -> UInt8[np.ndarray, " L"]:
        """Encode letters, see ``encode``.

        Raises:
            ValueError: If a letter is not an IUPAC nucleotide code.
        """
        return encode(string)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
        """Decode ids, see ``decode``.

        Raises:
            ValueError: If an id is outside ``0..4``.
        """
        return decode(ids)
