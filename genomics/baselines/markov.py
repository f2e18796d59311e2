"""Markov chains fitted by counting, as baselines for likelihoods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64, Integer, UInt8

from genomics.sequence import MASK_ID, opposite_strand, reverse_complement
from seqdiff.experts import BackoffModel, Block, ContextCounts, longest_order
from seqdiff.likelihood import RowNats

MAX_ORDER = 12
_CHUNK_TOKENS = 1 << 22

Rows = Integer[np.ndarray, "_ _"] | Iterable[Integer[np.ndarray, "_ _"]]


@dataclass(frozen=True, eq=False)
class MarkovModel:
    """A Markov chain of fixed order over A, C, G, T, with all lower orders for short contexts.

    A base is predicted from the ``order`` preceding bases. If there are fewer since the last N or
    the start of the row, the chain of that lower order is used. The probabilities of all rows of
    one length therefore sum to one, and the nats of a row are comparable with any other likelihood
    of the same row.

    The probability of a base after a context is ``(count + a) / (total + 4 a)``, the mean under a
    symmetric Dirichlet prior. The default a = 1/2 is Jeffreys' prior, whose excess code length is
    close to the minimum (Krichevsky and Trofimov 1981, IEEE Trans. Inf. Theory 27:199).

    Attributes:
        counts: Item j has the counts of (j + 1)-mers by base-4 code, first base most significant.
        pseudo_count: The a above.
    """

    counts: tuple[Int64[np.ndarray, " _"], ...]
    pseudo_count: float

    @property
    def order(self) -> int:
        """Number of bases of the longest context."""
        return len(self.counts) - 1

    @classmethod
    def fit(
        cls, rows: Rows, order: int, *, both_strands: bool = False, pseudo_count: float = 0.5
    ) -> MarkovModel:
        """Count the k-mers without N within rows.

        Args:
            rows: Ids ``0..4``, as one array or as blocks of rows that may differ in length.
            order: Longest context, in ``0..12``; memory grows as ``4 ** (order + 1)``.
            both_strands: Count the reverse complement of every row too.
            pseudo_count: Positive number added to every count.

        Raises:
            ValueError: If an argument is out of range or an id is not in ``0..4``.
        """
        if not 0 <= order <= MAX_ORDER:
            raise ValueError(
                f"MarkovModel.order must be in 0..{MAX_ORDER}, got {order}; choose a smaller order"
            )
        if not pseudo_count > 0:
            raise ValueError(
                f"MarkovModel.pseudo_count must be positive, got {pseudo_count}; use 0.5"
            )
        counts = [np.zeros(4 ** (j + 1), dtype=np.int64) for j in range(order + 1)]
        for block in _blocks(rows):
            for j, (codes, known) in enumerate(_kmers(block, order)):
                counts[j] += np.bincount(codes[known], minlength=len(counts[j]))
        if both_strands:
            counts = [count + opposite_strand(count) for count in counts]
        return cls(tuple(counts), pseudo_count)

    def nats(
        self, rows: Integer[np.ndarray, "n L"]
    ) -> tuple[Float64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Score rows on the given strand.

        Args:
            rows: Ids ``0..4``. An N is not counted and starts a new context.

        Returns:
            Minus log-probability of each row in nats, and the number of bases that count.

        Raises:
            ValueError: If an id is not in ``0..4``.
        """
        by_order, counted = self.nats_by_order(rows)
        return by_order[-1], counted

    def nats_by_order(
        self, rows: Rows
    ) -> tuple[Float64[np.ndarray, "orders n"], Int64[np.ndarray, " n"]]:
        """Score rows with this chain and with each lower order.

        Args:
            rows: Ids ``0..4``, as one array or as blocks of rows.

        Returns:
            Nats of each row under the orders 0, 1, ..., and the number of bases that count.

        Raises:
            ValueError: If an id is not in ``0..4``.
        """
        parts = [(self._row_nats(block), _known(block)) for block in _blocks(rows)]
        nats = [np.zeros((self.order + 1, 0)), *(np.stack(n) for n, _ in parts)]
        counted = [np.zeros(0, dtype=np.int64), *(c for _, c in parts)]
        return np.concatenate(nats, axis=1), np.concatenate(counted)

    def sample(
        self, num: int, length: int, generator: np.random.Generator
    ) -> UInt8[np.ndarray, "num length"]:
        """Draw ``num`` rows from left to right, with the probabilities of ``nats``."""
        rows = np.empty((num, length), dtype=np.uint8)
        context = np.zeros(num, dtype=np.int64)
        for index in range(length):
            count = self.counts[min(index, self.order)].reshape(-1, 4) + self.pseudo_count
            bounds = count.cumsum(axis=1)[context % len(count)]
            drawn = generator.random(num) * bounds[:, -1]
            rows[:, index] = (drawn[:, None] >= bounds[:, :-1]).sum(axis=1)
            context = (context * 4 + rows[:, index]) % 4**self.order
        return rows

    def _row_nats(self, block: np.ndarray) -> list[np.ndarray]:
        """Nats of each row under the orders 0, 1, ...; a shorter context uses its own order."""
        nats, results = np.zeros(block.shape), []
        for count, (codes, known) in zip(self.counts, _kmers(block, self.order), strict=True):
            kmers = codes[known]
            total = count.reshape(-1, 4).sum(axis=1)[kmers >> 2]
            alpha = self.pseudo_count
            nats[known] = np.log(total + 4 * alpha) - np.log(count[kmers] + alpha)
            results.append(nats.sum(axis=1))
        return results


