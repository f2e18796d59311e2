"""Tokenizers of bytes and characters."""

from __future__ import annotations

import hashlib
from string import ascii_lowercase

import numpy as np
from jaxtyping import Integer

from seqdiff.data import StringTokenizer, digest


class ByteTokenizer(StringTokenizer):
    """Tokenizer of UTF-8 bytes, with 256 symbols; it is lossless for every string.

    Rows have no frame, and a line feed separates documents.
    """

    token_name = "byte"

    @property
    def vocab_size(self) -> int:
        """256; the mask has id 256."""
        return 256

    @property
    def fingerprint(self) -> str:
        """Digest of the name of the encoding."""
        return hashlib.sha256(b"utf-8 bytes").hexdigest()

    @property
    def separator(self) -> int:
        """The line feed."""
        return ord("\n")

    def encode(self, string: str) -> Integer[np.ndarray, " L"]:
        """Encode a string; ``decode`` is the exact inverse."""
        return np.frombuffer(string.encode("utf-8"), dtype=np.uint8)

    def _decode(self, ids: Integer[np.ndarray, " L"]) -> str:
        return ids.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class CharacterTokenizer(StringTokenizer):
    """Tokenizer of single characters of a given alphabet.

    Rows have no frame. The separator of documents is a line feed if the alphabet has one, else a
    space if the alphabet has one. Otherwise there is no separator.

    Args:
        characters: The alphabet, in the order of the ids.

    Raises:
        ValueError: If the alphabet is empty or has a character twice.
    """

    token_name = "character"

    def __init__(self, characters: str) -> None:
        twice = [c for i, c in enumerate(characters) if c in characters[:i]]
        if not characters or twice:
            got = f"{twice[0]!r} twice" if twice else "none"
            raise ValueError(
                f"{type(self).__name__}.characters must be at least one character, each once, "
                f"got {got}; correct the alphabet"
            )
        self.characters = characters
        codes = np.array([ord(c) for c in characters])
        self._ids = np.full(codes.max() + 2, -1, dtype=np.int32)
        self._ids[codes] = np.arange(len(codes))

    @property
    def vocab_size(self) -> int:
        """Size of the alphabet."""
        return len(self.characters)

    @property
    def fingerprint(self) -> str:
        """Digest of the alphabet in its order."""
        return digest(["characters", self.characters])

    @property
    def separator(self) -> int | None:
        """The line feed, or else the space, if the alphabet has it."""
        return next((self.characters.index(c) for c in "\n " if c in self.characters), None)

    def encode(self, string: str) -> Integer[np.ndarray, " L"]:
        """Encode a string.

        Raises:
            ValueError: If a character is not in the alphabet; the message gives its offset.
        """
        codes = np.frombuffer(string.encode("utf-32-le"), dtype=np.uint32)
        ids = self._ids[np.minimum(codes, len(self._ids) - 1)]
        if len(ids) and ids.min() < 0:
            offset = int(np.argmin(ids))
            raise ValueError(
                f"{type(self).__name__}.encode.string must hold {self._allowed()}, "
                f"got {string[offset]!r} at offset {offset}; {self._fix}"
            )
        return ids

    _fix = "add it to data.tokenizer.characters, or use text.tokenizers.ByteTokenizer"

    def _allowed(self) -> str:
        return f"only the {len(self.characters)} characters of the alphabet"

    def _decode(self, ids: Integer[np.ndarray, " L"]) -> str:
        return "".join(self.characters[i] for i in ids.tolist())


class Text8Tokenizer(CharacterTokenizer):
    """Tokenizer of the 27 characters of text8: the space, then a to z."""

    def __init__(self) -> None:
        super().__init__(" " + ascii_lowercase)

    _fix = (
        "spell out numbers and remove other characters as text8 does, or use a CharacterTokenizer"
    )

    def _allowed(self) -> str:
        return "only the space and a to z"
