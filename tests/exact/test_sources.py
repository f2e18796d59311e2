"""Synthetic genomes against enumeration over letters and over hidden paths.

The false-alarm rate of statistical assertions is 1e-6; the power against the named wrong sampler
must exceed 0.999.
"""

import itertools

import numpy as np
import pytest
import torch

from genomics.data.sources import (
    Entropy,
    MarkovGenome,
    PlantedMotif,
    consensus_matrix,
    entropy_rate,
    symmetrise,
    window_entropy,
)
from genomics.sequence.alphabet import reverse_complement
from tests.statistics import pearson, power

MOTIFS = (
    PlantedMotif(consensus_matrix("AC", 0.9), 0.15),
    PlantedMotif(np.array([[0.1, 0.2, 0.3, 0.4], [0, 0, 1, 0], [0.5, 0.5, 0, 0]]), 0.2),
)
orders = pytest.mark.parametrize("order", [0, 1, 2, 3])


def genome(order: int, motifs: tuple[PlantedMotif, ...] = MOTIFS) -> MarkovGenome:
    return MarkovGenome.random(
        order, concentration=3.0, seed=order, strand_symmetric=False, motifs=motifs
    )


def all_rows(length: int) -> np.ndarray:
    return np.array(list(itertools.product(range(4), repeat=length)), dtype=np.uint8)


class OneStrandTwice(PlantedMotif):
    """Broken: the minus strand is reversed but not complemented."""

    @property
    def strands(self):
        return self.matrix, np.ascontiguousarray(self.matrix[::-1])


def uniform_start(source: MarkovGenome) -> MarkovGenome:
    """Broken: starts from the uniform distribution instead of the stationary one."""
    source.stationary = np.full_like(source.stationary, 1 / source.stationary.size)
    return source


def path_probability(
    source: MarkovGenome, context: tuple[int, ...], rows: np.ndarray
) -> np.ndarray:
    """P(rows | context, an instance starts now), summed over all divisions of the row into
    instances.

    Independent of the tables of ``MarkovGenome``: a recursion over whole instances, the last of
    which may be cut at the end of the row. Returns one value per row.
    """
    k, length = source.order, rows.shape[1]
    items = [(m.rate / 2, s) for m in source.motifs for s in (m.matrix, m.matrix[::-1, ::-1])]
    free = 1 - sum(rate for rate, _ in items)

    def from_place(row: tuple[int, ...], place: int) -> float:
        if place == length:
            return 1.0
        before = (context + row[:place])[place : place + k]
        code = sum(letter * 4 ** (k - 1 - j) for j, letter in enumerate(before))
        total = free * source.transitions[code, row[place]] * from_place(row, place + 1)
        for rate, matrix in items:
            width = min(len(matrix), length - place)
            seen = np.prod([matrix[j, row[place + j]] for j in range(width)])
            total += rate * seen * from_place(row, place + width)
        return total

    return np.array([from_place(tuple(row), 0) for row in rows.tolist()])


@orders
def test_probabilities_of_all_windows_sum_to_one(order: int) -> None:
    for motifs in ((), MOTIFS):
        for length in (1, 2, 5):
            total = np.exp(genome(order, motifs).log_prob(all_rows(length))).sum()
            assert total == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("order", [0, 1, 2])
def test_forward_algorithm_equals_a_sum_over_hidden_paths(order: int) -> None:
    """Given a known context at a boundary, which is the only place where the recursion has no
    memory.
    """
    length = 4
    rows = all_rows(length)

    def error(source: MarkovGenome, reference: MarkovGenome) -> float:
        errors = []
        for context in itertools.product(range(4), repeat=order):
            with_context = np.array([[*context, *row] for row in rows.tolist()], dtype=np.uint8)
            background = np.zeros(len(rows), dtype=np.int64)
            nats = source.conditional_nats(with_context, background)[:, order:].sum(axis=1)
            expected = path_probability(reference, context, rows)
            errors.append(np.abs(np.exp(-nats) - expected).max())
        return max(errors)

    assert error(genome(order), genome(order)) < 1e-12
    broken = genome(order, tuple(OneStrandTwice(m.matrix, m.rate) for m in MOTIFS))
    assert error(broken, genome(order)) > 1e-3


