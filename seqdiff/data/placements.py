"""Places for things that may not overlap, all ways equally likely."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

# Entries of the table of counts: beyond this it takes long.
_MOST_ENTRIES = 2_000_000


class Placements:
    """All ways to lay things of given widths into a row without overlap, numbered from 0.

    Things of one width are told apart, so exchanging two of them is another way.

    Attributes:
        count: How many ways there are.
    """

    def __init__(self, length: int, widths: Sequence[int], taken: Iterable[int] = ()) -> None:
        """Count the ways.

        Args:
            length: Of the row.
            widths: Of the things, each at least 1.
            taken: Positions that nothing may cover.

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
        """How many things of a kind are still to be laid."""
        return state // self._strides[kind] % (self._kinds[kind][1] + 1)

    def _table(self, length: int) -> list[list[int]]:
        """Ways to lay what a state has left from a position on, as whole numbers."""
        ways = [[0] * self._states for _ in range(length + 1)]
        ways[length][0] = 1
        for start in range(length - 1, -1, -1):
            for state in range(self._states):
                ways[start][state] = ways[start + 1][state] + sum(
                    self._ways_with(ways, start, state, kind) for kind in range(len(self._kinds))
                )
        return ways

    def _ways_with(self, ways: list[list[int]], start: int, state: int, kind: int) -> int:
        """Ways in which a thing of this kind lies at the position itself."""
        width, left = self._kinds[kind][0], self._left(state, kind)
        if not left or width > self._room[start]:
            return 0
        return left * ways[start + width][state - self._strides[kind]]

    def starts(self, number: int) -> list[int]:
        """Give one way: where each thing starts, in the order of ``widths``.

        Args:
            number: Of the way, in ``0..count-1``.
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