def baselines(
    train_rows: Rows,
    eval_rows: Rows,
    orders: Iterable[int] = range(9),
    *,
    both_strands: bool = True,
) -> dict[str, RowNats]:
    """Fit chains to some rows and score others; the keys are names such as ``Markov order 3``.

    Args:
        train_rows: Ids ``0..4``, as one array or as blocks of rows.
        eval_rows: Rows to score on the given strand.
        orders: Orders in ``0..12``; all together need one pass over the rows.
        both_strands: Count the reverse complements of the training rows too.

    Raises:
        ValueError: If an argument is out of range or ``eval_rows`` has no known base.
    """
    wanted = list(orders)
    if not wanted or min(wanted) < 0:
        raise ValueError(f"baselines.orders must be in 0..{MAX_ORDER}, got {wanted}; use range(9)")
    model = MarkovModel.fit(train_rows, max(wanted), both_strands=both_strands)
    nats, counted = model.nats_by_order(eval_rows)
    if not counted.any():
        raise ValueError(
            "baselines.eval_rows must hold a known base, got none; choose other windows"
        )
    return {f"Markov order {order}": RowNats(nats[order], counted) for order in wanted}


def interpolated_baseline(
    train_rows: Rows, valid_rows: Rows, eval_rows: Rows, *, both_strands: bool = True
) -> dict[str, RowNats]:
    """Fit the interpolated chain, the strongest baseline, and score rows.

    A plain chain of high order overfits its few counts. The interpolated chain smooths each order
    towards the next lower one, so that long contexts can model repeats, see ``BackoffModel``. Its
    order, at most 24, and its concentration minimise the nats of ``valid_rows``.

    Args:
        train_rows: Ids ``0..4``, as one array or as blocks of rows.
        valid_rows: Rows to choose order and concentration on.
        eval_rows: Rows to score on the given strand.
        both_strands: Count the reverse complements of the training rows too.

    Raises:
        ValueError: If an id is not in ``0..4`` or ``valid_rows`` has no known base.
    """
    longest = longest_order(MASK_ID)
    counts = ContextCounts(_strands(train_rows, both_strands), MASK_ID, longest)
    model = BackoffModel.choose(counts, _strands(valid_rows, False))
    parts = [(model.nats(*block), _known(block[0])) for block in _strands(eval_rows, False)]
    nats, counted = (np.concatenate(column) for column in zip(*parts, strict=True))
    return {f"interpolated Markov, order {model.order}": RowNats(nats, counted)}


def _strands(rows: Rows, both: bool) -> Iterator[Block]:
    """Yield each block with a mask of its known bases, and its reverse complement if ``both``."""
    for block in _blocks(rows):
        yield block, block != MASK_ID
        if both:
            opposite = reverse_complement(block)
            yield opposite, opposite != MASK_ID


def _blocks(rows: Rows) -> Iterator[np.ndarray]:
    """Check rows and cut them into blocks of bounded size."""
    for part in [rows] if isinstance(rows, np.ndarray) else rows:
        step = max(1, _CHUNK_TOKENS // max(1, part.shape[1]))
        for first in range(0, len(part), step):
            block = part[first : first + step]
            if block.size and not 0 <= block.min() <= block.max() <= MASK_ID:
                raise ValueError(
                    f"MarkovModel.rows must hold ids in 0..{MASK_ID}, "
                    f"got {block.min()}..{block.max()}; encode with genomics.sequence.encode"
                )
            yield block


def _known(block: np.ndarray) -> np.ndarray:
    return (block != MASK_ID).sum(axis=1, dtype=np.int64)


def _kmers(block: np.ndarray, order: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield base-4 codes of the 1-mers, 2-mers, ... that end at each position, and a known mask."""
    bases = block.astype(np.int64)
    codes, known = bases.copy(), block != MASK_ID
    yield codes, known
    for j in range(1, order + 1):
        codes[:, j:] += bases[:, :-j] << (2 * j)
        known[:, :j] = False
        known[:, j:] &= block[:, :-j] != MASK_ID
        yield codes, known
