"""Tokenizers whose ids are dense from 0; the mask is the next id."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from jaxtyping import Integer


class ByteTokenizer:
    """UTF-8 bytes: 256 symbols, every string encodes, nothing is lost."""

    @property
    def vocab_size(self) -> int:
        """256; the mask has id 256."""
        return 256

    @property
    def fingerprint(self) -> str:
        """Digest of the encoding's name, which fixes it."""
        return hashlib.sha256(b"utf-8 bytes").hexdigest()

    def encode(self, string: str) -> Integer[np.ndarray, " L"]:
        """Encode; ``decode`` undoes it exactly."""
        return np.frombuffer(string.encode("utf-8"), dtype=np.uint8)

    def decode(self, ids: Sequence[int] | Integer[np.ndarray, " L"]) -> str:
        """Decode; invalid UTF-8 and masks come out as the replacement character.

        Raises:
            ValueError: If an id is outside 0..256.
        """
        array = np.asarray(ids, dtype=np.int64)
        if array.size and not 0 <= array.min() <= array.max() <= self.vocab_size:
            raise ValueError(
                f"ByteTokenizer.decode.ids must lie in 0..256, got {array.min()}..{array.max()}; "
                "the ids come from another tokenizer"
            )
        pieces = [
            part.astype(np.uint8).tobytes().decode("utf-8", errors="replace")
            for part in np.split(array, np.flatnonzero(array == self.vocab_size))
            for part in ([part[1:]] if part.size and part[0] == self.vocab_size else [part])
        ]
        return "\N{REPLACEMENT CHARACTER}".join(pieces)
