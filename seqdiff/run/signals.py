"""The values that sequences are conditioned on: from options, files and splits to arrays."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seqdiff.cells import say
from seqdiff.data import Signals, Split
from seqdiff.run.directory import Trained

# A value further outside the range of training than this fraction of the range gets a warning.
_MARGIN = 0.1

GivenSignal = Mapping[str, float | Sequence[float]] | np.ndarray


class Wanted(NamedTuple):
    """The signal of each sequence to draw.

    Attributes:
        values: One row for each sequence, in the order of the run's signals; NaN where a value is
            not given, and after the end of a sequence that is shorter than the others.
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


def _names_of_rows(owner: str, run: Trained) -> list[str]:
    """Return the names of the signals of a run whose rows have one value of each.

    Raises:
        ValueError: If it has no signals, or its positions have values of their own.
    """
    names = signal_names(owner, run)
    if run.datamodule.signal_tracks:
        raise ValueError(
            f"{owner} must be left out for {run.directory}, whose positions have values of their "
            "own; take the values of a split: sample --signal-from test, or in Python an array "
            f"[sequences, tokens, {len(names)}]"
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
    if isinstance(given, Mapping):
        names = _names_of_rows(owner, run)
        _check_names(owner, given, run)
        values = np.full((num, len(names)), np.nan, dtype=np.float32)
        for name, value in given.items():
            column = _numbers(f"{owner} {name}", value)
            if column.shape not in ((), (num,)):
                raise ValueError(
                    f"{owner} {name} must be one value or {num}, one for each sequence, got shape "
                    f"{column.shape}; give as many values as sequences"
                )
            values[:, names.index(name)] = column
    else:
        names, values = signal_names(owner, run), _numbers(owner, given)
        wanted = 3 if run.datamodule.signal_tracks else 2
        if values.ndim != wanted or len(values) != num or values.shape[-1] != len(names):
            shape = f"({num}, {'tokens, ' if wanted == 3 else ''}{len(names)})"
            raise ValueError(
                f"{owner} must have shape {shape}: a row for each sequence and a column for each "
                f"of {', '.join(names)}, got {values.shape}; give NaN where a value is unknown"
            )
    if np.isinf(values).any():
        raise ValueError(
            f"{owner} must be finite in float32, got infinity; give NaN where a value is unknown"
        )
    return values


def _numbers(owner: str, given: object) -> np.ndarray:
    """Convert to an array of float32."""
    try:
        with np.errstate(over="ignore"):  # infinity, an error of the caller
            return np.asarray(given, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{owner} must hold numbers, got {given!r}; give NaN where a value is unknown"
        ) from error


def _check_names(owner: str, given: Mapping[str, object], run: Trained) -> None:
    """Check the names of signals.

    Raises:
        ValueError: If there is none or one that the run does not have, or a run that has always
            seen all of them lacks one.
    """
    names = run.datamodule.signals or []
    unknown = [repr(name) for name in given if name not in names]
    if unknown or not given:
        raise ValueError(
            f"{owner} must name signals of the run ({', '.join(names)}), got "
            f"{unknown[0] if unknown else 'none'}; correct the name"
        )
    absent = [name for name in names if name not in given]
    if absent and run.config.signal_dropout == 0:
        raise ValueError(
            f"{owner} must give every signal of a run trained with signal_dropout 0, got none for "
            f"{absent[0]}; add it, or train with signal_dropout 0.1"
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
            say(
                f"seqdiff: warning: {name} was between {low[column]:.4g} and {high[column]:.4g} in "
                f"training; {int(outside.sum()):,} of {len(own):,} values lie far outside, for "
                f"example {own[outside][0]:.4g}",
                error=True,
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
    names = _names_of_rows("sample.signal_file", run)
    rows: list[tuple[int, list[str]]] = []
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, delimiter="," if path.suffix == ".csv" else "\t")
            rows += [(reader.line_num, row) for row in reader if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: must be a text table, got {error}; save it as UTF-8") from error
    header = rows[0][1] if rows else []
    unknown = [name for name in header if name not in ("name", *names)]
    if "name" not in header or unknown or len(header) < 2 or len(set(header)) < len(header):
        raise ValueError(
            f"{path}:1: the columns must be name and any of {', '.join(names)}, each once, got "
            f"{', '.join(header) or 'none'}; correct the header"
        )
    _check_names(f"{path}:1: the columns", dict.fromkeys(set(header) - {"name"}), run)
    values = np.full((len(rows) - 1, len(names)), np.nan, dtype=np.float32)
    found: dict[str, int] = {}
    for number, (line, row) in enumerate(rows[1:]):
        if len(row) != len(header):
            raise ValueError(
                f"{path}:{line}: must have {len(header)} columns like the header, got {len(row)}; "
                "correct the line"
            )
        cells = dict(zip(header, row, strict=True))
        name = cells.pop("name")
        if name.split() != [name] or name in found:
            got = f"{name!r} of line {found[name]} again" if name in found else repr(name)
            raise ValueError(
                f"{path}:{line}: must have a name of its own, without blanks, got {got}; change it"
            )
        found[name] = line
        for signal, text in cells.items():
            values[number, names.index(signal)] = _number(text, f"{path}:{line}: {signal}")
    if not found:
        raise ValueError(f"{path}: must have a row for each sequence, got none; add one")
    return Wanted(values, list(found))


def _number(text: str, owner: str) -> float:
    if text.strip() in ("", "NA", "nan", "NaN"):
        return math.nan
    try:
        value = float(_numbers(owner, text))
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
    dataset = run.dataset(split)
    rows = np.arange(len(dataset))
    values, padding = dataset.signals(rows), dataset.padding(rows)
    assert values is not None
    names = [f"{split}_{row}" for row in rows.tolist()]
    if padding is None:
        tokens, _ = dataset.rows(rows[:1])
        return Wanted(values, names, [tokens.shape[1]] * len(rows))
    if values.ndim == 3:
        values = np.where(padding[..., None], np.float32(np.nan), values)
    return Wanted(values, names, (~padding).sum(axis=1).tolist())


def check_tracks(signal: Signals, lengths: Sequence[int]) -> None:
    """Check that the tracks of sequences are as long as the sequences.

    Args:
        signal: Values of each sequence. Tracks may go on after the end of a sequence with NaN.
        lengths: Tokens of each sequence.

    Raises:
        ValueError: If they are not.
    """
    if signal.ndim != 3:
        return
    for track, length in zip(signal, lengths, strict=True):
        positions = len(track)
        if positions < length or not np.isnan(track[length:]).all():
            raise ValueError(
                f"sample.signal must have a value for each of {length} tokens, got {positions}; "
                "draw sequences as long as the tracks, and give NaN where a value is unknown"
            )
