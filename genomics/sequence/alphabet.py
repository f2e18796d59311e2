"""The DNA alphabet: A, C, G, T as ids 0..3; N and all other IUPAC codes as the mask, 4.

Ambiguous bases are unknown tokens and never counted. Characters outside the IUPAC nucleotide code
(NC-IUB 1984, Nucleic Acids Research 13:3021) raise an error.
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


def _table(values: dict[str, int]) -> bytes:
    """Return a translation table for both cases; other characters become ``INVALID``."""
    table = bytearray([INVALID]) * 256
    for code, value in values.items():
        table[ord(code)] = table[ord(code.lower())] = value
    return bytes(table)


ENCODE_TABLE = _table({code: min(i, MASK_ID) for i, code in enumerate(IUPAC)})
UPPER_TABLE = _table({code: ord(code) for code in IUPAC})
# Codes of bases, residues, gaps and stops, in upper case.
SEQUENCE_TABLE = _table({code: ord(code) for code in "ABCDEFGHIJKLMNOPQRSTUVWXYZ*-."})
_ALLOWED = np.array([[base in IUPAC.get(chr(i), "") for base in BASES] for i in range(256)])


def check_encoded(
    ids: bytes, text: bytes, *, where: str, offset: int = 0, residues: bool = False
) -> None:
    """Check that a table mapped no character to ``INVALID``.

    Args:
        ids: The translated text.
        text: The original text, to name the first invalid character.
        where: File and record, for the error message.
        offset: Bases of the record before ``text``.
        residues: Whether the table was ``SEQUENCE_TABLE``, which takes residues too.

    Raises:
        ValueError: If a character is not an IUPAC nucleotide code, or not a residue.
    """
    index = ids.find(INVALID)
    if index >= 0 and residues:
        raise ValueError(
            f"{where}: {chr(text[index])!r} at offset {offset + index} (0-based) is no base or "
            "residue; use A to Z, * or -"
        )
    if index >= 0:
        raise ValueError(
            f"{where}: {chr(text[index])!r} at offset {offset + index} (0-based, in bases of the "
            f"record) is not DNA; use A, C, G, T or an IUPAC code ({AMBIGUOUS}), upper or lower "
            "case"
        )


def _translate(sequence: str | bytes, table: bytes, where: str) -> np.ndarray:
    # "replace" keeps one byte per character, so offsets in errors are offsets in the string.
    text = sequence.encode("latin-1", "replace") if isinstance(sequence, str) else sequence
    found = text.translate(table)
    check_encoded(found, text, where=where)
    return np.frombuffer(found, dtype=np.uint8)


def encode(sequence: str | bytes, *, where: str = "sequence") -> UInt8[np.ndarray, " L"]:
    """Encode a sequence in either case; ambiguity codes become the mask.

    Args:
        sequence: IUPAC codes without line breaks.
        where: Name of the sequence for error messages.

    Raises:
        ValueError: If a character is not an IUPAC nucleotide code.
    """
    return _translate(sequence, ENCODE_TABLE, where).copy()


def allowed(sequence: str | bytes, *, where: str = "sequence") -> Bool[np.ndarray, "L 4"]:
    """Return the bases that the IUPAC code at each position stands for.

    Args:
        sequence: IUPAC codes in either case.
        where: Name of the sequence for error messages.

    Raises:
        ValueError: If a character is not an IUPAC nucleotide code.
    """
    return _ALLOWED[_translate(sequence, UPPER_TABLE, where)]


def decode(ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
    """Decode ids to upper case, the mask to N.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    return _look_up(_DECODE, np.asarray(ids, dtype=np.int64), "decode").tobytes().decode("ascii")


def complement(ids: Integer[np.ndarray, "*shape"]) -> Integer[np.ndarray, "*shape"]:
    """Swap A with T and C with G; the mask and the dtype stay.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    return _look_up(_COMPLEMENT, ids, "complement").astype(ids.dtype, copy=False)


def reverse_complement(ids: Integer[np.ndarray, "*shape L"]) -> Integer[np.ndarray, "*shape L"]:
    """Reverse the last axis and complement.

    Raises:
        ValueError: If an id is outside ``0..4``.
    """
    return complement(ids[..., ::-1])


def reads_backwards(ids: Integer[np.ndarray, " L"]) -> bool:
    """Return whether the reverse complement sorts first; noise depends on the first strand."""
    return reverse_complement(ids).tobytes() < ids.tobytes()


def _look_up(table: np.ndarray, ids: np.ndarray, owner: str) -> np.ndarray:
    if ids.size and (ids.max() > MASK_ID or (ids.dtype.kind == "i" and ids.min() < 0)):
        raise ValueError(
            f"{owner}.ids must lie in 0..{MASK_ID}, got {int(ids.min())}..{int(ids.max())}; "
            f"encode the sequence with genomics.sequence.encode"
        )
    return np.take(table, ids)


@dataclass(frozen=True)
class DNATokenizer:
    """The ``seqdiff.data.Tokenizer`` of DNA with one id per base."""

    @property
    def vocab_size(self) -> int:
        """Number of bases, 4."""
        return len(BASES)

    @property
    def fingerprint(self) -> str:
        """A digest of the encoding table."""
        return "dna-" + hashlib.sha256(ENCODE_TABLE).hexdigest()[:16]

    @property
    def complement(self) -> Sequence[int]:
        """Complement of each base, for ``seqdiff.data.StrandTokenizer``."""
        return _COMPLEMENT[:MASK_ID].tolist()

    def allowed(self, string: str) -> Bool[np.ndarray, "L 4"]:
        """Read an IUPAC pattern, see ``allowed``, for ``seqdiff.data.ConstraintTokenizer``."""
        return allowed(string)

    def encode(self, string: str) -> UInt8[np.ndarray, " L"]:
        """Encode a sequence, see ``encode``."""
        return encode(string)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
        """Decode ids, see ``decode``."""
        return decode(ids)
