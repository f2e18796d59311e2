"""A list of samples is parsed back to the same samples, whatever they contain."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from text.corpora import samples as listing
from text.corpora.samples import (
    format_listing,
    parse_listing,
    read_samples,
    read_templates,
    write_jsonl,
    write_txt,
)

SAMPLES = [
    "one line",
    "two\nlines\n",
    "\n\nempty lines around\n\n\n",
    "as if\n\n--- sample_9 ---\nit ended\n\n",
    "--- sample_1 ---",
    ">--- quoted --- \n>--- quoted ---\n>>--- twice ---",
    "\r carriage return\r\n\u2028 and a line separator \x0b",
    " ",
]
NAMES = [f"sample_{number}" for number in range(len(SAMPLES))]
pieces = st.sampled_from(["\n", "--- a ---", ">", "--- ", " ---", "x", "\r", "\n\n", "\u2028"])
texts = st.lists(st.lists(pieces).map("".join) | st.text(), min_size=1)


@given(samples=texts)
@example(samples=SAMPLES)
def test_round_trip(samples: list[str]) -> None:
    names = [f"chr {number}" for number in range(len(samples))]
    assert parse_listing(format_listing(names, samples)) == list(zip(names, samples, strict=True))


def test_a_twin_that_does_not_quote_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "_LIKE_A_NAME", listing.re.compile("(never)"))
    assert len(parse_listing(format_listing(["a"], [SAMPLES[3]]))) == 2


def test_a_person_sees_the_text_as_it_is() -> None:
    listed = format_listing(["a", "b"], ["One,\ntwo --- three.", "x"])
    assert listed == "--- a ---\nOne,\ntwo --- three.\n\n--- b ---\nx\n\n"


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz", ".jsonl", ".jsonl.gz"])
def test_what_sample_writes_is_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"samples{suffix}"
    (write_txt if ".txt" in suffix else write_jsonl)(path, SAMPLES, NAMES)
    if suffix.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    assert read_samples("x", path) == SAMPLES


def test_a_file_that_only_looks_like_a_listing_further_down_is_lines(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("first\n--- second ---\nthird\n")
    assert read_samples("x", path) == ["first", "--- second ---", "third"]
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "--- x ---\n"}) + "\n")
    assert read_samples("x", tmp_path / "b.jsonl") == ["--- x ---\n"]


def test_templates_have_the_names_of_their_file(tmp_path: Path) -> None:
    lines, rows, listing = (tmp_path / name for name in ("a.txt", "b.jsonl", "c.txt"))
    lines.write_text("one [MASK]\n[MASK:3] two\n")
    assert read_templates(lines) == [("line_1", "one [MASK]"), ("line_2", "[MASK:3] two")]
    rows.write_text('{"text": "x", "name": "first"}\n{"text": "y"}\n')
    assert read_templates(rows) == [("first", "x"), ("line_2", "y")]
    listing.write_text(format_listing(["p", "q"], ["[MASK]\n", "z"]))
    assert read_templates(listing) == [("p", "[MASK]\n"), ("q", "z")]
    rows.write_text('{"text": "x"}\n{}\n')
    with pytest.raises(ValueError, match=r"sample\.infill must hold .*, got none in line 2 of"):
        read_templates(rows)
