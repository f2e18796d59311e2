"""The text of the page for known numbers."""

import re

import numpy as np
import pytest

from genomics.report.measures import Measure, Measured, MotifTable
from genomics.report.page import About, Curves, spell, write_page

SETS = ["samples", "real vs real", "dinucleotide shuffle", "Markov order 2"]
CURVES = Curves("test", {"val": ([1, 2], [1.9, 1.5])}, {"Markov order 0": 1.97})


def table(count: int = 25) -> MotifTable:
    """Motifs, the last one the most frequent in real windows and M0 the rarest."""
    rates = np.arange(float(count))
    return MotifTable(
        [f"M{i}_" for i in range(count)],
        {"real": rates, **{name: rates[::-1] for name in SETS}},
        {name: rates / 10 - 1 for name in SETS},
    )


def page(*, held_out: bool = True, figures=(), motifs: MotifTable | None = None, more=()) -> str:
    measures = [
        Measure("Length", "mean", "bases", "", {"samples": 30.0, "training rows": 32.5}),
        Measure("Motifs, both strands", "gap", "log2", "a note", dict.fromkeys(SETS, 0.25)),
        *more,
    ]
    lengths = {"samples": np.array([30]), "training rows": np.array([32])}
    measured = Measured(measures, lengths, {}, {}, {}, motifs)
    about = About({"samples": "s.fa", "real windows": "from <here>"}, held_out, 2)
    return write_page(about, measured, CURVES, dict.fromkeys(figures, "<svg/>"), "Drawn.")


def test_the_warning_stands_where_the_model_was_trained_on_real_windows() -> None:
    warning = '<p class="warn">The model was trained on real windows of this page'
    assert warning not in page()
    assert warning in page(held_out=False)


def test_the_most_frequent_motifs_are_shown_with_the_enrichment_defined() -> None:
    text = page(motifs=table())
    assert re.findall(r"<th>(M\d+)_<small>", text) == [f"M{i}" for i in range(24, 4, -1)]
    assert "The 20 most frequent in real windows; the JSON file has all." in text
    assert "log2 of (hits + 1/2) / (hits in real windows + 1/2)" in text
    row = next(line for line in text.splitlines() if "M24_" in line)
    assert "real windows: 24 hits/kb" in row
    assert row.count("0 (+1.40)") == 4 and 'data-set="samples" class=ours>0 (+1.40)<' in row
    assert "most frequent" not in page(motifs=table(3))


def test_errors_and_what_the_number_of_sequences_suffices_for() -> None:
    """A number has as many decimals as its error; the warning is about most of the numbers."""
    errors = {name: 0.0123 for name in SETS}
    far = Measure("k", "far", "", "", {**dict.fromkeys(SETS, 2.5), SETS[3]: 12345.5}, errors)
    near = Measure("k", "near <b>", "", "", dict.fromkeys(SETS, 2.5), errors)
    assert '<td data-set="samples" class=ours>2.500 ± 0.012</td>' in page(more=[far])
    assert ">12,345.500 ± 0.012</td>" in page(more=[far])
    assert "groups of them.</p>" in page(more=[far])
    some, most = page(more=[far, near]), page(more=[near])
    assert "<p>± is the" in some and "1 of the 2 numbers with an error cannot tell real" in some
    assert "<p class=warn>± is" in most and "about the samples: near &lt;b&gt;. Draw more" in most


def test_lengths_and_facts() -> None:
    text = page()
    assert "have the lengths of the samples by construction" in text
    assert "All samples and all training rows have one length." in text
    assert "have one length" not in page(figures=["length"])
    assert "Length of each sample and of each training row." in page(figures=["length"])
    assert '<td data-set="training rows">32.5</td>' in text
    assert "<dt>real windows</dt><dd>from &lt;here&gt;</dd>" in text
    assert "<small>bases</small>" in text and "<small>log2; a note</small>" in text


def test_floors_and_what_was_logged_last() -> None:
    text = page()
    assert "The run has no metrics.csv" in text
    assert "windows. Validation is an upper bound, exact for an autoreg" in text
    assert '<th>val, last logged</th><td data-set="bits/base">1.5</td>' in text
    assert '<th>Markov order 0</th><td data-set="bits/base">1.97</td>' in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((float("nan"), "-"), (0.0, "0"), (0.00004123, "4.123e-5"), (0.5, "0.5")),
        *((12.3456, "12.35"), (123456.0, "123,456")),
    ],
)
def test_four_digits_and_a_dash_for_no_number(value: float, text: str) -> None:
    assert spell(value) == text
