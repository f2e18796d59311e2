"""The report as one HTML page, with its training curves, and as JSON.

The page needs no network, no script and no wide screen.
"""

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
        split: What the floors were scored on.
        bits: Steps and values of ``train`` and ``val``, as far as they were logged.
        floors: Markov chains fitted to the training windows, and the source itself where it is
            known, by name.
    """

    split: Split
    bits: dict[str, tuple[list[int], list[float]]]
    floors: dict[str, float]


def read_curves(metrics: Path, data: SequenceDataModule, split: Split) -> Curves:
    """Read a run's metrics and fit the Markov chains.

    Args:
        metrics: The run's metrics file; a run that was only built has none.
        data: The run's data.
        split: What to score the chains on.

    Raises:
        ValueError: If a line of the file is not sound, with its number.
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
    """Lay out every number of the page; what there is no number for is null.

    Args:
        about: What was compared.
        seed: Of all draws.
        measured: The numbers.
        curves: Of the training.
    """
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
    """How many there are of each length."""
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
    "the floor there is only noise. Values under 0.000001 are drawn there.",
    "spectrum": "3-mers, each counted with its reverse complement, by frequency in real windows.",
    "longest": "Longest stretch of each sequence that stands in the training sequence.",
    "strip": "One sequence while it is drawn, from the first step to the last: grey is still "
    "masked, a colour appears where and when its base is revealed.",
    "curves": "Training and validation in bits per base, with Markov chains fitted to the "
    "training windows. Validation is an upper bound, exact for an autoregressive run.",
}
_LENGTHS = (
    "All other sets have the lengths of the samples by construction, so that no number below is "
    "about length."
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
    """What was compared.

    Attributes:
        facts: Lines of a name and a value.
        held_out: Whether the model was trained on no real window.
        order: Of the Markov chain.
    """

    facts: dict[str, str]
    held_out: bool
    order: int


def write_page(
    about: About, measured: Measured, curves: Curves, figures: Mapping[str, str], drawn: str
) -> str:
    """Write the page.

    Args:
        about: What was compared.
        measured: The numbers.
        curves: Of the training.
        figures: SVG by name.
        drawn: Where the sequence of the strip comes from.
    """
    parts = [_introduction(about)]
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
    title = escape(f"{about.facts['samples']}: generated DNA beside real")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def _introduction(about: About) -> str:
    facts = "".join(
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in about.facts.items()
    )
    text = (
        "<h1>Generated DNA beside real</h1>\n"
        f"<dl>{facts}</dl>\n"
        "<p>Each number but length is given for four sets of as many sequences of the same "
        "lengths. "
        "<b>real vs real</b> is the floor: other windows of the reference, disjoint from those "
        "that all sets are compared with. What is as near as they are cannot be told from real. "
        "<b>dinucleotide shuffle</b> and "
        f"<b>Markov order {about.order}</b> are the ceilings: those real windows with their bases "
        "rearranged so that every dinucleotide stays, and draws from a Markov chain fitted to the "
        "training sequence. A model that is no better has learned no more than they know.</p>"
    )
    if not about.held_out:
        text += (
            '\n<p class="warn">The model was trained on real windows of this page, because the '
            "reference has too little else. The floor of memorisation therefore means nothing, "
            "and the other numbers are those of a model beside what it has seen.</p>"
        )
    return text


def _figures(figures: Mapping[str, str], names: Sequence[str]) -> str:
    found = [
        f'<figure><img alt="{escape(_CAPTIONS[name])}" src="data:image/svg+xml;base64,'
        f'{base64.b64encode(figures[name].encode()).decode()}">'
        f"<figcaption>{escape(_CAPTIONS[name])}</figcaption></figure>"
        for name in names
        if name in figures
    ]
    return f'<div class="figures">{"".join(found)}</div>' if found else ""


def _table(measures: Sequence[Measure]) -> str:
    rows = [
        (
            found.name,
            "; ".join(filter(None, (found.unit, found.note))),
            {k: spell(v) for k, v in found.values.items()},
        )
        for found in measures
    ]
    return _rows("", rows)


def _rows(heading: str, rows: Sequence[tuple[str, str, Mapping[str, str]]]) -> str:
    """Lay out a table whose rows become blocks on a narrow screen."""
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
    """The motifs that real windows hold most often."""
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
        "1/2) / (hits in real windows + 1/2). In the column real vs real it is chance."
    )
    return f"<p>{escape(text)}</p>\n" + _rows("motif", rows)


def _floors(curves: Curves) -> str:
    if not curves.floors:
        return ""
    rows = [(name, "", {"bits/base": spell(bits)}) for name, bits in curves.floors.items()]
    last = {name: found[1][-1] for name, found in curves.bits.items() if found[1]}
    rows = [
        (f"{k}, last logged", "", {"bits/base": spell(bits)}) for k, bits in last.items()
    ] + rows
    text = (
        f"Floors on the {curves.split} windows, which are exact. Validation is an upper bound, "
        "exact for an autoregressive run; train is what the objective minimises."
    )
    return f"<p>{escape(text)}</p>\n" + _rows("", rows)


def spell(value: float) -> str:
    """Write a number with four significant digits; a dash where there is none."""
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else re.sub(r"e-0(\d)", r"e-\1", f"{value:.4g}")
