"""Longest matches and containment, against plain search in strings."""

import numpy as np
import pytest

from genomics.sequence import matches
from genomics.sequence.alphabet import decode, encode, reverse_complement
from genomics.sequence.matches import build, overlap, shares_word


def search(row: np.ndarray, text: np.ndarray, word: int) -> tuple[int, int, int]:
    """The expected result, by searching every part of the letters."""
    ours, there = decode(row), (decode(text), decode(reverse_complement(text)))

    def found(part: str) -> bool:
        return "N" not in part and any(part in strand for strand in there)

    longest = 0
    for start in range(len(ours)):
        while start + longest < len(ours) and found(ours[start : start + longest + 1]):
            longest += 1
    words = [ours[i : i + word] for i in range(len(ours) - word + 1)]
    words = [part for part in words if "N" not in part]
    return longest, len(words), sum(map(found, words))


@pytest.fixture(params=[1 << 21, 64], ids=["one batch", "many batches"])
def batch(request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matches, "_BATCH_BASES", request.param)


@pytest.mark.usefixtures("batch")
def test_as_plain_search_finds() -> None:
    generator = np.random.default_rng(0)
    text = generator.integers(0, 4, 1500).astype(np.uint8)
    text[700:705] = 4
    random = [generator.integers(0, 4, 50).astype(np.uint8) for _ in range(8)]
    copied = text[200:290]
    across = text[690:720]
    flanked = np.concatenate([random[0], reverse_complement(text[900:945]), random[1]])
    rows = [*random, copied, reverse_complement(copied), across, flanked, text[:1], text[-30:]]
    rows += [np.full(30, 4, dtype=np.uint8), np.zeros(0, dtype=np.uint8), encode("A" * 40)]
    calls = []
    found = overlap(rows, text, word=20, on_progress=lambda: calls.append(1))
    expected = [search(row, text, 20) for row in rows]
    given = zip(found.longest, found.words, found.contained, strict=True)
    assert [tuple(map(int, row)) for row in given] == expected
    assert expected[8][0] == expected[9][0] == 90 and expected[11][0] >= 45 and calls
    total = [sum(part) for part in zip(*expected, strict=True)]
    assert found.containment == pytest.approx(total[2] / total[1])


@pytest.mark.usefixtures("batch")
@pytest.mark.parametrize("word", [1, 6, 31, 32, 33, 50])
def test_shared_words_as_plain_search_finds(word: int) -> None:
    """Rows contain a stretch of the text: one base less than a word, a word, or one more."""
    generator = np.random.default_rng(word)
    text = generator.integers(0, 4, 400).astype(np.uint8)
    text[[90, 210, 333]] = 4
    rows = [encode(""), encode("N" * 60), encode("ACG")]
    for number in range(60):
        size = word - 1 + number % 3
        start = int(generator.integers(0, len(text) - size))
        part = text[start : start + size]
        part = reverse_complement(part) if number % 2 else part
        ends = [generator.integers(0, 5, 5).astype(np.uint8) for _ in range(2)]
        rows.append(np.concatenate([ends[0], part, ends[1]]))
    expected = [search(row, text, word)[2] > 0 for row in rows]
    assert shares_word(rows, text, word).tolist() == expected
    assert word == 1 or 10 < sum(expected) < 53
    assert shares_word([], text, word).tolist() == []


def test_a_text_shorter_than_a_word_holds_none() -> None:
    found = overlap([encode("ACGTACGTACGTACGTACGTACGT")], encode("ACG"), word=20)
    assert (found.longest.tolist(), found.words.tolist(), found.contained.tolist()) == (
        [3],
        [5],
        [0],
    )


def test_no_words_no_containment() -> None:
    assert np.isnan(overlap([encode("ACG")], encode("ACGT"), word=20).containment)


def test_sharing_a_word_is_a_match_as_long() -> None:
    generator = np.random.default_rng(1)
    text = generator.integers(0, 4, 3000).astype(np.uint8)
    rows = [text[5:55], text[5:54], reverse_complement(text[100:170]), generator.permutation(text)]
    rows += [np.concatenate([text[200:249], [4], text[250:299]]).astype(np.uint8), text[:0]]
    assert shares_word(rows, text, 50).tolist() == [1, 0, 1, 0, 0, 0]
    assert shares_word([], text, 50).tolist() == []


def test_repeats_of_few_letters() -> None:
    """Many shared suffixes, which need every clone and link of the automaton."""
    generator = np.random.default_rng(2)
    for _ in range(200):
        letters = generator.integers(1, 4)
        rows = [
            generator.integers(0, letters, generator.integers(0, 12)).astype(np.uint8)
            for _ in range(generator.integers(1, 5))
        ]
        text = generator.integers(0, 5 if letters == 3 else letters, 30).astype(np.uint8)
        found = overlap(rows, text, word=3)
        given = zip(found.longest, found.words, found.contained, strict=True)
        assert [tuple(map(int, row)) for row in given] == [search(row, text, 3) for row in rows]


def test_no_more_than_two_states_a_base() -> None:
    """Blumer et al. 1985: linear for every sequence."""
    for ids in (encode("A" * 999), encode("AC" * 500), encode("A" * 500 + "C" * 499)):
        assert len(build(ids).link) <= 2 * len(ids)
