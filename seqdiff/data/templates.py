"""Templates of sequences to draw: empty, the records of a file, or motifs in place."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int64

from seqdiff.data.tokenizer import ConstraintTokenizer, Tokenizer

_MOST_ENTRIES = 2_000_000  # of the table in ``Placements``, which takes long beyond this


@dataclass(frozen=True, eq=False)
class Template:
    """The given part of one sequence.

    Attributes:
        tokens: Ids in ``0..K``; ``K`` at positions to fill.
        allowed: Symbols that each position may take; ``None`` if there is no constraint.
    """

    tokens: Int64[np.ndarray, " L"]
    allowed: Bool[np.ndarray, "L K"] | None = None

    @classmethod
    def within(cls, allowed: Bool[np.ndarray, "L K"]) -> Template:
        """Make a template from the symbols that each position may take; a single one is visible."""
        number = allowed.sum(axis=1)
        assert (number > 0).all()  # checked by the caller
        unknown_id = allowed.shape[1]
        tokens = np.where(number == 1, allowed.argmax(axis=1), unknown_id)
        free = ((number == 1) | (number == unknown_id)).all()
        return cls(tokens, None if free else allowed)


class Templates(ABC):
    """A template for each sequence to draw.

    Attributes:
        names: Unique names of the sequences.
        lengths: Their lengths in tokens.
    """

    names: list[str]
    lengths: list[int]

    @abstractmethod
    def template(self, number: int, seed: int) -> Template:
        """Return the template of one sequence.

        Args:
            number: Its index in ``names``.
            seed: Seed in [0, 2^63) of the random parts of the template.
        """


class Blanks(Templates):
    """Sequences of which nothing is given."""

    def __init__(self, num: int, length: int | Sequence[int], unknown_id: int) -> None:
        """Describe them.

        Args:
            num: Number of sequences.
            length: Tokens in each, one number for all or one for each.
            unknown_id: The token to fill.
        """
        self.names = [f"sample_{i}" for i in range(num)]
        self.lengths = [length] * num if isinstance(length, int) else list(length)
        self._unknown_id = unknown_id

    def template(self, number: int, seed: int) -> Template:
        """Return an empty template."""
        del seed
        return Template(np.full(self.lengths[number], self._unknown_id, dtype=np.int64))


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
            tokenizer: Reads patterns.

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
        """Return the template of a sequence's record."""
        del seed
        return self._templates[number // self._num]


@dataclass(frozen=True)
class Motif:
    """A pattern and where it starts.

    Attributes:
        pattern: For the run's ``ConstraintTokenizer``.
        start: Its first position, from 0; ``None`` to draw it.
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
        """Write the motif as ``parse`` reads it."""
        return self.pattern if self.start is None else f"{self.pattern}@{self.start}"


class Scaffolds(Templates):
    """Sequences with motifs in place, everything else to be filled.

    Motifs with a place are there in every sequence; where they overlap, only the symbols that both
    allow remain. The places of the others are drawn for each sequence, uniformly over all ways to
    place them without overlap.
    """

    def __init__(
        self, motifs: Sequence[Motif], num: int, length: int, tokenizer: Tokenizer
    ) -> None:
        """Check that the motifs fit.

        Args:
            motifs: At least one.
            num: Number of sequences.
            length: Tokens in each.
            tokenizer: Reads patterns.

        Raises:
            ValueError: If one is no pattern or ends past the length, two leave no symbol to a
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
            symbols = sum(map(len, self._loose)) + len(taken)
            raise ValueError(
                f"sample.motif must fit side by side within length {length}, got {symbols} symbols "
                f"of {len(motifs)} motif{'s' * (len(motifs) > 1)}; raise --length, or leave one out"
            )

    def _put(
        self,
        motif: Motif,
        allowed: Bool[np.ndarray, "W K"],
        placed: list[tuple[Motif, range]],
    ) -> None:
        """Put a motif at its given place."""
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
                f"sample.motif {motif} must allow a symbol in common with {others} at position "
                f"{empty[0]}, "
                "got none that both allow; move one of them"
            )

    def template(self, number: int, seed: int) -> Template:
        """Draw places for the motifs without one."""
        del number
        allowed = self._fixed.copy()
        way = random.Random(seed).randrange(self._placements.count)
        for start, motif in zip(self._placements.starts(way), self._loose, strict=True):
            allowed[start : start + len(motif)] = motif
        return Template.within(allowed)


