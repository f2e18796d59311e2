import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from seqdiff.data.tokenizer import Tokenizer
from text.tokenizers.characters import ByteTokenizer, CharacterTokenizer, Text8Tokenizer, digest


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


@given(st.text(alphabet="\n aé𝄞"))
def test_characters_round_trip(string: str) -> None:
    tokenizer = CharacterTokenizer("aé𝄞 \n")
    ids = tokenizer.encode(string)
    assert tokenizer.decode(ids) == string
    assert ids.tolist() == ["aé𝄞 \n".index(c) for c in string]


def test_a_character_outside_the_alphabet_is_named_with_its_offset() -> None:
    tokenizer = CharacterTokenizer("abé")
    for wrong in ("c", "\x00", "𝄞"):  # between, below and above the characters of the alphabet
        with pytest.raises(ValueError, match="only the 3 characters of the alphabet") as error:
            tokenizer.encode("aé" + wrong + "b")
        assert f"got {wrong!r} at offset 2; add it to" in str(error.value)


def test_alphabets_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one character, each once, got none"):
        CharacterTokenizer("")
    with pytest.raises(ValueError, match="got 'a' twice; correct the alphabet"):
        CharacterTokenizer("aba")


def test_text8_has_27_characters() -> None:
    tokenizer = Text8Tokenizer()
    assert tokenizer.vocab_size == 27
    assert tokenizer.encode(" az").tolist() == [0, 1, 26]
    assert tokenizer.separator == 0 and tokenizer.frame is None
    with pytest.raises(
        ValueError, match=r"must hold only the space and a to z, got 'A' at offset 2"
    ):
        tokenizer.encode("a A")


def test_separators() -> None:
    assert ByteTokenizer().separator == 10
    assert CharacterTokenizer("a \n").separator == 2
    assert CharacterTokenizer("a ").separator == 1
    assert CharacterTokenizer("a").separator is None


def test_fingerprints_tell_encodings_apart() -> None:
    all_of_them = [
        ByteTokenizer(),
        CharacterTokenizer("ab"),
        CharacterTokenizer("ba"),
        CharacterTokenizer("abc"),
        Text8Tokenizer(),
    ]
    assert len({one.fingerprint for one in all_of_them}) == len(all_of_them)
    for one in all_of_them:
        again = pickle.loads(pickle.dumps(one))
        assert again.fingerprint == one.fingerprint
        assert again.decode(again.encode("ab" if one.vocab_size < 9 else "a b")) in ("ab", "a b")


def test_digests_do_not_collide_by_concatenation() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"]) != digest(["abc"])


def test_templates_of_text() -> None:
    """A fixed position allows one token only; a masked one allows any token."""
    tokenizer = CharacterTokenizer("abc")
    allowed = tokenizer.allowed("[MASK]a[MASK:2]bc[MASK]")
    assert allowed.shape == (7, 3)
    assert allowed.all(axis=1).tolist() == [True, False, True, True, False, False, True]
    assert allowed[[1, 4, 5]].tolist() == np.eye(3, dtype=bool).tolist()
    assert tokenizer.allowed("cab").argmax(axis=1).tolist() == tokenizer.encode("cab").tolist()
    assert tokenizer.allowed("").shape == (0, 3)
    wide = ByteTokenizer().allowed("é[MASK:03]")
    assert wide.sum(axis=1).tolist() == [1, 1, 256, 256, 256]
    for text in ("a[MASK:x]", "[MASKb", "[mask]"):
        with pytest.raises(ValueError, match="'\\['"):  # plain text that is not in the alphabet
            tokenizer.allowed(text)
    with pytest.raises(ValueError, match=r"\[MASK:0\] must stand for at least one token, got none"):
        tokenizer.allowed("a[MASK:0]")
