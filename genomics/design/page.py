"""The page of ``seqdiff design``: what was wanted, what was chosen, and the best design."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from jaxtyping import Float64, Int64

from genomics.design.constraints import gc_fraction
from genomics.design.designs import Designs, distances_between
from genomics.io import MotifScores, count_hits
from genomics.report import (
    draw_histograms,
    draw_mutations,
    draw_scatter,
    draw_strip,
    html_facts,
    html_figures,
    html_page,
    html_table,
    spell,
    svg,
)
from genomics.sequence import BASES, count_kmers, encode, join, merge_strands
from seqdiff.trace import Trace

_ROWS_SHOWN = 50
_KMERS_SHOWN = 12
_MOTIFS_SHOWN = 20
_K = 6


@dataclass(frozen=True, eq=False)
class Mutagenesis:
    """The predictions of every single substitution of the best design.

    Attributes:
        column: Name of the predicted value.
        value: Prediction for the design itself.
        effects: Change by each base at each position.
    """

    column: str
    value: float
    effects: Float64[np.ndarray, "L 4"]


def write_design_page(
    facts: Mapping[str, str],
    designs: Designs,
    rows: Sequence[Mapping[str, object]],
    *,
    trace: Trace,
    training: Sequence[str] = (),
    motifs: Sequence[MotifScores] = (),
    mutagenesis: Mutagenesis | None = None,
    same_judge: bool = False,
) -> str:
    """Return the page as HTML.

    Args:
        facts: Names and values to list at the top.
        designs: The designs.
        rows: Their table, see ``tabulate``.
        trace: The steps of the sampler for all candidates.
        training: Training sequences.
        motifs: Motifs whose hits are counted.
        mutagenesis: Predictions of substitutions of the best design, if there is an oracle.
        same_judge: Whether the judge also took part in the choice.
    """
    parts = [
        f"<h1>Designed DNA</h1>\n{html_facts(facts)}",
        _warning(designs, same_judge=same_judge),
    ]
    parts += _predictions(designs)
    parts += _diversity(designs)
    parts += _novelty(designs)
    parts += _content(designs, training, motifs)
    parts += _best(designs, trace, mutagenesis)
    parts += _table(rows)
    return html_page(f"{len(rows):,} designs", parts)


def _warning(designs: Designs, *, same_judge: bool) -> str:
    if same_judge:
        text = (
            "The judge also chose the designs, so its predictions for them are too good: it was "
            "asked for what it predicts well."
        )
    elif designs.columns and not designs.judge_columns:
        text = (
            "The oracle that predicts the designs also chose them, so its predictions are too "
            "good. Add --judge with an oracle that was trained on other sequences."
        )
    else:
        return ""
    return f'<p class="warn">{text}</p>'


def _predictions(designs: Designs) -> list[str]:
    """Compare predictions with what was wanted."""
    candidates, place = designs.candidates, designs.place
    if not designs.columns and not designs.judge_columns:
        return []
    parts, figures = ["<h2>Predicted against wanted</h2>"], []
    lines = []
    goals = candidates.goals()
    for column in dict.fromkeys([*designs.columns, *designs.judge_columns]):
        values: dict[str, Float64[np.ndarray, " _"]] = {}
        every = None
        if column in designs.columns:
            every = designs.predicted[:, designs.columns.index(column)]
            values["oracle"] = every[place]
        if column in designs.judge_columns:
            values["judge"] = designs.judged[:, designs.judge_columns.index(column)]
        wanted = np.full(len(designs.chosen), np.nan)
        if column in candidates.signals:
            wanted = goals[designs.chosen, candidates.signals.index(column)]
        known = ~np.isnan(wanted)
        if len(np.unique(wanted[known])) > 1:
            kept = {name: found[known] for name, found in values.items()}
            caption = f"Predicted and wanted {column} of the designs."
            labels = [f"wanted {column}", f"predicted {column}"]
            figures.append((svg(draw_scatter(wanted[known], kept, labels)), caption))
        else:
            shown = {} if every is None else {"candidates that passed": every}
            shown |= {f"designs, {name}": found for name, found in values.items()}
            goal = f"; wanted: {spell(float(wanted[known][0]))}" if known.any() else ""
            picture = draw_histograms(shown, f"predicted {column}")
            figures.append((svg(picture), f"Predicted {column}{goal}."))
        for name, found in values.items():
            error = np.sqrt(np.mean((found - wanted)[known] ** 2)) if known.any() else np.nan
            cells = {
                "mean": float(found.mean()),
                "least": float(found.min()),
                "greatest": float(found.max()),
                "mean wanted": float(wanted[known].mean()) if known.any() else np.nan,
                "RMS error": float(error),
            }
            note = "took no part in the choice" if name == "judge" else "ranked the candidates"
            cells = {key: spell(value) for key, value in cells.items()}
            lines.append((f"{column}, {name}", note, cells))
    return [*parts, html_figures(figures), html_table("designs", lines)]


def _diversity(designs: Designs) -> list[str]:
    pairs = distances_between(designs.sequences)
    parts = ["<h2>Diversity</h2>"]
    if not len(pairs):
        return [*parts, "<p>There is a single design.</p>"]
    line = ("edit distance of two designs", "bases, on the closer strand", _summary(pairs))
    figure = svg(draw_histograms({"pairs of designs": pairs}, "edit distance, bases"))
    return [
        *parts,
        html_figures([(figure, "Edit distance of each pair of designs.")]),
        html_table("", [line]),
    ]


def _novelty(designs: Designs) -> list[str]:
    parts = ["<h2>Nearest training sequence</h2>"]
    if designs.nearest is None:
        text = "There are no training sequences; add --training to compare with some."
        return [*parts, f"<p>{text}</p>"]
    found = designs.nearest.distance
    line = ("edit distance to the nearest", "bases, on the closer strand", _summary(found))
    figure = svg(draw_histograms({"designs": found}, "edit distance, bases"))
    caption = "Edit distance of each design to the nearest training sequence."
    return [*parts, html_figures([(figure, caption)]), html_table("", [line])]


def _content(designs: Designs, training: Sequence[str], motifs: Sequence[MotifScores]) -> list[str]:
    """Compare GC content, and motifs or else 6-mers, with the training sequences."""
    sets = {"designs": designs.sequences}
    if training:
        sets["training rows"] = list(training)
    gc = {name: np.array([100 * gc_fraction(row) for row in found]) for name, found in sets.items()}
    parts = [
        "<h2>Motif content</h2>",
        html_figures([(svg(draw_histograms(gc, "GC content, %")), "GC content of each sequence.")]),
    ]
    rows = {name: [encode(row) for row in found] for name, found in sets.items()}
    kilobases = {name: sum(map(len, found)) / 1000 for name, found in rows.items()}
    if motifs:
        rates = {n: count_hits(motifs, found) / kilobases[n] for n, found in rows.items()}
        shown = np.argsort(-rates["designs"], kind="stable")[:_MOTIFS_SHOWN].tolist()
        names = [motif.name for motif in motifs]
        text = f"Hits per kilobase, both strands; the {len(shown)} motifs with most in the designs."
    else:
        counts = {n: merge_strands(count_kmers(join(found)))[_K - 1] for n, found in rows.items()}
        rates = {n: count / 2 / kilobases[n] for n, count in counts.items()}
        names = [
            "".join(BASES[c // 4 ** (_K - 1 - j) % 4] for j in range(_K)) for c in range(4**_K)
        ]
        other = rates.get("training rows", np.full(4**_K, rates["designs"].mean()))
        total = kilobases["designs"]
        gain = np.log2((rates["designs"] * total + 0.5) / (other * total + 0.5))
        opposite = [name[::-1].translate(str.maketrans("ACGT", "TGCA")) for name in names]
        once = np.array([a <= b for a, b in zip(names, opposite, strict=True)])
        order = np.argsort(np.where(once, -gain, np.inf), kind="stable")
        shown = order[:_KMERS_SHOWN].tolist()
        beside = "in the training sequences" if training else "on average"
        text = (
            f"Occurrences per kilobase and strand; the {len(shown)} 6-mers, with their reverse "
            f"complements, that are most frequent in the designs relative to those {beside}."
        )
    lines = [
        (names[i], "", {name: spell(float(rate[i])) for name, rate in rates.items()}) for i in shown
    ]
    return [*parts, f"<p>{escape(text)}</p>", html_table("per kilobase", lines)]


def _best(designs: Designs, trace: Trace, mutagenesis: Mutagenesis | None) -> list[str]:
    number = int(designs.chosen[designs.best])
    sequence, name = designs.candidates.sequences[number], designs.candidates.names[number]
    figures = []
    parts = ["<h2>The best design</h2>", f"<p>{escape(name)}: {escape(sequence)}</p>"]
    if mutagenesis is not None:
        label = f"change of {mutagenesis.column}"
        caption = (
            f"Saturation mutagenesis: change of the predicted {mutagenesis.column}, "
            f"{spell(mutagenesis.value)} for the design, by every single substitution. Dots are "
            "the bases of the design."
        )
        figures.append((svg(draw_mutations(mutagenesis.effects, sequence, label)), caption))
        i, j = np.unravel_index(mutagenesis.effects.argmax(), mutagenesis.effects.shape)
        k, m = np.unravel_index(mutagenesis.effects.argmin(), mutagenesis.effects.shape)
        cells = {
            "raises it most": f"{sequence[i]}{i}{BASES[j]} {mutagenesis.effects[i, j]:+.3g}",
            "lowers it most": f"{sequence[k]}{k}{BASES[m]} {mutagenesis.effects[k, m]:+.3g}",
        }
        parts.append(
            html_table(
                "", [(f"predicted {mutagenesis.column}", "positions are counted from 0", cells)]
            )
        )
    film = "From the first step of the sampler to the last: masked positions are grey."
    figures.append((svg(draw_strip(trace, number)), film))
    return [*parts, html_figures(figures)]


def _table(rows: Sequence[Mapping[str, object]]) -> list[str]:
    hidden = {"name", "sequence", "nearest", "target"}
    lines = []
    for row in rows[:_ROWS_SHOWN]:
        cells = {
            key: spell(float(value)) if isinstance(value, int | float) else str(value)
            for key, value in row.items()
            if key not in hidden
        }
        lines.append((str(row["name"]), str(row.get("target", "")), cells))
    which = f"The first {_ROWS_SHOWN} of {len(rows):,}; " if len(rows) > _ROWS_SHOWN else ""
    text = f"<p>{which}designs.tsv has all, with their sequences.</p>"
    return ["<h2>Designs</h2>", text, html_table("design", lines)]


def _summary(values: Int64[np.ndarray, " n"]) -> dict[str, str]:
    found = {"least": values.min(), "median": np.median(values), "greatest": values.max()}
    return {name: spell(float(value)) for name, value in found.items()}
