"""The base class of tokenizers of strings that a vocabulary cuts into tokens."""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from jaxtyping import Bool, Integer

UNKNOWN = "\N{REPLACEMENT CHARACTER}"
_MASKED = re.compile(r"\[MASK(?::([0-9]+))?\]")

Ids = Sequence[int] | Integer[np.ndarray, " L"]


class StringTokenizer(ABC):
    """Base class of tokenizers of text and of other strings, see ``seqdiff.data.Tokenizer``.

    Ids run from 0 to K - 1, and the mask has the id K. Such a tokenizer also defines the tokens
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
