"""Remove the spaces and signs that word-level tokenization left in older corpora.

Published zero-shot perplexities are measured on detokenized text (Sahoo et al. 2024,
arXiv:2406.07524, section 5.1; Radford et al. 2019, section 3.1). Each function takes one document
and applies the rules of its corpus in order.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Rule = tuple[re.Pattern[str], str]


def _rules(*pairs: tuple[str, str]) -> list[Rule]:
    return [(re.compile(pattern), replacement) for pattern, replacement in pairs]


def _apply(rules: list[Rule], text: str) -> str:
    for pattern, replacement in rules:
        text = pattern.sub(replacement, text)
    return text


_BRACKETS = _rules(
    (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
    (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
    (r"\{\s*([^}]*?)\s*\}", r"{\1}"),
)

_WIKITEXT = [
    *_rules(
        (r"s '", "s'"),
        *((rf" @{re.escape(sign)}@ ", sign) for sign in "-,."),
        *((rf" {re.escape(sign)} ", f"{sign} ") for sign in ":;.!?,"),
    ),
    *_BRACKETS,
    *_rules(
        (r'"\s*([^"]*?)\s*"', r'"\1"'),
        (r"'\s*([^']*?)\s*'", r"'\1'"),
        (r"= = = =", "===="),
        (r"= = =", "==="),
        (r"= =", "=="),
        (r" ° ", "°"),
        (r" \n", "\n"),
        (r"\n ", "\n"),
        (r" N ", " 1 "),
        (r" 's", "'s"),
    ),
]

_PTB = _rules(
    (r" 's", "'s"),
    (r"s ' ", "s' "),
    (r" n't", "n't"),
    (r" \n ", "\n"),
    (r"\\/", "/"),
    # The look-ahead finds every N in a run such as "N N N".
    (r" N(?= )", " 1"),
    (r"\$ 1", "$1"),
    (r"# 1", "#1"),
    (r"<unk>", "?"),
)

_LM1B = _rules(
    (r"(https?) : / / ", r"\1://"),
    (r" '(\w+)", r"'\1"),
    (r" (\w+) \. ", r" \1. "),
    (r" (\w+) \.$", r" \1."),
    *(pair for sign in "?!" for pair in ((rf" \{sign} ", f"{sign} "), (rf" \{sign}$", sign))),
    *((f" {sign} ", f"{sign} ") for sign in ",:;"),
    (r" / ", "/"),
    (r'" ([^"]+) "', r'"\1"'),
    (r"' ([^']+) '", r"'\1'"),
    (r"\( ([^()]+) \)", r"(\1)"),
    (r"\[ ([^\[\]]+) \]", r"[\1]"),
    (r"([$£]) ", r"\1"),
)


def wikitext(text: str) -> str:
    """Detokenize WikiText: "@-@" and its like, punctuation, brackets, quotes, headings."""
    return _apply(_WIKITEXT, text)


def ptb(text: str) -> str:
    """Detokenize the Penn Treebank: contractions, "N" for numbers, "<unk>"."""
    return _apply(_PTB, text)


def lm1b(text: str) -> str:
    """Detokenize the One Billion Word benchmark: contractions, punctuation, quotes, brackets."""
    return _apply(_LM1B, text)


def lambada(text: str) -> str:
    """Detokenize LAMBADA: straight quotes, and a line break before the passage."""
    return "\n" + re.sub("[“”]", '"', text).strip()


def scientific_papers(text: str) -> str:
    """Detokenize arXiv and PubMed: the rules of WikiText, then of One Billion Word."""
    return lm1b(wikitext(text))


def identity(text: str) -> str:
    """Return the text unchanged."""
    return text


DETOKENIZERS: dict[str, Callable[[str], str]] = {
    "none": identity,
    "wikitext": wikitext,
    "ptb": ptb,
    "lm1b": lm1b,
    "lambada": lambada,
    "scientific_papers": scientific_papers,
}
VERSION = 2  # part of the cache key of tokenized corpora; raise it when a rule changes
