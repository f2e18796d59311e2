import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdiff.data.tokenizer import Tokenizer
from text.tokenizers import ByteTokenizer


@given(st.text())
def test_bytes_round_trip(string: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(string)
    assert tokenizer.decode(ids) == string
    assert ids.tolist() == list(string.encode())


def test_protocol_and_masks() -> None:
    tokenizer = ByteTokenizer()
    assert isinstance(tokenizer, Tokenizer)
    assert (
        tokenizer.decode(np.array([104, 256, 105, 256]))
        == "h\N{REPLACEMENT CHARACTER}i\N{REPLACEMENT CHARACTER}"
    )
    with pytest.raises(ValueError, match=r"must lie in 0..256, got 3..257"):
        tokenizer.decode([3, 257])
