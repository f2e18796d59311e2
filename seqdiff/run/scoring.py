"""Scores of single sequences, as a table."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import torch
from jaxtyping import Float64

from seqdiff.cells import say
from seqdiff.data import CountingTokenizer, Record
from seqdiff.likelihood import Estimator, Likelihood, check_budget, evaluate
from seqdiff.run.directory import Trained
from seqdiff.run.engine import Engine, Shard
from seqdiff.run.prediction import equal_lengths
from seqdiff.tables import Cell, format_rows, spell
from seqdiff.types import Batch

if TYPE_CHECKING:
    import pandas as pd

_BATCHES_PER_SHARD = 8


@dataclass(frozen=True)
class Score:
    """One line of the table; estimates are ``None`` for a record without a known token.

    Attributes:
        record: Name of the record.
        length: Number of tokens.
        nats: The estimate, the mean over the readings of the record.
        standard_error: Standard error of ``nats``, from the estimator's draws.
        low: Lower end of the 95% interval around ``nats``.
        high: Upper end of the interval.
        counted: Number of known tokens, over which ``nats`` is the sum.
        nfe: Network evaluations, over all readings.
        units: Number of units that the known tokens stand for, see ``CountingTokenizer``; ``None``
            for other tokenizers.
        by_position: What each position contributes to ``nats``, which they sum to, NaN where a
            token is unknown; only if asked for.
    """

    record: str
    length: int
    nats: float | None
    standard_error: float | None
    low: float | None
    high: float | None
    counted: int
    nfe: int
    units: int | None = None
    by_position: Float64[np.ndarray, " L"] | None = field(default=None, compare=False, repr=False)

    @property
    def bits_per_unit(self) -> float | None:
        """Bits per unit of the known tokens."""
        return None if self.nats is None or not self.units else self.nats / self.units / math.log(2)

    @property
    def bits_per_token(self) -> float | None:
        """Bits per counted token."""
        return None if self.nats is None else self.nats / self.counted / math.log(2)


@dataclass(frozen=True)
class _Reading:
    """One way to read a record, for example one strand; ``index`` determines its noise."""

    record: str
    tokens: np.ndarray
    known: np.ndarray
    index: int
    mirrored: bool


def score_records(
    run: Trained,
    records: Sequence[Record],
    *,
    estimator: Estimator,
    seed: int,
    batch_size: int,
    target_se: float | None = None,
    max_nfe: int | None = None,
    engine: Engine | None = None,
    by_position: bool = False,
) -> list[Score]:
    """Score every record, with a progress bar.

    The readings of a record have different noise, and so independent errors. A record without a
    known token is not scored.

    Args:
        run: The run.
        records: The records.
        estimator: The estimator.
        seed: Seed of the draws; a score is a function of the seed and the content of the record.
        batch_size: Maximum number of rows of a network call.
        target_se: Standard error of a reading to aim at, in nats.
        max_nfe: Maximum number of network evaluations for a reading.
        engine: Where to compute; by default in this process.
        by_position: Whether to keep what each position contributes.

    Raises:
        ValueError: If no record has a known token, a record is too long for the network, or one
            pass over the longest takes more than ``max_nfe``.
    """
    readings = [_read(record, run.process.unknown_id) for record in records]
    scored = sorted(
        (r for ways in readings for r in ways if r.known.any()), key=lambda r: len(r.tokens)
    )
    if not scored:
        raise ValueError(
            f"score.records must hold a known symbol, got {len(records)} without any; "
            "check the file"
        )
    _check_longest(scored, estimator, target_se, max_nfe, run.denoiser.evaluations_per_call)
    _check_lengths(scored, run)
    work = partial(
        _evaluate,
        estimator=estimator,
        seed=seed,
        target_se=target_se,
        max_nfe=max_nfe,
        rows_per_call=batch_size,
        by_position=by_position,
    )
    parts = list(
        (engine or Engine()).map("scoring", work, run, _shards(scored, batch_size), len(scored))
    )
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    terms = columns.pop("terms", None)
    result = Likelihood(**columns)
    place = {id(reading): number for number, reading in enumerate(scored)}
    scores = [
        _score(record, result, [place[id(r)] for r in ways if r.known.any()])
        for record, ways in zip(records, readings, strict=True)
    ]
    if terms is not None:
        ends = np.cumsum([len(reading.tokens) for reading in scored])[:-1]
        tracks = {id(r): track for r, track in zip(scored, np.split(terms, ends), strict=True)}
        scores = [
            replace(score, by_position=_average(record, [tracks.get(id(r)) for r in ways], ways))
            for score, record, ways in zip(scores, records, readings, strict=True)
        ]
    tokenizer = run.tokenizer
    if not isinstance(tokenizer, CountingTokenizer):
        return scores
    return [
        replace(score, units=tokenizer.num_units(record.readings[0]))
        for record, score in zip(records, scores, strict=True)
    ]


def _read(record: Record, unknown_id: int) -> list[_Reading]:
    """Return the readings of a record, each with its own noise."""
    content = record.readings[0] if record.content is None else record.content
    digest = hashlib.blake2b(content.astype("<i8").tobytes(), digest_size=8)
    readings = []
    for number, tokens in enumerate(record.readings):
        salted = digest.copy()
        salted.update(bytes([number]))
        index = int.from_bytes(salted.digest(), "little") >> 1  # as int64, not negative
        mirrored = bool(record.mirrored) and record.mirrored[number]
        readings.append(_Reading(record.name, tokens, tokens != unknown_id, index, mirrored))
    return readings


def _check_lengths(readings: list[_Reading], run: Trained) -> None:
    """Check that the network takes the longest reading, and warn about extrapolation.

    Args:
        readings: The readings, sorted by length.
        run: The run.

    Raises:
        ValueError: If the longest reading has more tokens than the network takes.
    """
    longest, unit = readings[-1], run.datamodule.token_name
    length, most, learnt = len(longest.tokens), run.max_length, run.datamodule.context_length
    if most is not None and length > most:
        raise ValueError(
            f"record {longest.record!r}: score must be given at most {most:,} {unit}s, all that "
            f"the network of {run.directory} takes, got {length:,}; cut the record"
        )
    if learnt is not None and length > learnt:
        names = {r.record for r in readings if len(r.tokens) > learnt}
        say(
            f"seqdiff: warning: scores extrapolate where a record has more than the {learnt:,} "
            f"{unit}s of the rows that {run.directory} was trained on: {len(names):,}, the longest "
            f"{longest.record!r} with {length:,}",
            error=True,
        )


def _check_longest(
    readings: list[_Reading],
    estimator: Estimator,
    target_se: float | None,
    max_nfe: int | None,
    per_call: int,
) -> None:
    """Raise ``ValueError`` if the budget is too small for the longest record."""
    longest = max(readings, key=lambda r: int(r.known.sum()))
    tokens = int(longest.known.sum())
    try:
        budget = {"target_se": target_se, "max_nfe": max_nfe}
        check_budget(estimator, num_tokens=tokens, **budget, per_call=per_call, owner="score")
    except ValueError as error:
        raise ValueError(f"record {longest.record!r}: {error}") from None


def _batches(readings: list[_Reading], batch_size: int) -> Iterator[Batch]:
    for numbers in equal_lengths([len(r.tokens) for r in readings], batch_size):
        part = [readings[number] for number in numbers]
        yield Batch(
            torch.from_numpy(np.stack([r.tokens for r in part]).astype(np.int64)),
            torch.from_numpy(np.stack([r.known for r in part])),
            torch.tensor([r.index for r in part]),
            mirrored=torch.tensor([r.mirrored for r in part]),
        )


def _shards(readings: list[_Reading], batch_size: int) -> Iterator[Shard]:
    batches = _batches(readings, batch_size)
    while part := list(islice(batches, _BATCHES_PER_SHARD)):
        yield Shard(sum(len(batch.tokens) for batch in part), part)


def _evaluate(
    run: Trained,
    batches: list[Batch],
    progress: Callable[[float], None],
    *,
    by_position: bool,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Return the columns of the ``Likelihood`` of some rows, and the terms of all positions."""
    device = next(run.denoiser.parameters()).device
    rows = [batch.to(device) for batch in batches]
    terms: list[np.ndarray] | None = [] if by_position else None
    found = evaluate(run.denoiser, rows, progress=progress, by_position=terms, **options)
    return vars(found) | ({} if terms is None else {"terms": np.concatenate(terms)})