@orders
def test_windows_are_stationary(order: int) -> None:
    """Letters 2..L + 1 have the distribution of letters 1..L; the chain keeps its joint
    distribution.
    """

    def drift(source: MarkovGenome) -> float:
        distribution = np.exp(source.log_prob(all_rows(5))).reshape((4,) * 5)
        return np.abs(distribution.sum(axis=0) - distribution.sum(axis=4)).max()

    assert drift(genome(order)) < 1e-14
    assert drift(uniform_start(genome(order))) > 1e-3
    assert genome(order).stationary.sum() == pytest.approx(1, abs=1e-14)
    assert genome(order).stationary.min() >= 0


@pytest.mark.parametrize("order", [0, 2])
def test_unknown_letters_are_summed_over(order: int) -> None:
    source = genome(order)
    distribution = np.exp(source.log_prob(all_rows(5))).reshape((4,) * 5)
    rows = np.array(
        [[4, 1, 2, 3, 0], [1, 4, 4, 0, 4], [4] * 5, [0, 1, 2, 3, 3], [2, 0, 1, 1, 4]],
        dtype=np.uint8,
    )
    expected = [
        distribution[tuple(slice(None) if i == 4 else i for i in row)].sum()
        for row in rows.tolist()
    ]
    np.testing.assert_allclose(np.exp(source.log_prob(rows)), expected, rtol=1e-12)


@orders
def test_closed_form_entropy_equals_enumeration(order: int) -> None:
    source = genome(order, ())
    entropies = []
    for length in (1, 2, 4, 5, 6):
        log_prob = source.log_prob(all_rows(length))
        entropies.append(-float((np.exp(log_prob) * log_prob).sum()))
        closed = window_entropy(source, length)
        assert closed.nats == pytest.approx(entropies[-1], abs=1e-10)
        assert closed.standard_error == 0
    assert entropy_rate(source).nats == pytest.approx(entropies[-1] - entropies[-2], abs=1e-10)


@pytest.mark.parametrize("order", [0, 2])
def test_sampled_entropy_agrees_with_enumeration(order: int) -> None:
    source = genome(order)
    log_prob = source.log_prob(all_rows(6))
    truth = -float((np.exp(log_prob) * log_prob).sum())
    estimate = window_entropy(source, 6, num=8192)
    assert abs(estimate.nats - truth) < 5 * estimate.standard_error
    plain = float(np.sqrt((np.exp(log_prob) * (log_prob + truth) ** 2).sum() / 8192))
    assert estimate.standard_error < 0.95 * plain
    assert window_entropy(source, 6, num=8192).nats == estimate.nats
    # If the minus strand is not complemented, the score rises by the divergence from the truth.
    broken = genome(order, tuple(OneStrandTwice(m.matrix, m.rate) for m in MOTIFS))
    cross = -float((np.exp(log_prob) * broken.log_prob(all_rows(6))).sum())
    assert cross - estimate.nats > 5 * estimate.standard_error


def test_entropy_rate_lies_between_its_bounds() -> None:
    """Against enumeration: H(X_6 | X_1..5) above, and the same estimator at twice the length."""
    source = genome(1)
    estimate = entropy_rate(source, length=64, num=4096)
    distributions = [source.log_prob(all_rows(length)) for length in (5, 6)]
    five, six = (-float((np.exp(p) * p).sum()) for p in distributions)
    assert estimate.nats < six - five + 5 * estimate.standard_error
    longer = entropy_rate(source, length=128, num=4096, seed=1)
    error = np.hypot(estimate.standard_error, longer.standard_error)
    assert abs(estimate.nats - longer.nats) < 5 * error + estimate.bias_bound
    assert 0 <= estimate.bias_bound < 1e-3
    short = window_entropy(source, 32)
    assert short.nats_per_token > estimate.nats


