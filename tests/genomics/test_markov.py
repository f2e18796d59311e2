"""Markov baselines against hand counts, normalisation, an exact chain and published real data."""

import itertools
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from genomics.baselines.markov import MarkovModel, baselines, interpolated_baseline
from genomics.data.sources import MarkovGenome, window_entropy
from genomics.io.genome import load_genome
from genomics.sequence.alphabet import reverse_complement
from seqdiff.experts import BackoffModel, ContextCounts
from seqdiff.likelihood import ratio_error

ROWS = np.random.default_rng(0).integers(0, 5, size=(7, 9)).astype(np.uint8)


def all_rows(length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(4), repeat=length)), dtype=np.uint8)


def counted_words(rows: np.ndarray, letters: int) -> np.ndarray:
    """Words without N, one at a time."""
    words = Counter(
        tuple(row[i : i + letters]) for row in rows.tolist() for i in range(len(row) - letters + 1)
    )
    return np.array([words[tuple(word)] for word in all_rows(letters).tolist()])


def naive_nats(model: MarkovModel, row: np.ndarray) -> float:
    """The score of one row from the definition."""
    total, context = 0.0, ()
    for letter in row.tolist():
        if letter == 4:
            context = ()
            continue
        context = context[-model.order :] if model.order else ()
        table = model.counts[len(context)].reshape((4,) * (len(context) + 1))[context]
        a = model.pseudo_count
        total -= math.log((table[letter] + a) / (table.sum() + 4 * a))
        context = (*context, letter)
    return total


@pytest.mark.parametrize("both_strands", [False, True])
def test_counts_are_those_of_a_plain_loop(both_strands: bool) -> None:
    model = MarkovModel.fit([ROWS[:3], ROWS[3:, :6]], 2, both_strands=both_strands)
    for j, count in enumerate(model.counts):
        expected = counted_words(ROWS[:3], j + 1) + counted_words(ROWS[3:, :6], j + 1)
        if both_strands:
            expected = expected + counted_words(reverse_complement(ROWS[:3]), j + 1)
            expected = expected + counted_words(reverse_complement(ROWS[3:, :6]), j + 1)
        np.testing.assert_array_equal(count, expected)


@pytest.mark.parametrize("order", [0, 1, 3])
def test_scores_are_those_of_a_plain_loop(order: int) -> None:
    model = MarkovModel.fit(ROWS, order, both_strands=True)
    nats, counted = model.nats(ROWS)
    np.testing.assert_allclose(nats, [naive_nats(model, row) for row in ROWS], rtol=1e-12)
    np.testing.assert_array_equal(counted, (ROWS != 4).sum(axis=1))


def test_all_orders_in_one_pass_are_the_orders_one_by_one() -> None:
    nats, counted = MarkovModel.fit(ROWS, 3).nats_by_order(iter([ROWS[:2], ROWS[2:]]))
    single = [MarkovModel.fit(ROWS, order).nats(ROWS)[0] for order in range(4)]
    np.testing.assert_allclose(nats, single, rtol=1e-12)
    np.testing.assert_array_equal(counted, (ROWS != 4).sum(axis=1))
    named = baselines(ROWS, ROWS, [0, 3], both_strands=False)
    assert list(named) == ["Markov order 0", "Markov order 3"]
    for order in (0, 3):
        rows = named[f"Markov order {order}"]
        np.testing.assert_allclose(rows.nats, single[order], rtol=1e-12)
        np.testing.assert_array_equal(rows.num_tokens, counted)


@pytest.mark.parametrize("order", [0, 2, 4])
def test_probabilities_of_all_windows_sum_to_one(order: int) -> None:
    model = MarkovModel.fit(ROWS, order)
    nats, _ = model.nats(all_rows(5))
    assert np.exp(-nats).sum() == pytest.approx(1, abs=1e-10)
    if order:
        # Scoring only positions with a complete context drops bases, so windows have no
        # probability.
        partial = nats - MarkovModel.fit(ROWS, order - 1).nats(all_rows(5)[:, :order])[0]
        assert np.exp(-partial).sum() > 2


