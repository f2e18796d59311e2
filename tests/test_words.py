"""Words that this project does not use; see the table in the style guide of CONTRIBUTING.md."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHDRAWN = {
    r"\blaws?\b": "distribution, conditional distribution",
    r"\bletters?\b(?!-probability)": "token, symbol, base",
    r"\b(the|a|an|its|their|of|in|as|one|each) shares?\b": "fraction, weight",
    r"\bshares? (of|in) (the|a|all|masks?|rows|tokens|time|steps|training|test)\b": "fraction",
    r"\bdirected\b": "order-dependent",
    r"\breach(es)? (back|of the|is)\b": "context length",
    r"\bgo(es|ne|ing)? on with\b": "continues, resumes",
    r"\b(is|are) refused\b": "raises an error",
    r"\bwhat is not (said|chosen|given)\b": "default",
    r"\bis worth$|\bis worth[.?]": "say what it costs or counts",
    r"\bthe door\b": "exports",
    r"\bthat you do not choose\b": "do not set",
}
FILES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "configs").rglob("*.yaml"),
    *(path for top in ("seqdiff", "genomics", "text") for path in (ROOT / top).rglob("*.py")),
]


def found(text: str) -> list[str]:
    lines = [re.sub(r"`[^`]*`", "", line) for line in text.splitlines()]
    return [
        f"{number}: {line.strip()} ({better})"
        for number, line in enumerate(lines, start=1)
        for pattern, better in WITHDRAWN.items()
        if re.search(pattern, line, flags=re.IGNORECASE)
    ]


def test_withdrawn_words_are_not_used() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in FILES
        if path.name != "CHANGELOG.md"
        for line in found(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "sentence",
    [
        "A split that you do not choose keeps its share of the rest.",
        "What a broken transfer left is gone on with.",
        "Samplers that prefer an end are refused.",
        "What one network evaluation of a row is worth.",
        "The door between a domain and the core.",
        "The law of a letter.",
    ],
)
def test_riddles_would_be_found(sentence: str) -> None:
    assert found(sentence)
