"""Words as numbers, letter by letter."""

import numpy as np
import pytest

from genomics.alphabet import encode
from genomics.words import known_words, word_codes


@pytest.mark.parametrize("width", [1, 2, 3, 7, 20, 31, 32])
def test_words_have_their_code(width: int) -> None:
    ids = np.random.default_rng(width).integers(0, 4, 70).astype(np.uint8)
    codes = [int("".join(map(str, ids[i : i + width])), 4) for i in range(len(ids) - width + 1)]
    assert word_codes(ids, width).tolist() == codes


def test_known_words() -> None:
    assert known_words(encode("ACNGTA"), 2).tolist() == [1, 0, 0, 1, 1, 0]
    assert known_words(encode("ACN"), 5).tolist() == [0, 0, 0]
