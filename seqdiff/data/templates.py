"""What sequences are drawn around: blanks, the records of a file, or motifs in place."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from seqdiff.data.tokenizer import ConstraintTokenizer, Tokenizer


@dataclass(frozen=True, eq=False)
class Template:
    """What a sampler is given of one sequence.

    Attributes:
        tokens: Ids in ``0..K``; ``K`` where there is something to fill.
        allowed: Letters that each position may take; ``None`` if any letter may be anywhere.
    """

    tokens: Int64[np.ndarray, " L"]
    allowed: Bool[np.ndarray, "L K"] | None = None

    @classmethod
    def within(cls, allowed: Bool[np.ndarray, "L K"]) -> Template:
        """Make a template of the letters that each position may take; a single one is visible.

        Args:
            allowed: At least one letter at every position.
        """
        number = allowed.sum(axis=1)
        assert (number > 0).all()  # by whoever made it
        unknown_id = allowed.shape[1]
        tokens = np.where(number == 1, allowed.argmax(axis=1), unknown_id)
        free = ((number == 1) | (number == unknown_id)).all()
        return cls(tokens, None if free else allowed)


class Templates(ABC):
    """A template for each sequence to draw.

    Attributes:
        names: Of the sequences, each its own.
        lengths: Of the sequences.
    """

    names: list[str]
    lengths: list[int]

    @abstractmethod
    def template(self, number: int, seed: int) -> Template:
        """Give the template of one sequence.

        Args:
            number: Its place in ``names``.
            seed: Its own, in [0, 2^63), for what is drawn of the template.
        """


class Blanks(Templates):
    """Sequences with nothing given."""

    def __init__(self, num: int, length: int, unknown_id: int) -> None:
        """Describe them.

        Args:
            num: Number of sequences.
            length: Tokens in each.
            unknown_id: The token to fill.
        """
        self.names = [f"sample_{i}" for i in range(num)]
        self.lengths = [length] * num
        self._template = Template(np.full(length, unknown_id, dtype=np.int64))

    def template(self, number: int, seed: int) -> Template:
        """See ``Templates``."""
        del number, seed
        return self._template


class Records(Templates):
    """Several sequences for each record of a file; names are ``<record>_<i>``.

    Attributes:
        records: Name and length of each record.
    """

    def __init__(self, records: Sequence[tuple[str, str]], num: int, tokenizer: Tokenizer) -> None:
        """Read the patterns.

        Args:
            records: Names and patterns.
            num: Sequences for each.
            tokenizer: Says which letters a pattern allows.

        Raises:
            ValueError: If there are none, two have one name, one is empty or no pattern, or the
                tokenizer knows no patterns.
        """
        tokenizer = require_constraints("infill", tokenizer)
        if not records:
            raise ValueError("sample.infill must hold a record, got none; add one")
        seen: set[str] = set()
        self._templates: list[Template] = []
        for name, pattern in records:
            if name in seen:
                raise ValueError(
                    f"sample.infill must hold each name once, got two records {name!r}; rename one"
                )
            seen.add(name)
            try:
                allowed = tokenizer.allowed(pattern)
            except ValueError as error:
                raise ValueError(f"sample.infill record {name!r}: {error}") from error
            if not len(allowed):
                raise ValueError(
                    f"sample.infill record {name!r} must not be empty, got no symbol; remove it"
                )
            self._templates.append(Template.within(allowed))
        self._num = num
        self.records = [
            (name, len(template.tokens))
            for (name, _), template in zip(records, self._templates, strict=True)
        ]
        self.names = [f"{name}_{i}" for name, _ in records for i in range(num)]
        self.lengths = [length for _, length in self.records for _ in range(num)]

    def template(self, number: int, seed: int) -> Template:
        """See ``Templates``."""
        del seed
        return self._templates[number // self._num]


def require_constraints(option: str, tokenizer: Tokenizer) -> ConstraintTokenizer:
    """Give the tokenizer back if its strings can say which letters a position may hold.

    Args:
        option: Of ``seqdiff sample``, for the message.
        tokenizer: Of the run.

    Raises:
        ValueError: If it is not a ``ConstraintTokenizer``.
    """
    if not isinstance(tokenizer, ConstraintTokenizer):
        raise ValueError(
            f"sample.{option} must go with a tokenizer that reads patterns, got a run with "
            f"{type(tokenizer).__name__}, which has no method allowed; leave --{option} out"
        )
    return tokenizer
