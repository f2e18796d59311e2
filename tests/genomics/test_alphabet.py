import numpy as np
import pytest

from genomics.sequence.alphabet import (
    BASES,
    DNATokenizer,
    allowed,
    complement,
    decode,
    encode,
    reverse_complement,
)
from seqdiff.data.tokenizer import ConstraintTokenizer, StrandTokenizer, Tokenizer


def test_ids_are_alphabetical_in_either_case():
    assert encode("ACGTacgt").tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_every_ambiguity_code_is_the_mask():
    codes = "RYSWKMBDHVN"
    assert encode(codes + codes.lower()).tolist() == [4] * 22


@pytest.mark.parametrize("letter", ["U", "X", "-", "*", ">", " ", "\n", "0", "é", "\u4e00"])
def test_other_letters_are_named_with_their_place(letter):
    with pytest.raises(ValueError, match=r"read 7: .* at offset 3 \(0-based, .*is not DNA; use A"):
        encode(f"ACG{letter}TT", where="read 7")


def test_the_offset_counts_characters_not_bytes():
    with pytest.raises(ValueError, match="at offset 2 "):
        encode("AC\u4e00")


def test_decode_writes_the_mask_as_n():
    assert decode([0, 1, 2, 3, 4]) == "ACGTN"
    assert decode([]) == ""


@pytest.mark.parametrize("ids", [[0, 5], [-1, 0]])
def test_ids_outside_the_alphabet_are_refused(ids):
    with pytest.raises(ValueError, match=r"decode\.ids must lie in 0\.\.4, got -?\d\.\.\d"):
        decode(ids)
    with pytest.raises(ValueError, match=r"complement\.ids must lie in 0\.\.4"):
        complement(np.array(ids))


def test_complement_and_reverse_complement_by_hand():
    assert complement(np.array([0, 1, 2, 3, 4], dtype=np.uint8)).tolist() == [3, 2, 1, 0, 4]
    assert decode(reverse_complement(encode("AACGTN"))) == "NACGTT"
    rows = np.stack([encode("AACG"), encode("TTTN")])
    assert [decode(row) for row in reverse_complement(rows)] == ["CGTT", "NAAA"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_reverse_complement_keeps_dtype_and_input(dtype):
    ids = encode("ACCN").astype(dtype)
    assert reverse_complement(ids).dtype == dtype
    assert decode(ids) == "ACCN"


def test_the_tokenizer_is_one():
    tokenizer = DNATokenizer()
    assert isinstance(tokenizer, Tokenizer)
    assert tokenizer.vocab_size == 4
    assert tokenizer.decode(tokenizer.encode("gattacaN")) == "GATTACAN"
    assert tokenizer.fingerprint == DNATokenizer().fingerprint
    with pytest.raises(ValueError, match="at offset 1 "):
        tokenizer.encode("GU")


def test_the_fingerprint_follows_the_table(monkeypatch):
    before = DNATokenizer().fingerprint
    monkeypatch.setattr("genomics.sequence.alphabet.ENCODE_TABLE", bytes(256))
    assert DNATokenizer().fingerprint != before


def test_every_code_allows_the_bases_it_stands_for():
    """NC-IUB 1984, written by hand; lower case equals upper case."""
    meant = {"R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC", "N": "ACGT"}
    meant |= {"B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "A": "A", "C": "C", "G": "G"}
    for letter, bases in (meant | {"T": "T"}).items():
        for case in (letter, letter.lower()):
            (row,) = DNATokenizer().allowed(case)
            assert {base for base, ok in zip("ACGT", row, strict=True) if ok} == set(bases)
    assert DNATokenizer().allowed("").shape == (0, 4)


def test_a_pattern_of_other_letters_is_refused():
    with pytest.raises(ValueError, match=r"^motif: 'U' at offset 1 .* is not DNA; use A, C, G"):
        allowed("AU", where="motif")


def test_the_complement_of_each_base_is_a_base():
    assert [BASES[i] for i in DNATokenizer().complement] == list("TGCA")
    assert isinstance(DNATokenizer(), ConstraintTokenizer) and isinstance(
        DNATokenizer(), StrandTokenizer
    )
