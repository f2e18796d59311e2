"""k-mer spectra against counting words one by one, and divergences of known spectra."""

from collections import Counter
from itertools import product

import numpy as np
import pytest

from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.kmers import (
    _BLOCK,
    MAX_K,
    count_kmers,
    join,
    js_divergence,
    merge_strands,
    pearson,
)


def plainly(text: str) -> list[np.ndarray]:
    """Cut every word from the text."""
    found = []
    for k in range(1, MAX_K + 1):
        words = Counter(text[i : i + k] for i in range(len(text) - k + 1))
        found.append(np.array([words["".join(word)] for word in product("ACGT", repeat=k)]))
    return found


def with_unknown(size: int, share: float, seed: int) -> np.ndarray:
    p = [(1 - share) * part for part in (0.4, 0.1, 0.2, 0.3)]
    return np.random.default_rng(seed).choice(5, size, p=[*p, share]).astype(np.uint8)


@pytest.mark.parametrize("size", [0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 100, 999])
@pytest.mark.parametrize("share", [0.0, 0.05, 1.0])
def test_counts_every_word(size: int, share: float) -> None:
    ids = with_unknown(size, share, size)
    for ours, theirs in zip(count_kmers(ids), plainly(decode(ids)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("size", [_BLOCK - 1, _BLOCK, _BLOCK + 1, _BLOCK + 5, 2 * _BLOCK + 7])
def test_words_across_blocks_count_once(size: int) -> None:
    ids = with_unknown(size, 0.001, 1)
    for ours, theirs in zip(count_kmers(ids), plainly(decode(ids)), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_no_word_crosses_from_one_row_to_the_next() -> None:
    rows = [encode("ACGT"), encode("A"), encode(""), encode("GGTT")]
    assert decode(join(rows)) == "ACGTNANNGGTTN"
    assert [int(c.sum()) for c in count_kmers(join(rows))] == [9, 6, 4, 2, 0, 0]
    assert len(join([])) == 0


def test_both_strands_is_the_count_of_either_strand() -> None:
    ids = with_unknown(500, 0.02, 3)
    other = count_kmers(reverse_complement(ids))
    for both, one, two in zip(
        merge_strands(count_kmers(ids)), count_kmers(ids), other, strict=True
    ):
        np.testing.assert_array_equal(both, one + two)


def test_other_ids_are_refused() -> None:
    with pytest.raises(ValueError, match=r"count_kmers\.ids must lie in 0\.\.4, got 5"):
        count_kmers(np.array([0, 5], dtype=np.uint8))


def test_divergence_of_known_spectra() -> None:
    a, b = np.array([1, 0, 0, 0]), np.array([0, 3, 0, 0])
    assert js_divergence(a, b) == pytest.approx(1, abs=1e-12)
    assert js_divergence(a, 7 * a) == pytest.approx(0, abs=1e-12)
    # P = (1, 0), Q = (1/2, 1/2), M = (3/4, 1/4): H(M) - H(Q) / 2.
    entropy = -(0.75 * np.log2(0.75) + 0.25 * np.log2(0.25))
    expected = entropy - 0.5
    found = js_divergence(a, np.array([5, 5, 0, 0]))
    assert found == pytest.approx(expected, abs=1e-12)
    assert abs(found**0.5 - expected) > 0.1, "the distance is another number"


def test_divergence_below_zero_by_rounding_is_zero() -> None:
    """SciPy's distance is the root of a negative number for about 400 of these 1,000 pairs."""
    generator = np.random.default_rng(0)
    for counts in generator.integers(1, 10**8, (1000, 4)):
        other = counts * generator.integers(1, 50)
        other[0] += 1
        assert js_divergence(counts, other) == pytest.approx(0, abs=1e-12)


def test_pearson_of_known_spectra() -> None:
    a = np.array([1, 2, 3, 4])
    assert pearson(a, 10 * a) == pytest.approx(1)
    assert pearson(a, a[::-1]) == pytest.approx(-1)
    # Centred: (-1, 0, 0, 1) and (0, -1, 1, 0).
    assert pearson(np.array([1, 2, 2, 3]), np.array([2, 1, 3, 2])) == pytest.approx(0)
    assert np.isnan(pearson(a, np.array([2, 2, 2, 2])))


@pytest.mark.parametrize("compare", [js_divergence, pearson])
def test_an_empty_spectrum_is_refused(compare) -> None:
    with pytest.raises(ValueError, match="counts must hold a k-mer, got none"):
        compare(np.array([1, 2, 3, 4]), np.zeros(4, dtype=np.int64))
