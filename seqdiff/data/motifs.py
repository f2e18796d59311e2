"""Motifs that stand in a sequence, at a place that is given or drawn."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool

from seqdiff.data.placements import Placements
from seqdiff.data.templates import Template, Templates, require_constraints
from seqdiff.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Motif:
    """A pattern and its place.

    Attributes:
        pattern: For the run's ``ConstraintTokenizer``.
        start: Its first position, from 0; ``None`` if its place is drawn.
    """

    pattern: str
    start: int | None = None

    @classmethod
    def parse(cls, text: str) -> Motif:
        """Read ``PATTERN`` or ``PATTERN@START``.

        Raises:
            ValueError: If it is neither.
        """
        pattern, at, start = text.rpartition("@")
        if not at:
            pattern = text
        if not pattern or (at and not (start.isascii() and start.isdigit())):
            raise ValueError(
                "sample.motif must be PATTERN or PATTERN@START, with START counted from 0, got "
                f"{text!r}; write for example TGASTCA@50"
            )
        return cls(pattern, int(start) if at else None)

    def __str__(self) -> str:
        """As ``parse`` reads it."""
        return self.pattern if self.start is None else f"{self.pattern}@{self.start}"


class Scaffolds(Templates):
    """Sequences with motifs in place, everything else to be filled.

    Motifs with a place stand there in every sequence; where they overlap, only the letters that
    both allow are left. The others are laid where they overlap nothing, all ways to do so together
    being equally likely, anew for each sequence.
    """

    def __init__(
        self, motifs: Sequence[Motif], num: int, length: int, tokenizer: Tokenizer
    ) -> None:
        """Check that the motifs fit.

        Args:
            motifs: At least one.
            num: Number of sequences.
            length: Tokens in each.
            tokenizer: Says which letters a pattern allows.

        Raises:
            ValueError: If one is no pattern or ends past the length, two leave no letter to a
                position, they do not fit side by side, or the tokenizer knows no patterns.
        """
        tokenizer = require_constraints("motif", tokenizer)
        self.names = [f"sample_{i}" for i in range(num)]
        self.lengths = [length] * num
        self._fixed = np.ones((length, tokenizer.vocab_size), dtype=bool)
        self._loose: list[Bool[np.ndarray, "W K"]] = []
        placed: list[tuple[Motif, range]] = []
        for motif in motifs:
            try:
                allowed = tokenizer.allowed(motif.pattern)
            except ValueError as error:
                raise ValueError(f"sample.motif {motif}: {error}") from error
            if motif.start is None:
                self._loose.append(allowed)
            else:
                self._put(motif, allowed, placed)
                placed.append((motif, range(motif.start, motif.start + len(allowed))))
        taken = {position for _, covered in placed for position in covered}
        self._placements = Placements(length, [len(allowed) for allowed in self._loose], taken)
        if not self._placements.count:
            letters = sum(map(len, self._loose)) + len(taken)
            raise ValueError(
                f"sample.motif must fit side by side within length {length}, got {letters} letters "
                f"of {len(motifs)} motif{'s' * (len(motifs) > 1)}; raise --length, or leave one out"
            )

    def _put(
        self,
        motif: Motif,
        allowed: Bool[np.ndarray, "W K"],
        placed: list[tuple[Motif, range]],
    ) -> None:
        """Lay a motif at its own place."""
        assert motif.start is not None
        end, length = motif.start + len(allowed), len(self._fixed)
        if end > length:
            raise ValueError(
                f"sample.motif {motif} must end within length {length}, got an end at {end}; "
                "raise --length, or start it earlier"
            )
        self._fixed[motif.start : end] &= allowed
        empty = np.flatnonzero(~self._fixed.any(axis=1))
        if len(empty):
            others = ", ".join(str(other) for other, covered in placed if empty[0] in covered)
            raise ValueError(
                f"sample.motif {motif} must share a letter with {others} at position {empty[0]}, "
                "got none that both allow; move one of them"
            )

    def template(self, number: int, seed: int) -> Template:
        """See ``Templates``."""
        del number
        allowed = self._fixed.copy()
        way = random.Random(seed).randrange(self._placements.count)
        for start, motif in zip(self._placements.starts(way), self._loose, strict=True):
            allowed[start : start + len(motif)] = motif
        return Template.within(allowed)
