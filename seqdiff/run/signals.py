"""The values that sequences are conditioned on: from options, files and splits to arrays."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seqdiff.data import Signals, Split
from seqdiff.run.directory import Trained

# A value further outside the range of training than this fraction of the range gets a warning.
_MARGIN = 0.1

GivenSignal = Mapping[str, float | Sequence[float]] | np.ndarray


class Wanted(NamedTuple):
    """The signal of each sequence to draw.

    Attributes:
        values: One row for each sequence, in the order of the run's signals; NaN where a value is
            not given.
        names: Names of the sequences; ``None`` to number them.
        lengths: Their lengths in tokens; ``None`` for that of the training rows.
    """

    values: Signals
    names: list[str] | None = None
    lengths: list[int] | None = None


def signal_names(owner: str, run: Trained) -> list[str]:
    """Return the names of a run's signals.

    Raises:
        ValueError: If it has none.
    """
    names = run.datamodule.signals
    if names is None:
        raise ValueError(
            f"{owner} must be left out for a run without signals, got it for {run.directory}; "
            "train on data with measured values (data.signals)"
        )
    return names


def fit_signal(owner: str, run: Trained, given: GivenSignal, num: int) -> Signals:
    """Turn values by name, or an array, into one row for each sequence.

    Args:
        owner: The argument, for messages.
        run: The run.
        given: For each named signal one value, or one for each sequence; or an array ``[num, S]``,
            or ``[num, L, S]`` for a run whose positions have values of their own.
        num: Number of sequences.

    Raises:
        ValueError: If the run has no such signals, or the shape or a value does not fit.
    """
    names = signal_names(owner, run)
    if isinstance(given, Mapping):
        _check_names(owner, given, names)
        if run.datamodule.signal_tracks:
            raise ValueError(
                f"{owner} must be an array [sequences, tokens, {len(names)}] for {run.directory}, "
                "whose positions have values of their own, got values by name; or take the values "
                "of a split: --signal-from test"
            )
        values = np.full((num, len(names)), np.nan, dtype=np.float32)
        for name, value in given.items():
            column = np.asarray(value, dtype=np.float32)
            if column.shape not in ((), (num,)):
                raise ValueError(
                    f"{owner} {name} must be one value or {num}, one for each sequence, got shape "
                    f"{column.shape}; give as many values as sequences"
                )
            values[:, names.index(name)] = column
    else:
        values = np.asarray(given, dtype=np.float32)
        wanted = 3 if run.datamodule.signal_tracks else 2
        if values.ndim != wanted or len(values) != num or values.shape[-1] != len(names):
            shape = f"({num}, {'tokens, ' if wanted == 3 else ''}{len(names)})"
            raise ValueError(
                f"{owner} must have shape {shape}: a row for each sequence and a column for each "
                f"of {', '.join(names)}, got {values.shape}; give NaN where a value is unknown"
            )
    if np.isinf(values).any():
        raise ValueError(f"{owner} must hold finite values, or NaN for unknown ones, got infinity")
    warn_of_range(run, values)
    return values


def _check_names(owner: str, given: Mapping[str, object], names: Sequence[str]) -> None:
    unknown = [name for name in given if name not in names]
    if unknown or not given:
        raise ValueError(
            f"{owner} must name a signal of the run ({', '.join(names)}), got "
            f"{unknown[0] if unknown else 'none'!r}; correct the name"
        )


def warn_of_range(run: Trained, values: Signals) -> None:
    """Print a warning for each signal with values far outside the range of training."""
    embedding = run.denoiser.backbone.signal_embedding
    if embedding is None:
        return
    low, high = embedding.range.cpu().numpy()
    margin = _MARGIN * (high - low)
    for column, name in enumerate(run.datamodule.signals or ()):
        own = values[..., column]
        own = own[~np.isnan(own)]
        outside = (own < low[column] - margin[column]) | (own > high[column] + margin[column])
        if outside.any():
            print(
                f"seqdiff: warning: {name} was between {low[column]:.4g} and {high[column]:.4g} in "
                f"training; {int(outside.sum()):,} of {len(own):,} values lie far outside, for "
                f"example {own[outside][0]:.4g}",
                file=sys.stderr,
            )


def read_signal_file(path: Path, run: Trained) -> Wanted:
    """Read a table of wanted values: a column ``name``, and one for each signal to condition on.

    Args:
        path: Tab-separated, or comma-separated with the suffix .csv. Empty cells and ``NA`` are
            unknown values.
        run: The run.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If a column or a cell does not fit; the message starts with file and line.
    """
    owner = "sample.signal_file"
    names = signal_names(owner, run)
    if run.datamodule.signal_tracks:
        raise ValueError(
            f"{owner} must be left out for {run.directory}, whose positions have values of their "
            "own; take the values of a split: --signal-from test"
        )
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file, delimiter="," if path.suffix == ".csv" else "\t"))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: must be a text table, got {error}; save it as UTF-8") from error
    header = rows[0] if rows else []
    unknown = [name for name in header if name not in ("name", *names)]
    if "name" not in header or unknown or len(header) < 2 or len(set(header)) < len(header):
        raise ValueError(
            f"{path}:1: the columns must be name and any of {', '.join(names)}, each once, got "
            f"{', '.join(header) or 'none'}; correct the header"
        )
    values = np.full((len(rows) - 1, len(names)), np.nan, dtype=np.float32)
    found: dict[str, int] = {}
    for line, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise ValueError(
                f"{path}:{line}: must have {len(header)} columns like the header, got {len(row)}"
            )
        cells = dict(zip(header, row, strict=True))
        name = cells.pop("name")
        if not name or name in found:
            got = f"{name!r} of line {found[name]} again" if name else "none"
            raise ValueError(f"{path}:{line}: must have a name of its own, got {got}; change it")
        found[name] = line
        for signal, text in cells.items():
            values[line - 2, names.index(signal)] = _number(text, f"{path}:{line}: {signal}")
    if not found:
        raise ValueError(f"{path}: must have a row for each sequence, got none; add one")
    warn_of_range(run, values)
    return Wanted(values, list(found))


def _number(text: str, owner: str) -> float:
    if text.strip() in ("", "NA", "nan", "NaN"):
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    if not math.isfinite(value):
        raise ValueError(
            f"{owner} must be a finite number, got {text!r}; leave it empty if unknown"
        )
    return value


def signal_of_split(run: Trained, split: Split) -> Wanted:
    """Read the signals of a split, in its order, and the lengths of its rows.

    Args:
        run: The run, with its data at hand.
        split: The split.

    Raises:
        ValueError: If the run has no signals, or the split cannot be read.
    """
    signal_names("sample.signal_from", run)
    dataset = run.datamodule.dataset(split)
    rows = np.arange(len(dataset))
    values, padding = dataset.signals(rows), dataset.padding(rows)
    assert values is not None
    names = [f"{split}_{row}" for row in rows.tolist()]
    if padding is None:
        tokens, _ = dataset.rows(rows[:1])
        return Wanted(values, names, [tokens.shape[1]] * len(rows))
    return Wanted(values, names, (~padding).sum(axis=1).tolist())