@pytest.mark.parametrize("order", [0, 1, 2])
def test_samples_follow_the_exact_distribution(order: int) -> None:
    source, draws, length = genome(order), 200_000, 4
    distribution = torch.from_numpy(np.exp(source.log_prob(all_rows(length))))
    codes = source.sample(draws, length, seed=3) @ 4 ** np.arange(length - 1, -1, -1)
    counts = torch.from_numpy(np.bincount(codes, minlength=4**length)).double()
    statistic, threshold = pearson(counts, distribution)
    assert statistic < threshold
    # Named wrong samplers: no complement on the minus strand; not stationary at the start.
    broken = genome(order, tuple(OneStrandTwice(m.matrix, m.rate) for m in MOTIFS))
    for wrong in (broken, uniform_start(genome(order))):
        other = torch.from_numpy(np.exp(wrong.log_prob(all_rows(length))))
        assert power(other, distribution, draws) > 0.999


def test_long_genome_and_short_windows() -> None:
    source = genome(3)
    assert source.sample(1, 500, seed=0).shape == (1, 500)
    assert source.sample(5, 2, seed=0).shape == (5, 2)
    np.testing.assert_array_equal(source.sample(5, 9, seed=1), source.sample(5, 9, seed=1))
    assert not np.array_equal(source.sample(5, 9, seed=1), source.sample(5, 9, seed=2))


@orders
def test_a_symmetrised_background_is_the_same_on_both_strands(order: int) -> None:
    rows = all_rows(5)

    def asymmetry(source: MarkovGenome) -> float:
        return np.abs(source.log_prob(rows) - source.log_prob(reverse_complement(rows))).max()

    plain = genome(order, ())
    assert asymmetry(MarkovGenome(symmetrise(plain.transitions))) < 1e-12
    assert asymmetry(plain) > 1e-2
    # With motifs the symmetry is exact for order 0 only: see the class.
    planted = MarkovGenome(symmetrise(plain.transitions), MOTIFS)
    assert asymmetry(planted) < 1e-12 if order == 0 else asymmetry(planted) > 1e-3


def test_units() -> None:
    entropy = Entropy(nats=10 * np.log(4), standard_error=np.log(2), num_tokens=10)
    assert entropy.bits_per_token == pytest.approx(2)
    assert entropy.bits_per_token_error == pytest.approx(0.1)


def test_errors_say_what_to_do() -> None:
    uniform = np.full((4, 4), 0.25)
    with pytest.raises(ValueError, match=r"4 \*\* k rows with k in 0..5, got 3"):
        MarkovGenome(uniform[:3])
    with pytest.raises(ValueError, match=r"rows of positive probabilities .* smallest entry 0"):
        MarkovGenome(np.eye(4))
    with pytest.raises(ValueError, match=r"sum to less than 1, got 1.2"):
        MarkovGenome(uniform, [PlantedMotif(uniform, 0.6), PlantedMotif(uniform, 0.6)])
    with pytest.raises(ValueError, match=r"order in 0..5 and a positive concentration, got 6"):
        MarkovGenome.random(6, concentration=1.0, seed=0)
    with pytest.raises(ValueError, match=r"length of at least 1, got 1 and 0"):
        MarkovGenome(uniform).sample(1, 0, seed=0)
    with pytest.raises(ValueError, match=r"ids in 0..4, got 0..7"):
        MarkovGenome(uniform).log_prob(np.array([[0, 7]]))
    with pytest.raises(ValueError, match=r"rows that are probabilities .* divide each row"):
        PlantedMotif(uniform * 2, 0.1)
    with pytest.raises(ValueError, match=r"rate must be in \(0, 1\), got 0"):
        PlantedMotif(uniform, 0.0)
    with pytest.raises(ValueError, match=r"IUPAC codes, got 'AZ'"):
        consensus_matrix("AZ", 0.9)
    with pytest.raises(ValueError, match=r"fidelity must be in \(0, 1\], got 2"):
        consensus_matrix("A", 2.0)
    with pytest.raises(
        ValueError, match=r"window_entropy needs length .* num of at least 16, got 4 and 3"
    ):
        window_entropy(MarkovGenome(uniform), 4, num=3)
    with pytest.raises(
        ValueError, match=r"entropy_rate needs length of at least 2 .* got 1 and 16"
    ):
        entropy_rate(MarkovGenome(uniform), length=1, num=16)
