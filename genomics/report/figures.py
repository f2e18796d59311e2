"""The figures of a report as SVG, narrow enough for a phone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from jaxtyping import Float64, Int64
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from genomics.report.measures import Measure, Measured
from genomics.report.page import Curves
from genomics.sequence import BASES, MAX_K, Spectra
from seqdiff.plots import Colors, develop
from seqdiff.trace import Trace

if TYPE_CHECKING:
    from matplotlib.typing import RcKeyType

_WIDTH, _HEIGHT = 4.6, 2.9  # inches
_STYLE: dict[RcKeyType, object] = {
    "svg.hashsalt": "seqdiff",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": "0.92",
}
_UNDATED = {"Date": None, "Creator": None, "Format": None, "Type": None}
_REAL = "#222222"
_SHOWN_K = 3
_MAX_STATES, _MAX_POSITIONS = 1024, 512


def svg(figure: Figure) -> str:
    """Write a figure as reproducible SVG."""
    stream = io.StringIO()
    with matplotlib.rc_context(_STYLE):
        figure.savefig(stream, format="svg", metadata=_UNDATED)
    return stream.getvalue()


def _figure(height: float = _HEIGHT) -> tuple[Figure, Axes]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(_WIDTH, height), layout="constrained")
        axes = figure.subplots()
        axes.set_axisbelow(True)
    return figure, axes


def _colors(names: Sequence[str]) -> dict[str, str]:
    """Map real sets to black and the samples, which come next, to orange."""
    real = ("real", "training rows")
    order = iter(("#D55E00", "#0072B2", "#009E73", "#CC79A7"))
    return {name: _REAL if name in real else next(order) for name in names}


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)


def draw_histograms(
    values: Mapping[str, Float64[np.ndarray, " n"] | Int64[np.ndarray, " n"]], label: str
) -> Figure:
    """Draw histograms of one number per sequence in common bins, without NaN."""
    figure, axes = _figure()
    finite = {name: found[np.isfinite(found)] for name, found in values.items()}
    every = np.concatenate(list(finite.values()))
    low, high = float(every.min()), float(every.max())
    whole = every.dtype.kind == "i"
    if whole:
        step = max(1, int(np.ceil((high - low + 1) / 24)))
        edges = np.arange(low - 0.5, high + step + 0.5, step)
    else:
        edges = np.linspace(low - 1e-9, high + 1e-9, 25)
    colors = _colors(list(values))
    for name, found in finite.items():
        heights = np.histogram(found, edges)[0] / max(1, len(found))
        axes.stairs(100 * heights, edges, color=colors[name], label=name, linewidth=1.4)
    axes.set_xlabel(label)
    axes.set_ylabel("% of sequences")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=whole))
    _legend(figure, axes)
    return figure


def draw_divergence(measures: Sequence[Measure]) -> Figure:
    """Draw the Jensen-Shannon divergences of each set for k = 1, 2, ...."""
    figure, axes = _figure()
    colors = _colors(list(measures[0].values))
    for name, color in colors.items():
        if name != "real":
            values = [max(found.values[name], 1e-6) for found in measures]
            axes.plot(range(1, MAX_K + 1), values, "o-", ms=4, color=color, label=name)
    axes.set_yscale("log")
    axes.set_xlabel("k")
    axes.set_ylabel("Jensen-Shannon\ndivergence, bits")
    _legend(figure, axes)
    return figure


def draw_spectrum(spectra: Mapping[str, Spectra]) -> Figure:
    """Draw the frequency of each 3-mer, with k-mers and their reverse complements combined."""
    figure, axes = _figure(3.3)
    kmers = ["".join(bases) for bases in product(BASES, repeat=_SHOWN_K)]
    opposite = [kmer[::-1].translate(str.maketrans("ACGT", "TGCA")) for kmer in kmers]
    canonical = [code for code, kmer in enumerate(kmers) if kmer <= opposite[code]]
    counts = {name: found[_SHOWN_K - 1] for name, found in spectra.items()}
    fractions = {name: found / found.sum() for name, found in counts.items()}
    order = sorted(canonical, key=lambda code: -fractions["real"][code])
    for name, color in _colors(list(spectra)).items():
        line, marker = ("-", "") if name == "real" else ("", "o")
        values = 100 * fractions[name][order]
        axes.plot(values, color=color, label=name, lw=1.4, ls=line, marker=marker, ms=3)
    axes.set_xticks(range(len(order)), [kmers[code] for code in order], rotation=90, fontsize=7.5)
    axes.set_ylabel("% of 3-mers,\nboth strands")
    axes.grid(visible=False, axis="x")
    _legend(figure, axes)
    return figure


def draw_strip(trace: Trace, row: int) -> Figure:
    """Draw the step at which each position of a sequence is unmasked, with time downwards.

    Long traces are drawn at evenly spaced steps and positions, as the axis labels state.
    """
    film = develop(trace, row, max_steps=_MAX_STATES, max_positions=_MAX_POSITIONS)
    colors = Colors(trace.symbols)
    figure, axes = _figure(3.6)
    picture = colors.paint(film.tokens, film.hidden_again)
    bottom = float(film.steps[-1]) + 0.5
    extent = (-0.5, film.length - 0.5, bottom, -0.5)
    axes.imshow(picture, aspect="auto", interpolation="none", extent=extent)
    axes.grid(visible=False)
    shown = len(film.positions)
    part = "" if shown == film.length else f" ({shown:,} of {film.length:,} drawn)"
    axes.set_xlabel(f"position{part}")
    shown = len(film.steps)
    part = "" if shown == len(film.masked) else f" ({shown:,} of {len(film.masked):,} drawn)"
    axes.set_ylabel(f"step{part}")
    colors.explain(figure, axes, hiding=bool(film.hidden_again.any()))
    return figure


def draw_scatter(
    x: Float64[np.ndarray, " n"], values: Mapping[str, Float64[np.ndarray, " n"]], labels: list[str]
) -> Figure:
    """Draw one or more numbers of each sequence against another, with the line y = x.

    Args:
        x: The number on the horizontal axis.
        values: The numbers on the vertical axis, by name.
        labels: Labels of the horizontal and the vertical axis.
    """
    figure, axes = _figure(3.6)
    for (name, found), color in zip(values.items(), ("#D55E00", "#0072B2"), strict=False):
        axes.plot(x, found, "o", ms=3, color=color, alpha=0.7, label=name)
    ends = [float(x.min()), float(x.max())]
    axes.plot(ends, ends, color=_REAL, lw=1, ls=":", label="y = x")
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    _legend(figure, axes)
    return figure


def draw_mutations(effects: Float64[np.ndarray, "L 4"], sequence: str, label: str) -> Figure:
    """Draw the effect of every single substitution; the bases of the sequence are dots.

    Args:
        effects: Effect of each base at each position; 0 for the base that is there.
        sequence: The sequence.
        label: Name and unit of the effect.
    """
    figure, axes = _figure(2.4)
    most = float(np.abs(effects).max()) or 1.0
    picture = axes.imshow(
        effects.T, aspect="auto", interpolation="none", cmap="RdBu_r", vmin=-most, vmax=most
    )
    places = [(i, BASES.index(base)) for i, base in enumerate(sequence) if base in BASES]
    axes.plot(*zip(*places, strict=True), ".", ms=2, color=_REAL)
    axes.set_yticks(range(len(BASES)), list(BASES))
    axes.grid(visible=False)
    axes.set_xlabel("position")
    axes.set_ylabel("base instead")
    figure.colorbar(picture, ax=axes, label=label)
    return figure


def draw_curves(curves: Curves) -> Figure:
    """Draw the training curves with the baselines to beat."""
    figure, axes = _figure(3.3)
    for name, color, width in (("train", "#56B4E9", 0.9), ("val", "#0072B2", 1.8)):
        if name in curves.bits:
            steps, bits = curves.bits[name]
            marker = "o" if len(steps) == 1 else None
            axes.plot(steps, bits, color=color, lw=width, marker=marker, label=name)
    shown = _chosen(curves.floors)
    styles = (":", "--", "-.", "-")
    for (name, bits), style in zip(shown.items(), styles, strict=False):
        axes.axhline(bits, color=_REAL, lw=1, ls=style, label=f"{name}: {bits:.3f}")
    known = [bits for _, found in curves.bits.values() for bits in found[len(found) // 10 :]]
    every = [*known, *shown.values()]
    room = 0.06 * (max(every) - min(every) + 1e-9)
    axes.set_ylim(min(every) - room, max(every) + room)
    axes.set_xlabel("training step")
    axes.set_ylabel("bits/base")
    _legend(figure, axes)
    return figure


def _chosen(floors: Mapping[str, float]) -> dict[str, float]:
    """Choose the chain without context, the best chain, and the source if it is known."""
    chains = {name: bits for name, bits in floors.items() if "Markov" in name}
    best = min(chains, key=lambda name: chains[name])
    sources = [name for name in floors if name not in chains]
    return {name: floors[name] for name in dict.fromkeys([next(iter(chains)), best, *sources])}


def draw_all(measured: Measured, trace: Trace, row: int, curves: Curves) -> dict[str, str]:
    """Draw all figures of the page, as SVG by name."""
    divergences = [m for m in measured.measures if "Jensen" in m.name]
    figures = {
        "gc": draw_histograms({k: 100 * v for k, v in measured.gc.items()}, "GC content, %"),
        "divergence": draw_divergence(divergences),
        "spectrum": draw_spectrum(measured.spectra),
        "longest": draw_histograms(measured.longest, "longest match with training, bases"),
        "strip": draw_strip(trace, row),
    }
    if len(np.unique(np.concatenate(list(measured.lengths.values())))) > 1:
        figures["length"] = draw_histograms(measured.lengths, "length, bases")
    if curves.bits:
        figures["curves"] = draw_curves(curves)
    return {name: svg(figure) for name, figure in figures.items()}
