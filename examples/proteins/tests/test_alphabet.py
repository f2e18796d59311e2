"""Letters to tokens and back."""

import numpy as np
import pytest
from seqdiff_proteins import ProteinTokenizer

from seqdiff.data import ConstraintTokenizer

ORDER = "ACDEFGHIKLMNPQRSTVWYUO"


def test_every_symbol_has_the_id_of_its_place() -> None:
    plain, aligned = ProteinTokenizer(), ProteinTokenizer(gaps=True)
    assert isinstance(plain, ConstraintTokenizer)
    assert plain.encode(ORDER).tolist() == list(range(22)) == plain.encode(ORDER.lower()).tolist()
    assert aligned.encode("A-.u").tolist() == [0, 22, 22, 20]
    assert (plain.vocab_size, aligned.vocab_size) == (22, 23)
    assert plain.encode("AXBZJ").tolist() == [0, 22, 22, 22, 22], "the id of the mask"
    assert plain.decode([0, 21, 22]) == "AOX" and aligned.decode(np.array([22, 23])) == "-X"
    assert plain.fingerprint != aligned.fingerprint


def test_templates_allow_what_the_code_says() -> None:
    tokenizer = ProteinTokenizer(gaps=True)
    rows = tokenizer.allowed("aXBZJ-")
    found = ["".join(tokenizer.symbols[i] for i in np.flatnonzero(row)) for row in rows]
    assert found == ["A", ORDER + "-", "DN", "EQ", "IL", "-"]


@pytest.mark.parametrize(
    ("string", "message"),
    [
        ("AC*", r"must hold A.*, got '\*' at position 3; correct it"),
        ("A-C", "got '-' at position 2; only the rows of an alignment may have gaps"),
        ("Aé", "got 'é' at position 2"),
        ("A\N{MATHEMATICAL BOLD CAPITAL A}", "at position 2"),
    ],
)
def test_other_characters_are_named(string: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ProteinTokenizer().encode(string)
