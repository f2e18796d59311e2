"""The interpolated chain: its definition, one row computed by hand, and its limits."""

import math
from collections import Counter
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdiff.experts import BackoffModel, ContextCounts, longest_order

K = 3
UNKNOWN = K


def block(rows: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    length = max(map(len, rows))
    tokens = np.array([row + [UNKNOWN] * (length - len(row)) for row in rows])
    return tokens, tokens != UNKNOWN


def fitted(train: list[list[int]], order: int, m: float, vocab_size: int = K) -> BackoffModel:
    return BackoffModel(ContextCounts([block(train)], vocab_size, order), order, m)


def twin(train: list[list[int]], order: int, m: float) -> Callable[[list[int]], float]:
    """The definition, one token and one context at a time."""
    words, contexts = Counter(), Counter()
    for row in train:
        for place, token in enumerate(row):
            for context in known_contexts(row, place, order) if token != UNKNOWN else []:
                words[*context, token] += 1
                contexts[context] += 1

    def prob(token: int, context: tuple[int, ...]) -> float:
        lower = prob(token, context[1:]) if context else 1 / K
        return (words[*context, token] + m * lower) / (contexts[context] + m)

    def nats(row: list[int]) -> float:
        return -sum(
            math.log(prob(token, known_contexts(row, place, order)[-1]))
            for place, token in enumerate(row)
            if token != UNKNOWN
        )

    return nats


def known_contexts(row: list[int], place: int, order: int) -> list[tuple[int, ...]]:
    found = [()]
    while len(found) <= order and place >= len(found) and row[place - len(found)] != UNKNOWN:
        found.append(tuple(row[place - len(found) : place]))
    return found


ROWS = st.lists(st.lists(st.integers(0, K), min_size=1, max_size=9), min_size=1, max_size=6)


@given(train=ROWS, scored=ROWS, order=st.integers(0, 4), m=st.sampled_from([0.01, 1.0, 64.0]))
def test_rows_cost_what_the_definition_says(train, scored, order, m) -> None:
    counts = ContextCounts([block(train), block(train[:1])], K, 4)
    expected = list(map(twin(train + train[:1], order, m), scored))
    np.testing.assert_allclose(
        BackoffModel(counts, order, m).nats(*block(scored)), expected, atol=1e-9
    )


def test_a_row_worked_out_by_hand() -> None:
    """For 0 1 0 1 1 with m = 2: p(0) = (2 + 2/2) / (5 + 2) = 3/7, p(1) = 4/7.

    0 is followed twice by 1, and 1 once by each: p(1 | 0) = (2 + 2 * 4/7) / 4 = 11/14 and p(0 | 1)
    = (1 + 2 * 3/7) / 4 = 13/28.
    """
    model = fitted([[0, 1, 0, 1, 1]], 1, 2.0, vocab_size=2)
    [nats] = model.nats(np.array([[0, 1, 0]]), np.ones((1, 3), dtype=bool))
    assert nats == pytest.approx(-math.log(3 / 7 * 11 / 14 * 13 / 28), abs=1e-12)


@pytest.mark.parametrize("order", [0, 1, 2, 4])
def test_probabilities_sum_to_one(order: int) -> None:
    rng = np.random.default_rng(0)
    train = rng.integers(K, size=(5, 20)).tolist()
    every = [list(row) for row in product(range(K), repeat=5)]
    nats = fitted(train, order, 8.0).nats(*block(every))
    assert np.exp(-nats).sum() == pytest.approx(1, abs=1e-10)


def test_a_broken_normalisation_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin: omits m from the denominator, so its rows sum to more than one."""
    rng = np.random.default_rng(0)
    train = rng.integers(K, size=(5, 20)).tolist()
    every = [list(row) for row in product(range(K), repeat=5)]
    levels = ContextCounts.levels

    def short(self: ContextCounts, *args):
        return (level._replace(seen=level.seen - 8) for level in levels(self, *args))

    model = fitted(train, 1, 8.0)
    monkeypatch.setattr(ContextCounts, "levels", short)
    assert np.exp(-model.nats(*block(every))).sum() > 2


def test_both_limits_of_the_concentration() -> None:
    """Towards 0 the longest known context decides; towards infinity no context matters."""
    train = [[0, 1, 2, 0, 1, 1, 2, 2, 0, 1]]
    # 0 1 was followed by 2 and by 1, 1 1 by 2; 0 0 never occurred, and 0 was followed by 1 only.
    scored = [[0, 1, 2], [1, 1, 2], [0, 0, 1]]
    near_zero = fitted(train, 2, 1e-9).nats(*block(scored))
    assert near_zero[0] == pytest.approx(-math.log(3 / 10 * 1 / 2), abs=1e-6)
    assert near_zero[1] == pytest.approx(-math.log(4 / 10 * 1 / 3), abs=1e-6)
    # The second 0 never followed a 0: it costs -log(m p / 3).
    assert near_zero[2] == pytest.approx(-math.log(3 / 10 * (1e-9 * 0.3 / 3)), abs=1e-6)
    flat = fitted(train, 2, 1e12).nats(*block(scored))
    np.testing.assert_allclose(flat, 3 * math.log(K), rtol=1e-9)


def test_counts_serve_every_lower_order() -> None:
    rng = np.random.default_rng(1)
    train, scored = rng.integers(K, size=(2, 6, 30)).tolist()
    whole = ContextCounts([block(train)], K, 5)
    for order in range(6):
        one = fitted(train, order, 4.0)
        np.testing.assert_array_equal(
            BackoffModel(whole, order, 4.0).nats(*block(scored)), one.nats(*block(scored))
        )


def test_the_choice_is_the_least_of_all_pairs() -> None:
    rng = np.random.default_rng(2)
    chain = np.array([[0.8, 0.1, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    rows = np.zeros((40, 30), dtype=np.int64)
    for place in range(1, 30):
        rows[:, place] = [rng.choice(K, p=chain[before]) for before in rows[:, place - 1]]
    counts, valid = ContextCounts([block(rows[:20].tolist())], K, 3), block(rows[20:].tolist())
    chosen = BackoffModel.choose(counts, [valid])
    costs = {
        (order, 2.0**power): BackoffModel(counts, order, 2.0**power).nats(*valid).sum()
        for order in range(4)
        for power in range(11)
    }
    assert (chosen.order, chosen.concentration) == min(costs, key=lambda pair: costs[pair])
    assert chosen.order >= 1
    cut = [(valid[0][:7], valid[1][:7]), (valid[0][7:], valid[1][7:])]
    again = BackoffModel.choose(counts, cut)
    assert (again.order, again.concentration) == (chosen.order, chosen.concentration)


@pytest.mark.parametrize(("vocab_size", "order"), [(4, 24), (27, 12), (256, 6), (50_257, 3)])
def test_the_longest_order_fits_into_63_bits(vocab_size: int, order: int) -> None:
    assert longest_order(vocab_size) == order
    assert (vocab_size + 1) ** (order + 1) < 2**63
    rng = np.random.default_rng(0)
    rows = rng.integers(vocab_size, size=(1, 40))
    rows[0, -order - 1 :] = vocab_size - 1  # the largest possible code
    known = np.ones_like(rows, dtype=bool)
    counts = ContextCounts([(rows, known)], vocab_size, order)
    model = BackoffModel(counts, order, 1e-9)
    assert model.nats(rows, known)[0] < model.nats(rng.integers(vocab_size, size=(1, 40)), known)[0]


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"ContextCounts.order must be in 0..24 for 4 symbols, go"):
        ContextCounts([], 4, 25)
    with pytest.raises(ValueError, match=r"ContextCounts.tokens must be in 0..1 .* got 0..2; mark"):
        ContextCounts([block([[0, 2]])], 2, 1)
    counts = ContextCounts([block([[0, 1]])], K, 1)
    with pytest.raises(ValueError, match=r"BackoffModel.order must be in 0..1, got 2"):
        BackoffModel(counts, 2, 1.0)
    for m in (0.0, math.inf, math.nan):
        with pytest.raises(ValueError, match=r"concentration must be above 0 and finite, got"):
            BackoffModel(counts, 1, m)
    with pytest.raises(ValueError, match=r"BackoffModel.blocks must hold a known token, got none"):
        BackoffModel.choose(counts, [block([[UNKNOWN]])])
    with pytest.raises(ValueError, match=r"BackoffModel.blocks must hold a known token, got none"):
        BackoffModel.choose(counts, [])
