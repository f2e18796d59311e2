"""Words that no drawn row may hold: their automaton, and the symbols that it leaves possible."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor
from torch.nn.functional import one_hot, pad

_MOST_STATES = 10_000  # before minimisation; words with many wide positions need the most


class Conflict(NamedTuple):
    """A row that cannot be filled without a forbidden word.

    Attributes:
        row: Its number.
        position: Where the word starts; without a word, a position that no symbol can fill.
        word: Name of a word that the given and allowed symbols force; ``None`` if no single word is
            forced, but every way to fill the row completes one.
    """

    row: int
    position: int
    word: str | None


@dataclass(frozen=True, eq=False)
class WordAutomaton:
    """The smallest automaton that reads a row and stops at the first forbidden word.

    Its states tell what the tokens so far may be the beginning of. Symbols that all words treat
    alike form a class. Source: Aho and Corasick 1975, https://doi.org/10.1145/360825.360855, here
    for words with a set of symbols at each position; the subset construction is minimised by
    refining a partition (Moore 1956).

    Attributes:
        vocab_size: K.
        words: The symbols that each position of each word stands for, as rows ``[length, K]``.
        names: Name of each word, for messages.
        class_of: The class of each symbol.
        moves: The state after each state and class; state 0 is the first, and the number of states
            stands for a forbidden word.
    """

    vocab_size: int
    words: tuple[Bool[Tensor, "_ K"], ...]
    names: tuple[str, ...]
    class_of: Int64[Tensor, " K"]
    moves: Int64[Tensor, "S C"]

    @classmethod
    def build(
        cls,
        words: Sequence[Sequence[Collection[int]]],
        vocab_size: int,
        names: Sequence[str] | None = None,
    ) -> WordAutomaton:
        """Build the automaton of some words.

        Args:
            words: Words; for each position the ids that it stands for.
            vocab_size: K.
            names: Names of the words for messages; by default their ids.

        Raises:
            ValueError: If there is no word, a word or a position is empty, an id is not in
                ``0..K-1``, there is not one name for each word, or the automaton has more than
                10,000 states.
        """
        if not words:
            raise ValueError("WordAutomaton.words must hold a word, got none; leave avoid out")
        if names is None:
            names = [" ".join("/".join(map(str, sorted(ids))) for ids in word) for word in words]
        if len(names) != len(words):
            raise ValueError(
                f"WordAutomaton.names must hold one name for each of {len(words)} words, got "
                f"{len(names)}; leave it out to name words by their ids"
            )
        masks = tuple(
            _mask(word, vocab_size, name) for word, name in zip(words, names, strict=True)
        )
        patterns = np.concatenate([mask.numpy() for mask in masks])
        columns, class_of = np.unique(patterns, axis=1, return_inverse=True)
        ends = np.cumsum([len(mask) for mask in masks])
        moves = _minimised(_subsets(columns, (ends - [len(m) for m in masks]).tolist(), ends))
        return cls(
            vocab_size,
            masks,
            tuple(names),
            torch.from_numpy(class_of.reshape(-1).astype(np.int64)),
            torch.from_numpy(moves),
        )

    @property
    def num_states(self) -> int:
        """Number of states, without the one after a forbidden word."""
        return len(self.moves)

    def to(self, device: torch.device) -> WordAutomaton:
        """Copy what is used while sampling to a device."""
        return replace(self, class_of=self.class_of.to(device), moves=self.moves.to(device))

    def find(self, symbols: Bool[Tensor, "L K"]) -> tuple[int, str] | None:
        """Find the first word that a row holds whatever is chosen.

        Args:
            symbols: The symbols that each position may take.

        Returns:
            The position and the name of the word; ``None`` if no word is there in every row.
        """
        symbols = symbols.cpu()
        found: list[tuple[int, str]] = []
        for mask, name in zip(self.words, self.names, strict=True):
            if len(mask) <= len(symbols):
                windows = symbols.unfold(0, len(mask), 1).mT  # [places, W, K]
                places = (~(windows & ~mask).flatten(1).any(dim=-1)).nonzero()
                found += [(int(place), name) for place in places[:1]]
        return min(found, default=None)

    def classes(self, allowed: Bool[Tensor, "B L K"]) -> Bool[Tensor, "B L C"]:
        """Return the classes of which some symbol is allowed."""
        groups = one_hot(self.class_of, self.moves.shape[1])
        return (allowed.float() @ groups.float()) > 0

    def after(self, states: Bool[Tensor, "n S"], classes: Bool[Tensor, "n C"]) -> Tensor:
        """Return the states ``[n, S]`` after a symbol of one of some classes."""
        taken = (states[:, :, None] & classes[:, None, :]).flatten(1).to(torch.int32)
        into = self.moves.flatten().expand(len(taken), -1)
        counts = taken.new_zeros((len(taken), self.num_states + 1)).scatter_add_(1, into, taken)
        return counts[:, :-1] > 0

    def before(self, states: Bool[Tensor, "n S"], classes: Bool[Tensor, "n C"]) -> Tensor:
        """Return the states ``[n, S]`` from which such a symbol leads into one of ``states``."""
        return (self.leads_into(states) & classes[:, None, :]).any(dim=-1)

    def leads_into(self, states: Bool[Tensor, "n S"]) -> Bool[Tensor, "n S C"]:
        """Return which states and classes lead into one of some states."""
        return pad(states, (0, 1))[:, self.moves]


def _mask(word: Sequence[Collection[int]], vocab_size: int, name: str) -> Bool[Tensor, "W K"]:
    """Write a word as the symbols of each position."""
    if not len(word) or not all(len(ids) for ids in word):
        raise ValueError(
            f"WordAutomaton.words must hold a symbol at every position, got {name!r} with none; "
            "leave the word out"
        )
    mask = torch.zeros((len(word), vocab_size), dtype=torch.bool)
    for place, ids in enumerate(word):
        for symbol in ids:
            if not 0 <= symbol < vocab_size:
                raise ValueError(
                    f"WordAutomaton.words must hold ids in 0..{vocab_size - 1}, got {symbol} at "
                    f"position {place} of {name!r}; encode the word again"
                )
            mask[place, symbol] = True
    return mask


def _subsets(columns: np.ndarray, starts: list[int], ends: np.ndarray) -> np.ndarray:
    """Determinise the automaton in which every position may begin every word.

    Args:
        columns: Whether a class ``[places, C]`` fits each place of all words, one after the other.
        starts: First place of each word.
        ends: End of each word.

    Raises:
        ValueError: If there are too many states.
    """
    final = set((ends - 1).tolist())
    number: dict[frozenset[int], int] = {frozenset(): 0}
    waiting = [frozenset[int]()]
    moves: list[list[int]] = []
    for state in waiting:  # grows while it is read
        tried = [*starts, *state]
        row = []
        for column in columns.T:
            fits = [place for place in tried if column[place]]
            if not final.isdisjoint(fits):
                row.append(-1)
                continue
            target = frozenset(place + 1 for place in fits)
            if target not in number:
                number[target] = len(number)
                waiting.append(target)
            row.append(number[target])
        moves.append(row)
        if len(number) > _MOST_STATES:
            raise ValueError(
                f"WordAutomaton.words must need at most {_MOST_STATES:,} states, got more for "
                f"{len(starts):,} words; forbid fewer words, or shorter gaps of any symbol"
            )
    return np.array(moves)


def _minimised(moves: np.ndarray) -> np.ndarray:
    """Merge states that no continuation tells apart; -1 becomes the number of states."""
    block = np.zeros(len(moves), dtype=np.int64)
    count = 1
    while True:
        told = np.column_stack([block, np.where(moves < 0, -1, block[moves])])
        _, first, block = np.unique(told, axis=0, return_index=True, return_inverse=True)
        block = block.reshape(-1)
        if len(first) == count:
            break
        count = len(first)
    order = np.argsort(first)  # the first state comes first
    rank = np.argsort(order)
    return np.where(moves[first] < 0, count, rank[block[moves[first]]])[order]


def find_conflict(
    avoid: WordAutomaton,
    x_init: Int[Tensor, "B L"],
    allowed: Bool[Tensor, "B L K"] | None = None,
) -> Conflict | None:
    """Find the first row that cannot be filled without a forbidden word.

    Args:
        avoid: The words.
        x_init: Ids in ``0..K``, where K stands for a token to draw.
        allowed: Symbols that each position may take.
    """
    return Completions.begin(avoid, x_init, allowed).conflict()


@dataclass
class Completions:
    """Which states the automaton can be in at every position of a batch, kept up to date.

    ``ahead`` holds the states after the tokens to the left, ``behind`` those from which the tokens
    to the right can be filled. A symbol can be completed if it leads from one to the other. After
    a change, only the positions whose states change are computed again. Padding holds no symbol, so
    a word may lie on both sides of it.

    Attributes:
        automaton: The words.
        possible: Classes that each position may take while it is unknown.
        real: Positions that are not padding.
        tokens: The tokens that the states were computed from.
        ahead: States before each position ``[B, L + 1, S]``.
        behind: States before each position from which the rest of the row can be filled.
        rows: The rows that a view shows; ``None`` for all.
        start: First position that a view shows.
    """

    automaton: WordAutomaton
    possible: Bool[Tensor, "B L C"]
    real: Bool[Tensor, "B L"]
    tokens: Int64[Tensor, "B L"]
    ahead: Bool[Tensor, "B n S"]
    behind: Bool[Tensor, "B n S"]
    rows: Int64[Tensor, " b"] | None = None
    start: int = 0

    @classmethod
    def begin(
        cls,
        automaton: WordAutomaton,
        x_t: Int[Tensor, "B L"],
        allowed: Bool[Tensor, "B L K"] | None = None,
        padding: Bool[Tensor, "B L"] | None = None,
    ) -> Completions:
        """Compute the states of all positions.

        Args:
            automaton: The words.
            x_t: Ids in ``0..K``, where K is unknown.
            allowed: Symbols that each position may take.
            padding: Positions that hold nothing.
        """
        automaton = automaton.to(x_t.device)
        batch, length = x_t.shape
        states, classes = automaton.moves.shape
        if allowed is None:
            possible = x_t.new_ones((), dtype=torch.bool).expand(batch, length, classes)
        else:
            possible = automaton.classes(allowed)
        real = torch.ones_like(x_t, dtype=torch.bool) if padding is None else ~padding
        table = torch.zeros((batch, length + 1, states), dtype=torch.bool, device=x_t.device)
        made = cls(automaton, possible, real, x_t.long().clone(), table, table.clone())
        made.ahead[:, 0, 0] = True
        made.behind[:, -1] = True
        rows = torch.arange(batch, device=x_t.device)
        for position in range(length):
            made._move(rows, torch.full_like(rows, position))
        for position in reversed(range(length)):
            made._move_back(rows, torch.full_like(rows, position))
        return made

    def window(self, start: int) -> Completions:
        """Return a view of the positions from ``start`` on."""
        return replace(self, start=self.start + start)

    def take(self, rows: Int64[Tensor, " b"]) -> Completions:
        """Return a view of some rows."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def copies(self, rows: Int64[Tensor, " b"]) -> Completions:
        """Return some rows, which may be repeated, as rows of their own."""
        chosen = rows if self.rows is None else self.rows[rows]
        return Completions(
            self.automaton,
            self.possible[chosen],
            self.real[chosen],
            self.tokens[chosen],
            self.ahead[chosen],
            self.behind[chosen],
            start=self.start,
        )

    def conflict(self) -> Conflict | None:
        """Find the first row that cannot be filled."""
        bad = (~(self.ahead[:, 0] & self.behind[:, 0]).any(dim=-1)).nonzero()
        if not len(bad):
            return None
        row = int(bad[0])
        place = self.real[row].nonzero().squeeze(-1)
        rows = torch.full_like(place, row)
        symbols = self._classes_at(rows, place)[:, self.automaton.class_of]
        found = self.automaton.find(symbols)
        if found is not None:
            return Conflict(row, int(place[found[0]]), found[1])
        stuck = (~self.ahead[row, 1:].any(dim=-1)).nonzero()
        return Conflict(row, int(stuck[0]), None)

    def symbols(self, x_t: Int64[Tensor, "b w"], where: Bool[Tensor, "b w"]) -> Bool[Tensor, "N K"]:
        """Return the symbols at some unknown positions with which a row can still be filled.

        Args:
            x_t: The tokens now.
            where: The positions; the result is in the order of ``where.nonzero()``.
        """
        self.update(x_t)
        row, place = where.nonzero(as_tuple=True)
        row, place = (row if self.rows is None else self.rows[row]), place + self.start
        into = self.automaton.leads_into(self.behind[row, place + 1])
        classes = (into & self.ahead[row, place][:, :, None]).any(dim=1)
        return classes[:, self.automaton.class_of]

    def update(self, x_t: Int64[Tensor, "b w"]) -> None:
        """Compute the states again where tokens have changed."""
        columns = slice(self.start, self.start + x_t.shape[1])
        rows = slice(None) if self.rows is None else self.rows
        changed = torch.zeros_like(self.real)
        changed[rows, columns] = self.tokens[rows, columns] != x_t
        if not bool(changed.any()):
            return
        self.tokens[rows, columns] = x_t
        last = changed.shape[1] - 1
        left = changed.clone()
        while len(row := left.any(dim=1).nonzero().squeeze(-1)):
            place = left[row].int().argmax(dim=1)  # the first one
            left[row, place] = False
            on = self._move(row, place) & (place < last)
            left[row[on], place[on] + 1] = True
        left = changed
        while len(row := left.any(dim=1).nonzero().squeeze(-1)):
            place = last - left[row].flip(1).int().argmax(dim=1)
            left[row, place] = False
            on = self._move_back(row, place) & (place > 0)
            left[row[on], place[on] - 1] = True

    def hold(self, x_t: Int64[Tensor, "B L"]) -> Bool[Tensor, " B"]:
        """Return which rows hold no forbidden word."""
        self.update(x_t)
        return self.ahead[:, -1].any(dim=-1)

    def _classes_at(self, row: Tensor, place: Tensor) -> Bool[Tensor, "n C"]:
        """Return the classes that positions may take."""
        token, symbols = self.tokens[row, place], self.automaton.vocab_size
        own = one_hot(
            self.automaton.class_of[token.clamp_max(symbols - 1)], self.possible.shape[-1]
        )
        return torch.where((token < symbols)[:, None], own.bool(), self.possible[row, place])

    def _move(self, row: Tensor, place: Tensor) -> Bool[Tensor, " n"]:
        """Compute the states after some positions; return whether they change."""
        before = self.ahead[row, place]
        found = self.automaton.after(before, self._classes_at(row, place))
        found = torch.where(self.real[row, place][:, None], found, before)
        changed = (found != self.ahead[row, place + 1]).any(dim=-1)
        self.ahead[row, place + 1] = found
        return changed

    def _move_back(self, row: Tensor, place: Tensor) -> Bool[Tensor, " n"]:
        """Compute the states before some positions; return whether they change."""
        after = self.behind[row, place + 1]
        found = self.automaton.before(after, self._classes_at(row, place))
        found = torch.where(self.real[row, place][:, None], found, after)
        changed = (found != self.behind[row, place]).any(dim=-1)
        self.behind[row, place] = found
        return changed
