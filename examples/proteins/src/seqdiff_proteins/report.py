"""``seqdiff report`` for runs on proteins: samples beside the family, on one page."""

from __future__ import annotations

import base64
import io
import json
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from seqdiff.cells import say
from seqdiff.checks import check_count, check_seed
from seqdiff.files import check_apart, check_parent, replacing
from seqdiff_proteins import statistics
from seqdiff_proteins.alphabet import GAP, check_proteins
from seqdiff_proteins.data import AlignedProteins, ProteinRows, Proteins
from seqdiff_proteins.fasta import read_fasta, write_samples

if TYPE_CHECKING:
    from seqdiff.run import Run

_LEAST = 20  # samples; frequencies of fewer say nothing


class Measure(NamedTuple):
    """One line of the report: a number for each set, compared with the test sequences.

    The errors are standard errors, of the sets that have one.
    """

    name: str
    unit: str
    values: dict[str, float]
    errors: dict[str, float]

    def cell(self, name: str) -> str:
        """Write a set's number, and its standard error if it has one."""
        if name not in self.values:
            return ""
        error = f" ± {self.errors[name]:.3f}" if name in self.errors else ""
        return f"{self.values[name]:.3f}{error}"


def report(
    run: Path,
    /,
    *,
    samples: Path | None = None,
    num: int = 200,
    out: Path | None = None,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Compare samples of proteins with the test sequences of their family, on one page.

    Beside the samples stand as many training sequences, which show what chance does, and shuffled
    ones: each column of an alignment, or the residues of each protein.

    Args:
        run: Run directory, or name of a packaged model.
        samples: FASTA file of seqdiff sample; default: RUN/samples.fasta, which is drawn if it does
            not exist.
        num: Number of samples to draw, if they are drawn.
        out: HTML file to write, and a .json file of the numbers beside it; default:
            RUN/report.html.
        seed: Seed of all draws.
        device: cpu, cuda, ...; default: cuda if there is one, else cpu.

    Raises:
        ValueError: If a file cannot be used, or the run is not on proteins.
    """
    from seqdiff.run import choose_device, default_path, load

    check_seed("report.seed", seed)
    check_count("report.num", num, _LEAST)
    out = default_path(run, "report.html") if out is None else out
    if out.suffix != ".html":
        raise ValueError(f"report.out must end in .html, got {out}; rename it")
    for path in (out, out.with_suffix(".json")):
        check_parent("report.out", path)
        check_apart("report.out", path, {"--samples": samples})
    given = None if samples is None else read_fasta(samples)
    trained = load(run, device=choose_device(device))
    check_proteins("report.run", trained.tokenizer)
    trained.dataset("train")
    source = default_path(run, "samples.fasta") if samples is None else samples
    if given is None:
        if not source.exists():
            drawn = trained.sample(num, seed=seed)
            with replacing(source) as temporary:
                write_samples(temporary, drawn, [f"sample_{i}" for i in range(num)])
        given = read_fasta(source)
    sets = build_sets(trained, given, source, seed)
    measures = measure(trained.datamodule, sets)
    lengths = sets["samples"].lengths
    facts = {
        "run": str(run),
        "samples": f"{source}: {len(lengths):,} of {_span(lengths)} residues",
        "test": f"{len(sets['test']):,} sequences",
        "training": f"{len(sets['train']):,} sequences",
    }
    few = warnings(measures)
    page = _page(facts, measures, few, _figures(trained.datamodule, sets))
    numbers = {
        "about": {**facts, "seed": seed},
        "measures": [_finite(m) for m in measures],
        "warnings": few,
    }
    with replacing(out) as new, replacing(out.with_suffix(".json")) as beside:
        new.write_text(page, encoding="utf-8")
        beside.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    for line in measures:
        say(f"{line.name}: " + ", ".join(f"{name} {line.cell(name)}" for name in line.values))
    for warning in few:
        say(f"seqdiff: warning: {warning}", error=True)
    say(f"{out}: {len(lengths):,} samples; the numbers are in {out.with_suffix('.json')}")


def build_sets(
    run: Run, samples: Sequence[tuple[str, str]], source: Path, seed: int
) -> dict[str, ProteinRows]:
    """Put samples, real and shuffled sequences beside each other.

    Args:
        run: A run on proteins.
        samples: Names and sequences.
        source: Their file, for messages.
        seed: Seed of the choice of training sequences and of the shuffles.

    Returns:
        ``test`` and ``train``; and ``samples``, ``training`` and ``shuffled``, which are equally
        many, or half of the training sequences if there are fewer.

    Raises:
        ValueError: If there are fewer than 20 samples, or one does not fit the run.
    """
    data = run.datamodule
    assert isinstance(data, Proteins)
    if len(samples) < _LEAST:
        raise ValueError(
            f"report.samples must hold at least {_LEAST} sequences, got {len(samples)} in {source};"
            " draw more"
        )
    encoded = []
    for name, sequence in samples:
        ids = data.tokenizer.encode(sequence)
        if len(ids) > data.length or (isinstance(data, AlignedProteins) and len(ids) < data.length):
            raise ValueError(
                f"{source}: {name} must have the {data.length:,} residues of a training row, got "
                f"{len(ids):,}; draw samples from this run"
            )
        encoded.append(ids)
    unknown, train = data.tokenizer.vocab_size, data.dataset("train")
    random = np.random.default_rng(seed)
    order = random.permutation(len(train))
    real, other = (half[: len(encoded)] for half in np.array_split(order, 2))
    if isinstance(data, AlignedProteins):
        mixed = list(statistics.shuffle_columns(train.tokens[other], random))
    else:
        mixed = statistics.shuffle_residues(
            [train.tokens[i, : train.lengths[i]] for i in other], random
        )
    chosen = [train.tokens[i, : train.lengths[i]] for i in real]
    return {
        "test": data.dataset("test"),
        "train": train,
        "samples": ProteinRows(encoded, data.length, unknown),
        "training": ProteinRows(chosen, data.length, unknown),
        "shuffled": ProteinRows(mixed, data.length, unknown),
    }


def measure(data: object, sets: dict[str, ProteinRows]) -> list[Measure]:
    """Compare the sets with the test sequences.

    The errors are by the jackknife over ten groups of a set's sequences (Efron and Stein 1981).
    """
    assert isinstance(data, Proteins)
    wanted, found = _describe(data, sets["test"]), dict[str, Measure]()
    for name in ("samples", "training", "shuffled"):
        values = _compare(_describe(data, sets[name]), wanted)
        parts = () if name == "shuffled" else _without_groups(sets[name])
        leave_out = [_compare(_describe(data, part), wanted) for part in parts]
        for key, value in values.items():
            line = found.setdefault(key, Measure(key, _UNITS[key], {}, {}))
            line.values[name] = value
            if leave_out:
                line.errors[name] = statistics.jackknife_error([part[key] for part in leave_out])
    if isinstance(data, AlignedProteins):
        line = Measure("identity to the nearest training row", "mean fraction", {}, {})
        for name in ("samples", "test"):
            near = statistics.nearest_identity(sets[name].tokens, sets["train"].tokens)
            line.values[name] = float(near.mean())
            line.errors[name] = float(near.std(ddof=1) / math.sqrt(len(near)))
        found[line.name] = line
    gap = data.tokenizer.vocab_size - 1 if data.gaps else None
    bare = {name: statistics.bare(sets[name], gap) for name in ("samples", "training")}
    distinct = {n: len({ids.tobytes() for ids in rows}) / len(rows) for n, rows in bare.items()}
    return [*found.values(), Measure("distinct sequences", "fraction", distinct, {})]


_RESIDUES, _NEIGHBOURS, _SITES, _PAIRS = (
    "divergence of the frequencies of residues",
    "divergence of the frequencies of pairs of neighbours",
    "frequencies at each site",
    "covariances of pairs of sites",
)
_UNITS = {
    _RESIDUES: "bits, 0 is best",
    _NEIGHBOURS: "bits, 0 is best",
    _SITES: "Pearson, 1 is best",
    _PAIRS: "Pearson, 1 is best",
}


def _describe(data: Proteins, rows: ProteinRows) -> dict[str, np.ndarray]:
    """Count what a set is compared by."""
    size = data.tokenizer.vocab_size
    bare = statistics.bare(rows, size - 1 if data.gaps else None)
    found = {
        _RESIDUES: statistics.count_words(bare, 1, size),
        _NEIGHBOURS: statistics.count_words(bare, 2, size),
    }
    if isinstance(data, AlignedProteins):
        found[_SITES] = statistics.one_hot(rows.tokens, size).mean(axis=0)
        found[_PAIRS] = statistics.distant(statistics.covariance(rows.tokens, size))
    return found


def _compare(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> dict[str, float]:
    return {
        name: statistics.divergence(value, wanted[name])
        if name in (_RESIDUES, _NEIGHBOURS)
        else statistics.pearson(value, wanted[name])
        for name, value in found.items()
    }


def _without_groups(rows: ProteinRows) -> list[ProteinRows]:
    """Leave out each tenth of the rows in turn."""
    whole = [tokens[:length] for tokens, length in zip(rows.tokens, rows.lengths, strict=True)]
    groups = np.arange(len(whole)) % statistics.GROUPS
    return [
        ProteinRows(
            [ids for ids, own in zip(whole, groups, strict=True) if own != group],
            rows.tokens.shape[1],
            rows.unknown,
        )
        for group in range(statistics.GROUPS)
    ]


def warnings(measures: Sequence[Measure]) -> list[str]:
    """Say if the samples are too few.

    The samples are too few if as many training sequences are closer to shuffled sequences than to
    the test sequences. This is measured by what shuffling destroys: pairs of sites in alignments,
    and neighbours in other proteins.
    """
    lines = {line.name: line.values for line in measures}
    name, best = (_PAIRS, 1.0) if _PAIRS in lines else (_NEIGHBOURS, 0.0)
    real, shuffled = lines[name]["training"], lines[name]["shuffled"]
    if abs(best - real) < abs(real - shuffled):
        return []
    return [
        f"the samples are too few for the {name}, where as many training sequences have only "
        f"{real:.3f} ({best:.0f} is best, shuffled ones have {shuffled:.3f}); draw more with --num"
    ]


def _finite(line: Measure) -> dict[str, object]:
    values, errors = (
        {n: value if math.isfinite(value) else None for n, value in part.items()}
        for part in (line.values, line.errors)
    )
    return {"name": line.name, "unit": line.unit, "values": values, "standard_errors": errors}


def _span(lengths: np.ndarray) -> str:
    least, most = int(lengths.min()), int(lengths.max())
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _figures(data: object, sets: dict[str, ProteinRows]) -> dict[str, bytes]:
    """Draw pictures, as PNG by caption."""
    from matplotlib.figure import Figure

    assert isinstance(data, Proteins)
    size = data.tokenizer.vocab_size
    figure = Figure(figsize=(5, 3.2), layout="constrained")
    axes = figure.subplots()
    symbols = data.tokenizer.symbols.replace(GAP, "")
    for name in ("test", "samples"):
        bare = statistics.bare(sets[name], size - 1 if data.gaps else None)
        counts = statistics.count_words(bare, 1, size)[: len(symbols)]
        axes.plot(list(symbols), counts / counts.sum(), "o-", label=name)
    axes.set(xlabel="residue", ylabel="frequency")
    axes.legend()
    found = {"Frequencies of residues in samples and test sequences.": _png(figure)}
    if isinstance(data, AlignedProteins):
        for caption, values in _scatters(sets, size).items():
            figure = Figure(figsize=(4, 4), layout="constrained")
            axes = figure.subplots()
            axes.hexbin(*values, gridsize=60, bins="log", mincnt=1, cmap="cividis")
            axes.axline((0, 0), slope=1, color="black", linewidth=0.5)
            axes.set(xlabel="test sequences", ylabel="samples")
            found[caption] = _png(figure)
    return found


def _scatters(sets: dict[str, ProteinRows], size: int) -> dict[str, list[np.ndarray]]:
    tokens = [sets[name].tokens for name in ("test", "samples")]
    return {
        "Frequency of each residue at each site.": [
            statistics.one_hot(rows, size).mean(axis=0).ravel() for rows in tokens
        ],
        f"Covariance of residues at two sites that are at least {statistics.NEAR} apart.": [
            statistics.distant(statistics.covariance(rows, size)) for rows in tokens
        ],
    }


def _png(figure: object) -> bytes:
    from matplotlib.figure import Figure

    assert isinstance(figure, Figure)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=120, metadata={"Software": None})
    return content.getvalue()


_STYLE = """body { margin: auto; padding: 1rem; max-width: 50rem; font: 1rem/1.5 system-ui; }
table { border-collapse: collapse; width: 100%; } th, td { padding: .2rem .5rem; }
th { text-align: left; } td { text-align: right; } tr { border-bottom: 1px solid #ddd; }
figure { margin: 1rem 0; } img { max-width: 100%; } dt { color: #555; }"""


def _page(
    facts: dict[str, str],
    measures: list[Measure],
    few: list[str],
    figures: dict[str, bytes],
) -> str:
    """Write the page; it has no script and no external file."""
    sets = list(dict.fromkeys(name for line in measures for name in line.values))
    rows = [["compared with the test sequences", "", *sets]]
    for line in measures:
        rows.append([line.name, line.unit, *map(line.cell, sets)])
    table = "".join(
        "<tr><th>"
        + "</th><th>".join(map(escape, row[:2]))
        + "</th><td>"
        + "</td><td>".join(map(escape, row[2:]))
        + "</td></tr>"
        for row in rows
    )
    about = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    notes = "".join(
        f"<p><strong>{escape(note[0].upper() + note[1:])}.</strong></p>" for note in few
    )
    pictures = "".join(
        f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,'
        f'{base64.b64encode(png).decode()}"><figcaption>{escape(caption)}</figcaption></figure>'
        for caption, png in figures.items()
    )
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Proteins</title>'
        f"<style>{_STYLE}</style><h1>Samples beside their family</h1><dl>{about}</dl>"
        f"<table>{table}</table><p>± is the standard error over sequences. A 95% interval has "
        f"{statistics.WIDTH:.2f} of them on each side.</p>{notes}{pictures}</html>\n"
    )
