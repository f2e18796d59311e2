"""The report as JSON and as one HTML page without scripts or external files."""

from __future__ import annotations

import base64
import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
from jaxtyping import Int64

from genomics.report.measures import Measure, Measured, MotifTable
from seqdiff.data import SequenceDataModule, Split


@dataclass(frozen=True)
class Curves:
    """Training curves in bits per base.

    Attributes:
        split: Split on which the baselines are scored.
        bits: Steps and values of ``train`` and ``val``, if logged.
        floors: Baselines by name: Markov chains fitted to the training windows, and the source if
            it is known.
    """

    split: Split
    bits: dict[str, tuple[list[int], list[float]]]
    floors: dict[str, float]


def read_curves(metrics: Path, data: SequenceDataModule, split: Split) -> Curves:
    """Read a run's metrics and fit the Markov chains.

    Args:
        metrics: The run's metrics file, which may not exist.
        data: The run's data.
        split: Split to score the chains on.

    Raises:
        ValueError: If a line of the file is not valid.
    """
    bits: dict[str, tuple[list[int], list[float]]] = {}
    if metrics.is_file():
        with metrics.open(newline="") as file:
            for number, row in enumerate(csv.reader(file), start=1):
                if len(row) != 3 or not row[1].endswith("/bits_per_token"):
                    continue
                try:
                    step, value = int(row[0]), float(row[2])
                except ValueError as error:
                    raise ValueError(
                        f"{metrics}:{number}: must be step,name,value, got {','.join(row)!r}; "
                        "restore the run's file"
                    ) from error
                steps, values = bits.setdefault(row[1].partition("/")[0], ([], []))
                steps.append(step)
                values.append(value)
    floors = {name: rows.bits_per_token for name, rows in data.baselines(split).items()}
    return Curves(split, bits, floors)


def numbers(about: About, seed: int, measured: Measured, curves: Curves) -> dict[str, object]:
    """Return all numbers of the page for JSON, with ``None`` for undefined values."""
    motifs = measured.motifs
    return {
        "about": {**about.facts, "held_out": about.held_out, "seed": seed},
        "measures": [
            {
                "section": found.section,
                "name": found.name,
                "unit": found.unit,
                "note": found.note,
                "values": {name: _number(value) for name, value in found.values.items()},
                "errors": {name: _number(error) for name, error in found.errors.items()},
            }
            for found in measured.measures
        ],
        "lengths": {name: _tally(found) for name, found in measured.lengths.items()},
        "gc": {name: [_number(v) for v in found] for name, found in measured.gc.items()},
        "longest_match": {name: found.tolist() for name, found in measured.longest.items()},
        "spectra": {
            name: {str(k): found.tolist() for k, found in enumerate(spectra, start=1)}
            for name, spectra in measured.spectra.items()
        },
        "motifs": None
        if motifs is None
        else {
            "names": motifs.names,
            "hits_per_kilobase": {n: v.tolist() for n, v in motifs.per_kilobase.items()},
            "log2_enrichment": {n: v.tolist() for n, v in motifs.enrichment.items()},
        },
        "training": {
            "split": curves.split,
            "floors_bits_per_base": curves.floors,
            "curves_bits_per_base": {
                name: {"step": steps, "bits": [_number(bit) for bit in bits]}
                for name, (steps, bits) in curves.bits.items()
            },
        },
    }


def _tally(lengths: Int64[np.ndarray, " n"]) -> dict[str, int]:
    """Count the sequences of each length."""
    values, counts = np.unique(lengths, return_counts=True)
    return dict(zip(map(str, values.tolist()), counts.tolist(), strict=True))


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


