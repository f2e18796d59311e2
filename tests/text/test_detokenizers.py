"""Hand-written pairs of a corpus' text and the original text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from text.corpora.detokenizers import DETOKENIZERS, lambada, lm1b, ptb, scientific_papers, wikitext

PAIRS = [
    (wikitext, "a guest @-@ starring role", "a guest-starring role"),
    (wikitext, "10 @,@ 000 of 3 @.@ 5", "10,000 of 3.5"),
    (
        wikitext,
        "film , television and theatre ; so : yes ! no ? end . More",
        "film, television and theatre; so: yes! no? end. More",
    ),
    (wikitext, "the play ( 2000 ) and [ a ] { b }", "the play (2000) and [a] {b}"),
    (wikitext, 'the play " Herons " was', 'the play "Herons" was'),
    (wikitext, "Boulter 's role", "Boulter's role"),
    (wikitext, " \n = Robert = \n", "\n= Robert =\n"),
    (wikitext, "= = Career = =", "== Career =="),
    (wikitext, "= = = = deep = = = =", "==== deep ===="),
    (wikitext, "at 20 ° C", "at 20°C"),
    (ptb, "the company 's plan", "the company's plan"),
    (ptb, "does n't", "doesn't"),
    (ptb, "the investors ' money", "the investors' money"),
    (ptb, "rose N N to $ N from # N .", "rose 1 1 to $1 from #1 ."),
    (ptb, "and\\/or", "and/or"),
    (ptb, "the <unk> said \n next", "the ? said\nnext"),
    (lm1b, "I don 't know , he said", "I don't know, he said"),
    (lm1b, "It ended . Then it began .", "It ended. Then it began."),
    (lm1b, "Really ? Yes ! Sure", "Really? Yes! Sure"),
    (lm1b, "see http : / / www.example.com", "see http://www.example.com"),
    (lm1b, 'He said " this is it " twice', 'He said "this is it" twice'),
    (lm1b, "one ( two ) [ three ] : four ; five", "one (two) [three]: four; five"),
    (lm1b, "$ 5 and £ 3", "$5 and £3"),
    (lm1b, "What is it ?", "What is it?"),
    (lm1b, "Stop !", "Stop!"),
    (lm1b, "Why ?\n", "Why?\n"),
    (lm1b, "Stop ! Go !", "Stop! Go!"),
    (lm1b, "and / or", "and/or"),
    (lm1b, "' no '", "'no'"),
    (lm1b, "a , : b", "a,: b"),
    (lm1b, "The end .", "The end."),
    (wikitext, "the <unk> . , <unk>", "the <unk>., <unk>"),
    (wikitext, "what ! ? he", "what!? he"),
    (wikitext, "so : ; he", "so:; he"),
    (wikitext, "the end .", "the end ."),
    (scientific_papers, "is it ( a / b ) ?", "is it (a/b)?"),
    (scientific_papers, "the <unk> . , <unk>", "the <unk>., <unk>"),
    (lambada, "“ hello ” he said ", '\n" hello " he said'),
    (
        scientific_papers,
        "the model ( see @xcite ) , in 3 @.@ 5 s . it works .",
        "the model (see @xcite), in 3.5 s. it works.",
    ),
]


@pytest.mark.parametrize(("function", "given_", "wanted"), PAIRS)
def test_pairs(function, given_: str, wanted: str) -> None:
    assert function(given_) == wanted


def test_rules_follow_each_other() -> None:
    """A rule uses the space that an earlier one kept, and does not return to earlier
    punctuation.
    """
    assert wikitext("a . , b") == "a., b"
    assert wikitext("a , . b") == "a ,. b", "the comma comes last"
    assert lm1b("a , ; b") == "a,; b"
    assert lm1b("a ; , b") == "a ;, b", "the comma comes first"


@pytest.mark.parametrize(("function", "given_", "wanted"), PAIRS)
def test_what_is_mended_stays(function, given_: str, wanted: str) -> None:
    """Applying the function twice changes nothing; LAMBADA's line break is added once."""
    assert function(wanted) == wanted


PLAIN = st.text("abcXYZ 019\n", max_size=40).map(lambda s: " ".join(s.split()))


@given(PLAIN)
def test_plain_words_are_left_alone(text: str) -> None:
    for name, function in DETOKENIZERS.items():
        assert function(text) == ("\n" if name == "lambada" else "") + text


def test_every_name_is_a_function_of_its_own() -> None:
    mended = {f("a @-@ b 's N <unk> ( c ) “d ? http : / / e") for f in DETOKENIZERS.values()}
    assert len(mended) == len(DETOKENIZERS)
