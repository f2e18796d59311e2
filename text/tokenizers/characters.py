"""The base class of text tokenizers, and tokenizers of bytes and characters."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from string import ascii_lowercase

import numpy as np
from jaxtyping import Bool, Integer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_MASKED = re.compile(r"\[MASK(?::([0-9]+))?\]")

Ids = Sequence[int] | Integer[np.ndarray, " L"]


class TextTokenizer(ABC):
    """Base class of text tokenizers, see ``seqdiff.data.Tokenizer``.

    Ids run from 0 to K - 1, and the mask has the id K. A text tokenizer also defines the tokens
    that frame a row and the token that separates documents. Pickling a tokenizer leaves out the
    contents of its files; the process that unpickles it reads the files again.

    Attributes:
        token_name: Name of a token in reports.
        special: Names of the tokens of ``frame`` in reports.
    """

    token_name: str = "token"
    special: tuple[str, str] | None = None

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """The number of symbols K; the mask has the id K."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A digest that changes if any string is encoded differently."""

    @property
    def frame(self) -> tuple[int, int] | None:
        """Ids that open and close a row, as in ``[CLS] ... [SEP]``; ``None`` without a frame."""
        return None

    @property
    def separator(self) -> int | None:
        """Id between two documents of one row; ``None`` without a separator."""
        return None if self.frame is None else self.frame[1]

    @property
    def separator_name(self) -> str | None:
        """Name of the separator in reports."""
        if self.special is not None:
            return self.special[1]
        return None if self.separator is None else repr(self.decode([self.separator]))

    @abstractmethod
    def encode(self, string: str) -> Integer[np.ndarray, " L"]:
        """Encode a string, without a frame.

        Raises:
            ValueError: If a character has no id.
        """

    def encode_many(self, strings: Sequence[str]) -> list[Integer[np.ndarray, " _"]]:
        """Encode several strings; subclasses may do this faster than one by one."""
        return [self.encode(string) for string in strings]

    def allowed(self, string: str) -> Bool[np.ndarray, "L K"]:
        """Parse a template, see ``seqdiff.data.ConstraintTokenizer``.

        In a template, ``[MASK]`` stands for one unknown token and ``[MASK:20]`` for twenty. The
        text between them is encoded piece by piece, without a frame.

        Raises:
            ValueError: If a character has no id, or the template contains ``[MASK:0]``.
        """
        first, *rest = _MASKED.split(string)
        parts = [self.encode(first)]
        for number, text in zip(rest[::2], rest[1::2], strict=True):
            if number is not None and not int(number):
                raise ValueError(
                    f"[MASK:{number}] must stand for at least one token, got none; remove it"
                )
            parts.append(np.full(int(number or 1), self.vocab_size))
            parts.append(self.encode(text))
        ids = np.concatenate([np.asarray(part, dtype=np.int64) for part in parts])
        masked = ids == self.vocab_size
        return (ids[:, None] == np.arange(self.vocab_size)) | masked[:, None]

    def decode(self, ids: Ids) -> str:
        """Decode; masks and invalid bytes become the replacement character.

        Raises:
            ValueError: If an id is outside ``0..K``.
        """
        array, mask_id = np.asarray(ids, dtype=np.int64), self.vocab_size
        if array.size and not 0 <= array.min() <= array.max() <= mask_id:
            raise ValueError(
                f"{type(self).__name__}.decode.ids must lie in 0..{mask_id}, got {array.min()}.."
                f"{array.max()}; check that the ids come from this tokenizer"
            )
        return UNKNOWN.join(self._decode(part) for part in _split(array, mask_id))

    @abstractmethod
    def _decode(self, ids: Integer[np.ndarray, " L"]) -> str:
        """Decode ids in ``0..K-1``."""


def _split(array: np.ndarray, mask_id: int) -> Iterator[np.ndarray]:
    """Yield the pieces between masks."""
    for part in np.split(array, np.flatnonzero(array == mask_id)):
        yield part[1:] if part.size and part[0] == mask_id else part


def digest(parts: Iterable[str]) -> str:
    """Hash a sequence of strings, including the boundaries between them."""
    found = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


class ByteTokenizer(TextTokenizer):
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


class CharacterTokenizer(TextTokenizer):
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