_MOTIFS_SHOWN = 20
_STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 60rem; color: #1c1c1c; background: #fff;
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-top: 1px solid #ddd; padding-top: 1rem; }
p { margin: .5rem 0; }
.warn { border-left: 4px solid #d55e00; padding-left: .75rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 1rem; margin: .5rem 0; }
dt { color: #666; } dd { margin: 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr));
  gap: 1rem; align-items: start; }
figure { margin: 0; max-width: 32rem; } figcaption { font-size: .875rem; color: #444; }
img { display: block; width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; margin: .75rem 0;
  table-layout: fixed; }
thead th:first-child { width: 34%; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid #eee;
  vertical-align: top; font-variant-numeric: tabular-nums; }
th { font-weight: 600; } tbody th { text-align: left; font-weight: 500; }
thead th:first-child { text-align: left; }
td.ours { font-weight: 700; }
small { display: block; color: #666; font-weight: 400; }
@media (max-width: 40rem) {
  thead { display: none; }
  table, tbody { display: block; }
  tr { display: grid; grid-template-columns: 1fr 1fr; gap: 0 1.25rem; padding: .5rem 0;
    border-bottom: 1px solid #ddd; }
  tbody th { grid-column: 1 / -1; padding: 0; border: 0; }
  td { display: flex; justify-content: space-between; gap: .5rem; padding: .1rem 0;
    border: 0; white-space: nowrap; }
  td::before { content: attr(data-set); color: #666; font-weight: 400; }
  table.single tr { grid-template-columns: 1fr auto; }
  table.single tbody th { grid-column: auto; }
  table.single td::before { content: none; }
  dl { grid-template-columns: 1fr; } dd { margin-bottom: .25rem; }
}
@media (max-width: 30rem) { table:not(.single) tr { grid-template-columns: 1fr; } }
"""
_CAPTIONS = {
    "gc": "GC content of each sequence.",
    "length": "Length of each sample and of each training row.",
    "divergence": "Divergence of each set's k-mer spectrum from that of the real windows; below "
    "the floor there is only noise. Values under 0.000001 are drawn at 0.000001.",
    "spectrum": "3-mers, each counted with its reverse complement, by frequency in real windows.",
    "longest": "Longest part of each sequence that occurs in the training sequence.",
    "strip": "One sequence during sampling, from the first step to the last: masked positions are "
    "grey, unmasked bases are coloured.",
    "curves": "Training and validation in bits per base, with Markov chains fitted to the "
    "training windows. Validation is an upper bound, exact for an autoregressive run.",
}
_LENGTHS = (
    "All other sets have the lengths of the samples by construction, so length does not affect the "
    "numbers below."
)
_ONE_LENGTH = " All samples and all training rows have one length."
_PLACES = {
    "Length": ("length",),
    "Composition": ("gc",),
    "k-mer spectra, both strands": ("divergence", "spectrum"),
    "Memorisation, both strands of the training sequence": ("longest",),
}


@dataclass(frozen=True)
class About:
    """What a report compares.

    Attributes:
        facts: Names and values to list.
        held_out: Whether the model was trained on none of the real windows.
        order: Order of the Markov chain.
    """

    facts: dict[str, str]
    held_out: bool
    order: int


def write_page(
    about: About, measured: Measured, curves: Curves, figures: Mapping[str, str], drawn: str
) -> str:
    """Return the page as HTML.

    Args:
        about: What the report compares.
        measured: The numbers.
        curves: The training curves.
        figures: SVG by name.
        drawn: Caption for the sequence in the denoising figure.
    """
    parts = [_introduction(about), _power(about, measured)]
    for section in dict.fromkeys(found.section for found in measured.measures):
        chosen = [found for found in measured.measures if found.section == section]
        parts.append(f"<h2>{escape(section)}</h2>")
        if section == "Length":
            parts.append(f"<p>{_LENGTHS}{'' if 'length' in figures else _ONE_LENGTH}</p>")
        parts.append(_figures(figures, _PLACES.get(section, ())))
        parts.append(_table(chosen))
        if section.startswith("Motifs") and measured.motifs is not None:
            parts.append(_motifs(measured.motifs))
    parts.append("<h2>Denoising</h2>")
    parts.append(f"<p>{escape(drawn)}</p>")
    parts.append(_figures(figures, ("strip",)))
    parts.append("<h2>Training</h2>")
    if "curves" not in figures:
        parts.append("<p>The run has no metrics.csv with bits per base.</p>")
    parts.append(_figures(figures, ("curves",)))
    parts.append(_floors(curves))
    return html_page(f"{about.facts['samples']}: generated DNA beside real", parts)


def html_page(title: str, parts: Sequence[str]) -> str:
    """Return a page without scripts or external files.

    Args:
        title: Title of the window, as text.
        parts: HTML of the body; empty parts are left out.
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def html_facts(facts: Mapping[str, str]) -> str:
    """Return names and values as a list of HTML."""
    pairs = (f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(pairs)}</dl>"


def _introduction(about: About) -> str:
    text = (
        "<h1>Generated DNA beside real</h1>\n"
        f"{html_facts(about.facts)}\n"
        "<p>Except for length, each number is given for four sets with the same number and lengths "
        "of sequences. <b>real vs real</b> is the floor: other windows of the reference, disjoint "
        "from those that all sets are compared with. A set that is as close cannot be "
        "distinguished from real sequence. <b>dinucleotide shuffle</b> and "
        f"<b>Markov order {about.order}</b> are the ceilings: the same windows shuffled with all "
        "dinucleotide counts kept, and draws from a Markov chain fitted to the training sequence. "
        "A model that is not better has learned nothing beyond these counts.</p>"
    )
    if not about.held_out:
        text += (
            '\n<p class="warn">The model was trained on real windows of this page, because the '
            "reference has too few others. The floor of memorisation is therefore meaningless, "
            "and the other numbers compare the model with its own training data.</p>"
        )
    return text


def _power(about: About, measured: Measured) -> str:
    """Say what the number of sequences suffices for."""
    undecided, total = measured.undecided("real vs real", f"Markov order {about.order}")
    text = (
        "± is the standard error over the choice of a set's sequences, by a jackknife over up to "
        "20 groups of them."
    )
    if not undecided:
        return f"<p>{text}</p>"
    text += (
        f" With {len(measured.lengths['samples']):,} sequences, {len(undecided)} of the {total} "
        "numbers with an error cannot tell real DNA from the Markov chain, because real vs real "
        "and the chain differ by at most two standard errors. These numbers say little about the "
        f"samples: {', '.join(undecided)}. Draw more samples."
    )
    return f"<p{' class=warn' if 2 * len(undecided) > total else ''}>{escape(text)}</p>"


def _figures(figures: Mapping[str, str], names: Sequence[str]) -> str:
    return html_figures([(figures[name], _CAPTIONS[name]) for name in names if name in figures])


def html_figures(figures: Sequence[tuple[str, str]]) -> str:
    """Return figures side by side.

    Args:
        figures: SVG and caption of each.
    """
    found = [
        f'<figure><img alt="{escape(caption)}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(picture.encode()).decode()}">'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
        for picture, caption in figures
    ]
    return f'<div class="figures">{"".join(found)}</div>' if found else ""


def _table(measures: Sequence[Measure]) -> str:
    rows = [
        (
            found.name,
            "; ".join(filter(None, (found.unit, found.note))),
            {k: spell_estimate(v, found.errors.get(k)) for k, v in found.values.items()},
        )
        for found in measures
    ]
    return html_table("", rows)


def html_table(heading: str, rows: Sequence[tuple[str, str, Mapping[str, str]]]) -> str:
    """Return a table whose rows become blocks on a narrow screen.

    Args:
        heading: Heading of the first column.
        rows: At least one: name, note and cells by column; all have the same columns.
    """
    sets = list(rows[0][2])
    head = "".join(f"<th>{escape(name)}</th>" for name in sets)
    lines = []
    for name, note, values in rows:
        cells = "".join(
            f'<td data-set="{escape(key)}"{" class=ours" if key == "samples" else ""}>'
            f"{escape(value)}</td>"
            for key, value in values.items()
        )
        small = f"<small>{escape(note)}</small>" if note else ""
        lines.append(f"<tr><th>{escape(name)}{small}</th>{cells}</tr>")
    body = "\n".join(lines)
    kind = ' class="single"' if len(sets) == 1 else ""
    return (
        f"<table{kind}><thead><tr><th>{escape(heading)}</th>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table>"
    )


def _motifs(table: MotifTable) -> str:
    """Return a table of the motifs that are most frequent in real windows."""
    shown = np.argsort(-table.per_kilobase["real"], kind="stable")[:_MOTIFS_SHOWN]
    rows = [
        (
            table.names[i],
            f"real windows: {spell(float(table.per_kilobase['real'][i]))} hits/kb",
            {
                name: f"{spell(float(table.per_kilobase[name][i]))} ({found[i]:+.2f})"
                for name, found in table.enrichment.items()
            },
        )
        for i in shown
    ]
    which = "" if len(shown) == len(table.names) else f"The {len(shown)} most frequent in real "
    which += "windows; the JSON file has all. " if which else ""
    text = (
        f"{which}Hits per kilobase, both strands, and in brackets the enrichment: log2 of (hits + "
        "1/2) / (hits in real windows + 1/2). In the column real vs real it is due to chance."
    )
    return f"<p>{escape(text)}</p>\n" + html_table("motif", rows)


def _floors(curves: Curves) -> str:
    if not curves.floors:
        return ""
    rows = [(name, "", {"bits/base": spell(bits)}) for name, bits in curves.floors.items()]
    last = {name: found[1][-1] for name, found in curves.bits.items() if found[1]}
    rows = [
        (f"{k}, last logged", "", {"bits/base": spell(bits)}) for k, bits in last.items()
    ] + rows
    text = (
        f"The floors are exact, on the {curves.split} windows. Validation is an upper bound, "
        "exact for an autoregressive run; train is what the objective minimises."
    )
    return f"<p>{escape(text)}</p>\n" + html_table("", rows)


def spell_estimate(value: float, error: float | None) -> str:
    """Format a number and its standard error, both with as many decimals as the error needs."""
    if error is None or not math.isfinite(error) or not math.isfinite(value):
        return spell(value)
    if error == 0:
        return f"{spell(value)} ± 0"
    decimals = max(0, 1 - math.floor(math.log10(error)))
    if decimals > 6:
        return f"{spell(value)} ± {error:.1e}"
    return f"{value:,.{decimals}f} ± {error:,.{decimals}f}"


def spell(value: float) -> str:
    """Format a number with four significant digits, or as a dash if undefined."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else re.sub(r"e-0(\d)", r"e-\1", f"{value:.4g}")
