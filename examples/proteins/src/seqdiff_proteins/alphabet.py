"""The alphabet: 20 amino acids, selenocysteine U, pyrrolysine O, and a gap in alignments."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

AMINO_ACIDS = "ACDEFGHIKLMNPQRSTVWY"
RESIDUES = AMINO_ACIDS + "UO"
GAP = "-"
UNKNOWN = "X"
# Symbols of IUPAC for one of two residues.
AMBIGUOUS = {"B": "DN", "Z": "EQ", "J": "IL"}


class ProteinTokenizer:
    """One token for each residue, in upper or lower case.

    X is unknown. So are B, Z and J when a sequence is read; in a template they allow two residues.

    Args:
        gaps: Whether sequences are rows of an alignment, in which ``-`` (or ``.``) is a token.
    """

    def __init__(self, gaps: bool = False) -> None:
        self.gaps = gaps
        self.symbols = RESIDUES + (GAP if gaps else "")
        self.vocab_size = len(self.symbols)
        self.fingerprint = f"protein-{self.symbols}"
        ids = {symbol: number for number, symbol in enumerate(self.symbols)}
        ids |= dict.fromkeys([UNKNOWN, *AMBIGUOUS], self.vocab_size)
        ids |= {".": ids[GAP]} if gaps else {}
        self._table = np.full(128, -1, dtype=np.int64)
        for symbol, number in ids.items():
            self._table[[ord(symbol), ord(symbol.lower())]] = number

    def encode(self, string: str) -> np.ndarray:
        """Encode a sequence.

        Raises:
            ValueError: If a character is no residue; the message names it and its position.
        """
        codes = np.frombuffer(string.encode("utf-32-le"), dtype=np.uint32)
        ids = self._table[np.minimum(codes, 127)]
        wrong = np.flatnonzero((ids < 0) | (codes > 127))
        if len(wrong):
            place = int(wrong[0])
            hint = "; only the rows of an alignment may have gaps" if string[place] in "-." else ""
            raise ValueError(
                f"a protein must hold {self.symbols}, X, B, Z and J, got {string[place]!r} at "
                f"position {place + 1}{hint}; correct it"
            )
        return ids

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Decode ids; the mask becomes X."""
        symbols = self.symbols + UNKNOWN
        return "".join(symbols[int(number)] for number in ids)

    def allowed(self, string: str) -> np.ndarray:
        """Mark the symbols [L, K] that each position of a template may take: all of them for X.

        Raises:
            ValueError: See ``encode``.
        """
        ids = self.encode(string)
        rows = (ids[:, None] == np.arange(self.vocab_size)) | (ids == self.vocab_size)[:, None]
        for row, symbol in zip(rows, string.upper(), strict=True):
            if symbol in AMBIGUOUS:
                row[:] = [residue in AMBIGUOUS[symbol] for residue in self.symbols]
        return rows


def check_proteins(owner: str, tokenizer: object) -> ProteinTokenizer:
    """Check that a run is on proteins.

    Args:
        owner: The option, for the message.
        tokenizer: The run's tokenizer.

    Raises:
        ValueError: If it is not.
    """
    if not isinstance(tokenizer, ProteinTokenizer):
        raise ValueError(
            f"{owner} must be used with a run on proteins, got one whose tokenizer is "
            f"{type(tokenizer).__name__}; choose another run"
        )
    return tokenizer