class Placements:
    """All ways to place things of given widths in a row without overlap, numbered from 0.

    Things of one width are distinct, so swapping two of them is another way.

    Attributes:
        count: Number of ways.
    """

    def __init__(self, length: int, widths: Sequence[int], taken: Iterable[int] = ()) -> None:
        """Count the ways.

        Args:
            length: Length of the row.
            widths: Widths of the things, each at least 1.
            taken: Positions that no thing may cover.

        Raises:
            ValueError: If the things differ so much in width that counting would take long.
        """
        self._widths = list(widths)
        self._kinds = sorted(Counter(widths).items())
        covered = set(taken)
        self._room = [0] * (length + 1)  # free positions from each one on, up to the next taken one
        for start in range(length - 1, -1, -1):
            self._room[start] = 0 if start in covered else self._room[start + 1] + 1
        self._strides: list[int] = []
        states = 1
        for _, number in self._kinds:
            self._strides.append(states)
            states *= number + 1
        if states * (length + 1) > _MOST_ENTRIES:
            raise ValueError(
                f"Placements.widths must be few or alike, got {len(self._widths)} of "
                f"{len(self._kinds)} widths in a row of {length:,}; give some a place of their own"
            )
        self._states = states
        self._ways = self._table(length)
        self.count = self._ways[0][states - 1]

    def _left(self, state: int, kind: int) -> int:
        """Count the things of a kind that are still to be placed."""
        return state // self._strides[kind] % (self._kinds[kind][1] + 1)

    def _table(self, length: int) -> list[list[int]]:
        """Count, exactly, the ways to place what a state has left from each position on."""
        ways = [[0] * self._states for _ in range(length + 1)]
        ways[length][0] = 1
        for start in range(length - 1, -1, -1):
            for state in range(self._states):
                ways[start][state] = ways[start + 1][state] + sum(
                    self._ways_with(ways, start, state, kind) for kind in range(len(self._kinds))
                )
        return ways

    def _ways_with(self, ways: list[list[int]], start: int, state: int, kind: int) -> int:
        """Count the ways in which a thing of this kind starts at the position itself."""
        width, left = self._kinds[kind][0], self._left(state, kind)
        if not left or width > self._room[start]:
            return 0
        return left * ways[start + width][state - self._strides[kind]]

    def starts(self, number: int) -> list[int]:
        """Return where each thing starts in one way, in the order of ``widths``.

        Args:
            number: Number of the way, in ``0..count-1``.
        """
        assert 0 <= number < self.count
        waiting = {w: [i for i, v in enumerate(self._widths) if v == w] for w, _ in self._kinds}
        found = [0] * len(self._widths)
        start, state = 0, self._states - 1
        while state:
            for kind, (width, _) in enumerate(self._kinds):
                ways = self._ways_with(self._ways, start, state, kind)
                if number < ways:
                    which, number = divmod(number, ways // self._left(state, kind))
                    found[waiting[width].pop(which)] = start
                    start, state = start + width, state - self._strides[kind]
                    break
                number -= ways
            else:
                start += 1
        return found


def require_constraints(option: str, tokenizer: Tokenizer) -> ConstraintTokenizer:
    """Return the tokenizer if it reads patterns.

    Args:
        option: The option of ``seqdiff sample`` that needs it, for the message.
        tokenizer: Tokenizer of the run.

    Raises:
        ValueError: If it is not a ``ConstraintTokenizer``.
    """
    if not isinstance(tokenizer, ConstraintTokenizer):
        raise ValueError(
            f"sample.{option} must go with a tokenizer that reads patterns, got a run with "
            f"{type(tokenizer).__name__}, which has no method allowed; leave --{option} out"
        )
    return tokenizer