def _average(
    record: Record, tracks: list[np.ndarray | None], ways: list[_Reading]
) -> Float64[np.ndarray, " L"]:
    """Average the terms of the readings of a record, in the order of the record."""
    backwards = record.reversed or (False,) * len(ways)
    found = []
    for track, way, back in zip(tracks, ways, backwards, strict=True):
        values = np.where(way.known, np.nan if track is None else track, np.nan)
        found.append(values[::-1] if back else values)
    return np.mean(found, axis=0)


def _score(record: Record, result: Likelihood, rows: list[int]) -> Score:
    """Average over the readings of a record, which are rows of the result."""
    length = len(record.readings[0])
    if not rows:
        return Score(record.name, length, None, None, None, None, counted=0, nfe=0)
    mean = result.mean_of(rows)
    low, high = mean.interval()
    return Score(
        record=record.name,
        length=length,
        nats=float(mean.nats[0]),
        standard_error=float(mean.standard_error[0]),
        low=float(low[0]),
        high=float(high[0]),
        counted=int(mean.num_tokens[0]),
        nfe=int(mean.nfe[0]),
    )


@dataclass(frozen=True)
class Scores(Sequence[Score]):
    """Scores of sequences; prints as a table.

    Attributes:
        rows: The score of each sequence, in order.
        unit: Name of a token, such as ``base``.
        estimator: The estimator.
        counts: Name of the units that tokens stand for, see ``CountingTokenizer``; ``None`` for
            other tokenizers.
    """

    rows: tuple[Score, ...]
    unit: str
    estimator: Estimator
    counts: str | None = None

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Score: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Score, ...]: ...
    def __getitem__(self, index: int | slice) -> Score | tuple[Score, ...]:
        """Return one score, or some."""
        return self.rows[index]

    @property
    def columns(self) -> dict[str, type]:
        """The type of each column, by its name."""
        per_unit = () if self.counts is None else (f"bits/{self.counts}",)
        estimates = ("nats", f"bits/{self.unit}", *per_unit, "standard_error", "low", "high")
        return {
            **{"record": str, "length": int},
            **dict.fromkeys(estimates, float),
            **{"counted": int, "nfe": int},
        }

    def cells(self, score: Score) -> tuple[Cell, ...]:
        """Return the values of a line, the name as it is."""
        s = score
        per_unit = () if self.counts is None else (s.bits_per_unit,)
        numbers = (s.nats, s.bits_per_token, *per_unit, s.standard_error, s.low, s.high)
        return (s.record, s.length, *numbers, s.counted, s.nfe)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with a row for each sequence."""
        import pandas as pd

        return pd.DataFrame(
            [self.cells(score) for score in self], columns=pd.Index(list(self.columns))
        )

    def to_tsv(self) -> str:
        """Format the table as tab-separated values with a header."""
        return format_rows([tuple(self.columns), *map(self.cells, self)])

    def __repr__(self) -> str:
        """Format the table for a terminal."""
        lines = [[spell(cell, decimals=3) for cell in self.cells(score)] for score in self]
        columns = list(zip(self.columns, *lines, strict=True))
        widths = [max(map(len, column)) for column in columns]
        spelled = (
            "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
            for line in (self.columns, *lines)
        )
        return "\n".join(spelled)
