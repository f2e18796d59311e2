"""Witten-Bell models against a twin written with dictionaries; their distributions sum to one."""

from collections import defaultdict
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.corpora.ngrams import NGramModel

K = 3


def twin(train: list[list[int]], order: int):
    """The same distribution from its definition, symbol by symbol."""
    followers: dict[tuple, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for row in train:
        for place, symbol in enumerate(row):
            for k in range(min(order, place) + 1):
                followers[tuple(row[place - k : place])][symbol] += 1

    def prob(symbol: int, context: tuple) -> float:
        lower = prob(symbol, context[1:]) if context else 1 / K
        seen = followers.get(context)
        if not seen:
            return lower
        return (seen.get(symbol, 0) + len(seen) * lower) / (sum(seen.values()) + len(seen))

    def nats(row: list[int]) -> float:
        return -sum(
            np.log(prob(symbol, tuple(row[max(0, place - order) : place])))
            for place, symbol in enumerate(row)
        )

    return nats


def block(rows: list[list[int]], pad: int = K):
    length = max(map(len, rows))
    tokens = np.array([row + [pad] * (length - len(row)) for row in rows])
    return tokens, np.arange(length) < np.array([len(row) for row in rows])[:, None]


ROWS = st.lists(st.lists(st.integers(0, K - 1), min_size=1, max_size=9), min_size=1, max_size=6)


@given(train=ROWS, scored=ROWS, order=st.integers(0, 3))
def test_the_distribution_is_its_definition(train, scored, order) -> None:
    model = NGramModel([block(train), block(train[:1])], K, order)
    nats, counted = model.nats_by_order([block(scored[:2]), block(scored)])
    every = scored[:2] + scored
    assert counted.tolist() == list(map(len, every))
    for k in range(order + 1):
        expected = list(map(twin(train + train[:1], k), every))
        np.testing.assert_allclose(nats[k], expected, atol=1e-9)


def test_distributions_sum_to_one() -> None:
    rng = np.random.default_rng(0)
    train = [rng.integers(K, size=20).tolist() for _ in range(5)]
    every = [list(row) for row in product(range(K), repeat=4)]
    model = NGramModel([block(train)], K, 2)
    nats, _ = model.nats_by_order([block([row]) for row in every])
    np.testing.assert_allclose(np.exp(-nats).sum(axis=1), 1, atol=1e-12)
    # A twin without the escape mass d(c) in the denominator does not sum to one.
    assert abs(sum(np.exp(-twin_without_escape(train)(row)) for row in every) - 1) > 0.1


def twin_without_escape(train):
    counts = np.bincount(np.concatenate(train), minlength=K)
    distribution = (counts + K / K) / counts.sum()
    return lambda row: -np.log(distribution[row]).sum()


def test_a_chain_is_found() -> None:
    row = ([0, 1, 2] * 200)[:512]
    model = NGramModel([block([row])], K, 1)
    nats, [counted] = model.nats_by_order([block([row])])
    assert nats[0] / counted == pytest.approx(np.log(3), abs=1e-2)
    assert nats[1] / counted < 0.02


def test_orders_out_of_range() -> None:
    for vocab_size, order in ((K, -1), (50257, 4)):
        with pytest.raises(ValueError, match=r"NGramModel.order must be at least 0, and "):
            NGramModel([], vocab_size, order)