def test_a_fit_converges_to_the_chain_it_was_drawn_from() -> None:
    source = MarkovGenome.random(2, concentration=1.0, seed=1)
    train, scored = source.sample(4000, 200, 0), source.sample(2000, 100, 1)
    excess = {
        order: float(
            (MarkovModel.fit(train, order).nats(scored)[0] + source.log_prob(scored)).mean()
        )
        for order in (1, 2, 3)
    }
    # Half a nat per free parameter over the training letters: 48/2 (192/2 at order 3) in 800,000.
    assert abs(excess[2]) < 100 * 0.02
    assert excess[2] == pytest.approx(100 * 24 / 8e5, abs=0.02)
    assert excess[3] < 0.1
    assert excess[1] > 1  # the broken twin: an order too low
    truth = window_entropy(source, 100).nats_per_token
    named = baselines(train, scored, [2], both_strands=False)["Markov order 2"]
    assert named.nats_per_token == pytest.approx(truth, abs=0.01)


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"MarkovModel.order must be in 0..12, got 13"):
        MarkovModel.fit(ROWS, 13)
    with pytest.raises(ValueError, match=r"pseudo_count must be positive, got 0"):
        MarkovModel.fit(ROWS, 1, pseudo_count=0.0)
    with pytest.raises(ValueError, match=r"ids in 0..4, got .*encode"):
        MarkovModel.fit(ROWS + 3, 1)
    with pytest.raises(ValueError, match=r"eval_rows must hold a known base"):
        baselines(ROWS, np.full((2, 3), 4), [1])
    with pytest.raises(ValueError, match=r"orders must be in 0..12, got \[\]"):
        baselines(ROWS, ROWS, [])


def test_human_chromosomes_give_the_known_baselines(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path))
    train, scored = (
        load_genome(real_data / "hg38" / name).ids
        for name in ("chr2_1-2333275.fa.gz", "hg38_chr20_1-1000000.fa.gz")
    )
    train, scored = (ids[: len(ids) // 1024 * 1024].reshape(-1, 1024) for ids in (train, scored))
    known = [1.9962, 1.9443, 1.9334, 1.9284, 1.9215, 1.9115, 1.8929, 1.8728, 1.8689]
    for pseudo_count, orders in ((0.1, 9), (0.5, 8)):
        model = MarkovModel.fit(train, 8, both_strands=True, pseudo_count=pseudo_count)
        nats, counted = model.nats_by_order(scored)
        bits = nats.sum(axis=1) / counted.sum() / math.log(2)
        np.testing.assert_allclose(bits[:orders], known[:orders], atol=2e-3)
    # Jeffreys' prior is better than 0.1 where counts are small, so it is the harder baseline.
    assert bits[8] == pytest.approx(1.8618, abs=2e-3)


@pytest.mark.slow
def test_the_interpolated_chain_on_human_chromosomes(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It improves beyond the orders at which plain chains have too few counts; its
    error is honest.
    """
    monkeypatch.setenv("SEQDIFF_CACHE", str(tmp_path))
    train, scored = (
        load_genome(real_data / "hg38" / name).ids
        for name in ("chr2_1-2333275.fa.gz", "hg38_chr20_1-1000000.fa.gz")
    )
    train, scored = (ids[: len(ids) // 1024 * 1024].reshape(-1, 1024) for ids in (train, scored))
    known = scored != 4
    blocks = [(rows, rows != 4) for rows in (train, reverse_complement(train))]
    counts = ContextCounts(blocks, 4, 10)
    for order, bits in ((8, 1.8492), (9, 1.8314), (10, 1.8190)):
        nats = BackoffModel(counts, order, 64.0).nats(scored, known).sum()
        assert nats / known.sum() / math.log(2) == pytest.approx(bits, abs=2e-4)

    rows = baselines(train, scored, [8, 9])
    assert rows["Markov order 9"].bits_per_token > rows["Markov order 8"].bits_per_token + 0.02
    [(name, chain)] = interpolated_baseline(train[:-230], train[-230:], scored).items()
    assert name == "interpolated Markov, order 24" and chain.bits_per_token < 1.8
    plain = rows["Markov order 8"].counted
    naive = ratio_error(plain.nats, plain.num_tokens, len(plain.nats))
    assert 1.5 < plain.nats_per_token_error / naive < 2.2
    gap = plain.minus(chain.counted)
    assert gap.nats_per_token > 10 * gap.nats_per_token_error
